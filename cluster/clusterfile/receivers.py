"""Checks of the fields that name receivers: of notifications, and of jobs' results."""

import re
import shlex

from cluster.clusterfile.checks import FieldError

SNS_TOPIC = re.compile(r"arn:aws[a-z-]*:sns:([a-z]{2}(?:-[a-z]+)+-\d):\d{12}:[\w-]{1,256}")  # group 1 is its region
# Bucket, and a prefix of characters without a special meaning to S3 or IAM.
RESULTS = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_.=+-]+)*/?")


def check_notify(notify: str) -> None:
    """Raise FieldError for a text that is neither an SNS topic nor a command that a process list may show."""
    if notify.startswith("arn:"):
        if not SNS_TOPIC.fullmatch(notify):
            raise FieldError(
                "notify",
                f"{notify!r} is not the ARN of a standard SNS topic",
                "write it like 'arn:aws:sns:us-east-1:123456789012:trainings'",
            )
        return
    try:
        words = shlex.split(notify)
    except ValueError as e:
        raise FieldError("notify", f"is no command: {str(e).lower()}", "close the quotes") from e
    if any("://" in word for word in words):
        raise FieldError(
            "notify",
            "has a web address in it, which the stack and every list of processes would show to others",
            "put it into a script that only you can read on the master, and give the script's path",
        )


def check_results(results: str) -> None:
    """Raise FieldError for a text that is no place in S3."""
    if results and not RESULTS.fullmatch(results):
        raise FieldError("results", f"{results!r} is no place in S3", "write it like 's3://bucket/trainings'")

"""Pinned version of `nodes.source`: a commit of a git repository, or one version of an archive in S3.

A checkout is not pinned: stack.create sends its state at that moment.
"""

import os
import re
import subprocess

from botocore.exceptions import ClientError

from cfn.aws import Aws, code_of
from cfn.template.design import bucket_and_prefix
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import ClusterFile
from cluster.clusterfile.nodes import CHECKOUT
from cluster.ssh.onhost.telling_line import telling_line

COMMIT = re.compile(r"[0-9a-f]{40}")
GIT_S = 60
ELSE = f"use S3 instead, or {CHECKOUT!r}: stack.create brings the one where it is typed"


def version(aws: Aws, file: ClusterFile, pinned: dict[str, str] | None) -> str:
    """Return the source's commit or S3 entity tag, "checkout" for a checkout, or "" without a source.

    The version that a running stack has pinned is kept. Raises FieldError if the source does not exist.
    """
    source = file.nodes.source
    if source in ("", CHECKOUT):
        return source
    if pinned and pinned.get("Source") == source and pinned.get("SourceVersion"):
        return pinned["SourceVersion"]
    return _archive(aws, source) if source.startswith("s3://") else _commit(source)


def _archive(aws: Aws, source: str) -> str:
    bucket, key = bucket_and_prefix(source)
    try:
        return aws.client("s3").head_object(Bucket=bucket, Key=key)["ETag"].strip('"')
    except ClientError as e:
        reason = "does not exist" if code_of(e) in ("404", "NoSuchKey", "NoSuchBucket") else "cannot be read by you"
        raise FieldError("nodes.source", f"{source} {reason}", "put the archive there, or name another") from e


def _commit(source: str) -> str:
    address, _, name = source.partition("#")
    if COMMIT.fullmatch(name):
        return name
    names = [f"refs/tags/{name}^{{}}", f"refs/tags/{name}", f"refs/heads/{name}"] if name else ["HEAD"]
    try:
        asked = subprocess.run(
            ["git", "ls-remote", "--", address, *names],
            capture_output=True,
            text=True,
            check=False,
            timeout=GIT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
        )
    except FileNotFoundError as e:
        raise FieldError("nodes.source", "there is no git here to read its commit", "install git") from e
    except subprocess.TimeoutExpired as e:
        raise FieldError("nodes.source", f"{address} did not answer in {GIT_S} s", "try again, or use S3") from e
    if asked.returncode:
        last = telling_line(asked.stderr) or "no reason given"
        raise FieldError("nodes.source", f"{address} cannot be read without a password: {last}", ELSE)
    found = {ref: commit for commit, _, ref in (line.partition("\t") for line in asked.stdout.splitlines())}
    for wanted in names:
        if wanted in found:
            return found[wanted]
    raise FieldError(
        "nodes.source", f"{address} has no branch or tag {name or 'HEAD'!r}", "name one, or a whole commit of 40 digits"
    )

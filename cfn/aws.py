"""boto3 clients for one region of the operator's account, with timeouts, and AWS errors as one-line messages."""

import datetime
import email.utils
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
from botocore.parsers import ResponseParserError

from cluster.errors import ClusterError
from cluster.ssh.onhost import node_role

NODE = Path("/etc/dlami-cluster.conf")  # what first boot recorded
CONFIG = Config(retries={"mode": "standard", "total_max_attempts": 8}, connect_timeout=10, read_timeout=30)
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
CLOCK_MOST_S = 240.0  # AWS accepts signatures within five minutes of its own time
SKEWED = ("RequestTimeTooSkewed", "RequestInTheFuture", "InvalidSignatureTimestamp")
# Messages about the time of a signature, which is valid for minutes. Expired tokens are in EXPIRED.
_TIME = re.compile(r"[Ss]ignature (not yet current|expired)|is (now )?(earlier|later) than|[Cc]lock")
INVALID = ("InvalidClientTokenId", "AuthFailure", "UnrecognizedClientException", "SignatureDoesNotMatch")

# Exceptions of a failed request. ResponseParserError is not a BotoCoreError: it is raised for a proxy's HTML page or
# a broken fake AWS.
FAILED = (ClientError, BotoCoreError, ResponseParserError)


class AwsError(ClusterError):
    """Failed AWS request: AWS refused it, or it could not be sent."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Aws:
    """Client factory for one region of the operator's account. Each task creates one and passes it on."""

    region: str
    endpoint: str | None = None
    """URL of an AWS that is not Amazon's, as a lab's. None: boto3 finds it in the environment."""
    _clients: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    _session: boto3.Session = field(default_factory=node_role.session, compare=False, repr=False)

    def client(self, service: str) -> Any:
        """Return a cached boto3 client. boto3 finds credentials in its usual places."""
        if service not in self._clients:
            self._clients[service] = self._session.client(
                service, region_name=self.region, endpoint_url=self.endpoint, config=CONFIG
            )
        return self._clients[service]

    def in_region(self, region: str) -> "Aws":
        """Return the same account in another region. It shares the session, so service models are loaded only once."""
        return Aws(region, self.endpoint, _session=self._session)

    def offers(self, service: str) -> bool:
        """Return True if AWS offers the service in this region, or if boto3 has no list of its regions."""
        known = self._session.get_available_regions(service, self._session.get_partition_for_region(self.region))
        return not known or self.region in known


def aws_of_node(region: str, conf: Path = NODE) -> Aws:
    """Return the client factory of this machine, at the endpoints that first boot recorded if it is a node.

    A process that was started over ssh has none of first boot's environment. The endpoints are not put into ours,
    which ranks would inherit.
    """
    recorded = {name: url for name, url in endpoints(conf).items() if name not in os.environ}
    core = botocore.session.get_session()
    if metadata := recorded.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        core.set_config_variable("ec2_metadata_service_endpoint", metadata)
    return Aws(region, recorded.get("AWS_ENDPOINT_URL"), _session=boto3.Session(botocore_session=core))


def endpoints(conf: Path) -> dict[str, str]:
    """Return the AWS endpoints that first boot recorded on this node. Those of a lab differ from AWS's."""
    try:
        text = conf.read_text(errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'^declare -\S+ (AWS_E\w+)="([^"\\]+)"$', text, re.M))


def code_of(error: ClientError) -> str:
    """Return AWS's error code."""
    return error.response.get("Error", {}).get("Code", "")


def message_of(error: ClientError) -> str:
    """Return AWS's error message."""
    return error.response.get("Error", {}).get("Message", str(error))


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Convert a failed request inside the block to an AwsError with the action, AWS's message and a remedy.

    Args:
        what: the action, as in "listing the regions".
    """
    try:
        yield
    except ClientError as e:
        raise AwsError(
            f"{what}: {e.operation_name} was refused: {message_of(e)} ({code_of(e)}); {_remedy(e)}", code_of(e)
        ) from e
    except (NoCredentialsError, PartialCredentialsError) as e:
        raise AwsError(f"{what}: no AWS credentials were found; set AWS_PROFILE, or run `aws configure`") from e
    except ResponseParserError as e:
        raise AwsError(f"{what}: the answer was none of AWS's: {str(e)[:200]}; check the endpoint and any proxy") from e
    except BotoCoreError as e:
        raise AwsError(f"{what}: AWS did not answer: {e}; check the network and the region, then run this again") from e


def _is_clock_off(e: ClientError) -> bool:
    """Return True if this machine's clock is over 4 minutes from the date in AWS's response.

    AWS refuses signatures that are more than 5 minutes off.
    """
    told = e.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        theirs = email.utils.parsedate_to_datetime(told)
    except (TypeError, ValueError):
        return False
    return abs((datetime.datetime.now(datetime.UTC) - theirs).total_seconds()) > CLOCK_MOST_S


def _remedy(e: ClientError) -> str:
    code = code_of(e)
    if code in SKEWED or _TIME.search(message_of(e)) or _is_clock_off(e):
        return "the clock of this machine differs from AWS's: set it (timedatectl set-ntp true) and run this again"
    if code in EXPIRED:
        return "your credentials have expired: renew them and run this again"
    if code in DENIED:
        return f"your credentials lack the permission for {e.operation_name}: ask for it, or use others"
    if code in INVALID:
        return "AWS does not know these credentials: check AWS_PROFILE"
    if "hrottl" in code or code == "RequestLimitExceeded":
        return "AWS is limiting requests: wait a minute and run this again"
    return "correct that and run this again"


def pages(api: Any, operation: str, key: str, **arguments: Any) -> list[Any]:
    """Return all items of a paginated AWS response."""
    return [item for page in api.get_paginator(operation).paginate(**arguments) for item in page.get(key, [])]

"""AMI of the nodes: looks up what the cluster file names, and checks that first boot can run on it."""

import re
from typing import Any

from botocore.exceptions import ClientError

from cfn.aws import Aws, code_of
from cfn.disks import check_root
from cfn.instances import InstanceType
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import ClusterFile
from cluster.clusterfile.nodes import DLAMI

# First boot and scripts/install.sh install by apt. An image whose name says no system is accepted.
_APT = re.compile(r"ubuntu|debian", re.IGNORECASE)
_OTHERS = re.compile(
    r"amazon.?linux|amzn|\bal20\d\d|red.?hat|rhel|centos|rocky|alma.?linux|suse|\bsles|fedora|oracle.?linux|"
    r"bottlerocket|flatcar|windows|macos|freebsd",
    re.IGNORECASE,
)

# Releases whose python3, which scripts/install.sh uses, is 3.11 or 3.12.
_RELEASE = re.compile(r"ubuntu.{0,40}?\b(\d\d\.\d\d)\b|debian.{0,3}\b(\d\d)\b", re.IGNORECASE)
_FITTING = ("23.04", "23.10", "24.04", "24.10", "12")


def image(aws: Aws, file: ClusterFile, kind: InstanceType, pinned: str) -> tuple[str, str]:
    """Return the AMI id and the name of its root device.

    Args:
        pinned: the id that a running stack has; "" to look up what the file names.
    Raises FieldError for an image that does not exist, is for another processor or needs a larger disk. Raises it also
    for one that is no Debian or Ubuntu, or whose Python the project does not support where the nodes install it.
    """
    ami = pinned or _looked_up(aws, file)
    try:
        images = aws.client("ec2").describe_images(ImageIds=[ami])["Images"]
    except ClientError as e:
        if not code_of(e).startswith("InvalidAMIID"):
            raise
        images = []
    if not images:
        raise FieldError(
            "nodes.ami",
            f"{ami} does not exist in {file.region}, or not for this account",
            "AMI ids differ by region: use one of this",
        )
    found = images[0]
    if found.get("Architecture", kind.architecture) != kind.architecture:
        raise FieldError(
            "nodes.ami",
            f"{ami} is for {found['Architecture']}, {kind.name} is {kind.architecture}",
            "choose the AMI of that architecture",
        )
    check_system(file.nodes.ami, found)
    if file.nodes.source and not pinned:  # only then is it installed; a running stack's image was checked
        check_release(file.nodes.ami, found)
    check_root(aws, file, ami, found)
    return ami, found.get("RootDeviceName") or "/dev/sda1"


def _looked_up(aws: Aws, file: ClusterFile) -> str:
    ami = file.nodes.ami
    if not ami.startswith("/"):
        return ami
    try:
        return str(aws.client("ssm").get_parameter(Name=ami)["Parameter"]["Value"])
    except ClientError as e:
        if code_of(e) != "ParameterNotFound":
            raise
        raise FieldError(
            "nodes.ami",
            f"there is no SSM parameter {ami!r} in {file.region}",
            "copy the name from the DLAMI release notes",
        ) from e


def check_system(asked: str, described: dict[str, Any]) -> None:
    """Raise FieldError if the image's text names a system other than Debian or Ubuntu.

    Args:
        asked: what the cluster file says, an id or a parameter's name.
        described: the image as EC2 describes it.
    """
    parts = (asked, *(described.get(key, "") for key in ("Name", "Description", "PlatformDetails", "Platform")))
    told = " ".join(str(p) for p in parts if p)
    other = _OTHERS.search(told)
    if other and not _APT.search(told):
        raise FieldError(
            "nodes.ami",
            f"{described.get('Name') or asked} is no Debian or Ubuntu ({other[0]}), and the nodes install by apt",
            f"choose one that is, such as {DLAMI}",
        )


def check_release(asked: str, described: dict[str, Any]) -> None:
    """Raise FieldError if the image's name contains a release whose Python is neither 3.11 nor 3.12.

    Args:
        asked: what the cluster file says, an id or a parameter's name.
        described: the image as EC2 describes it.
    """
    told = _RELEASE.search(f"{described.get('Name', '')} {asked}")
    if told and (told[1] or told[2]) not in _FITTING:
        raise FieldError(
            "nodes.ami",
            f"{described.get('Name') or asked} has neither Python 3.11 nor 3.12, which the project's runtime wants",
            f"choose Ubuntu 24.04 or Debian 12, such as {DLAMI}, or leave nodes.source empty for nodes without it",
        )

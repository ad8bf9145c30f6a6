"""What the template is made from: the cluster file, and what had to be looked up to complete it."""

from dataclasses import dataclass

from cfn.clusterfile.fields import ClusterFile
from cfn.instances import InstanceType, Interface, interfaces

TAG = "dlami-cluster:"  # prefix of every tag we set


@dataclass(frozen=True, kw_only=True)
class Design:
    """One cluster, with nothing left open: the same design renders the same bytes."""

    file: ClusterFile
    ami: str
    zone: str
    instance: InstanceType
    vpc_cidr: str
    """Addresses of the VPC, new or existing."""
    root_device: str = "/dev/sda1"
    """Name of the AMI's root device; it differs between distributions."""
    efs_address: str = ""
    """Address of an existing file system's mount target in this zone; empty: the stack makes one."""
    efs_group: str = ""
    """A security group of that mount target, to be opened to the cluster."""
    source_version: str = ""
    """What nodes.source named when it was pinned: a commit, or an S3 entity tag."""

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        return interfaces(self.instance)

    @property
    def hosts(self) -> int:
        return self.file.nodes.workers + 1

    @property
    def master_is_public(self) -> bool:
        return self.file.access.mode == "ssh"


def bucket_and_prefix(url: str) -> tuple[str, str]:
    """'s3://bucket/some/prefix' -> ('bucket', 'some/prefix')."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return bucket, prefix.rstrip("/")

"""Design of a cluster: the cluster file, completed with what was looked up in AWS."""

from dataclasses import dataclass

from cfn.instances import InstanceType, NetworkInterface, interfaces
from cluster.clusterfile.model import ClusterFile
from cluster.setup.script import Script

TAG = "dlami-cluster:"  # prefix of every tag we set
UNSEEN_MINUTES = 24 * 60  # time for somebody to install this project on nodes that start without it


@dataclass(frozen=True, kw_only=True)
class Design:
    """Complete design of one cluster. The same design always renders the same template."""

    file: ClusterFile
    ami: str
    zone: str
    instance: InstanceType
    """Instance type of the nodes."""
    vpc_cidr: str
    """Addresses of the VPC, new or existing."""
    master: InstanceType | None = None
    """Instance type of a master that does not train; None: the nodes' type."""
    root_device: str = "/dev/sda1"
    """Name of the AMI's root device; it differs between distributions."""
    efs_address: str = ""
    """Address of an existing file system's mount target in this zone; empty: the stack makes one."""
    efs_group: str = ""
    """A security group of that mount target, to be opened to the cluster."""
    block_ends: str = ""
    """UTC time at which its capacity block ends, as 2027-01-15T11:30:00Z; empty for other capacity."""
    reservation_begins: str = ""
    """UTC time at which its reservation begins, in the same form; empty if it has begun."""
    reserved_group: str = ""
    """Placement group of its reservation; empty if it has none."""
    usd_per_hour: float = 0.0
    """Price of one node, if the guard counts a budget."""
    master_usd_per_hour: float = 0.0
    """And the master, where that is another price."""
    subnets: tuple[str, str] = ("", "")
    """Existing subnets of this zone, the public one and the private one; empty: the stack makes them."""
    source_version: str = ""
    """Pinned version of nodes.source: a commit, or an S3 entity tag."""
    setup: Script | None = None
    """The set-up script that every node runs at first boot."""

    def instance_of(self, role: str) -> InstanceType:
        """Return the instance type of a role, master or worker."""
        return self.master if self.master and role == "master" else self.instance

    def interfaces_of(self, role: str) -> tuple[NetworkInterface, ...]:
        """Return the network interfaces of a role. A master that does not train has one, without EFA."""
        own = self.master if role == "master" else None
        return (NetworkInterface(card=0, device=0, kind="interface"),) if own else interfaces(self.instance)

    @property
    def existing_subnets(self) -> tuple[str, str]:
        """Return the file's (public, private) subnets that the nodes live in, ("", "") if it names none."""
        network = self.file.network
        first = [next(iter(some), "") for some in (network.public_subnets, network.private_subnets)]
        return self.subnets if self.subnets[1] else (first[0], first[1])

    def subnet_tags(self, name: str) -> dict[str, str]:
        """Return the tags of the public or private subnet besides our own."""
        return {}

    @property
    def master_is_public(self) -> bool:
        return self.file.access.mode == "ssh"


def first_minutes(file: ClusterFile) -> int:
    """Return after how many minutes new nodes end if no guard postpones it.

    Nodes that start without this project, and so without a guard, have at least a day, unless `max_hours` is less.
    """
    guard, boot = file.guard, file.nodes.boot_minutes
    ends = []
    if file.nodes.source or file.idle_minutes or guard.budget_usd:
        ends.append(max(0 if file.nodes.source else UNSEEN_MINUTES, boot + (file.idle_minutes or boot)))
    if guard.max_hours:
        ends.append(max(boot, int(guard.max_hours * 60)))
    return min(ends)


def bucket_and_prefix(url: str) -> tuple[str, str]:
    """Split an S3 URL: 's3://bucket/some/prefix' -> ('bucket', 'some/prefix')."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return bucket, prefix.rstrip("/")

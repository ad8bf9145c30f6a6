"""What a cluster file says, as frozen values: each table checks itself, each refusal names its field and the remedy."""

import re
from dataclasses import dataclass, field, fields

from cfn.clusterfile.addresses import Network, check_folder, match, network_of
from cluster.inventory import check_ssh
from cluster.settings import FieldError

DLAMI = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
CAPACITIES = ("on-demand", "spot", "reservation", "capacity-block")
ACCESS_MODES = ("ssh", "ssm")
FSX_THROUGHPUTS = (125, 250, 500, 1000)  # MB/s per TiB that PERSISTENT_2 on SSD offers


SECRET = r"gh[a-z]_\w{16}|github_pat_|glpat-|x-token|access_token|[?&]|oauth2:"


def _check_source_address(source: str) -> None:
    """The address stands in the template, in user data and on the nodes, for all to read: no secret may be in it."""
    address = source.partition("#")[0]
    if "@" in address or re.search(SECRET, source):
        raise FieldError(
            "nodes.source",
            "has a user, a token or a query in it, and every node and everybody who sees the stack could read that",
            "give an address that needs none, or put an archive into S3: s3://bucket/key.tar.gz",
        )
    if not re.fullmatch(r"https://[\w.:/+~-]+(#[\w./-]{1,100})?|s3://[a-z0-9.-]+/[\w./-]+\.tar\.gz", source):
        raise FieldError(
            "nodes.source",
            f"{source!r} is neither an https git address nor s3://bucket/key.tar.gz",
            "give one of these, or leave it empty",
        )


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The instances: one master, which trains too, and the workers."""

    instance_type: str = "g5.12xlarge"
    """EC2 type of every node."""
    workers: int = 1
    """Instances besides the master: the cluster has workers + 1 hosts. 0 to 63."""
    ami: str = DLAMI
    """An AMI id, or an SSM parameter that names one; resolved once at create and pinned, `stack.update --ami`
    moves on.
    """
    root_gib: int = 200
    """Size of the encrypted gp3 root volume."""
    capacity: str = "on-demand"
    """'on-demand', 'spot' (the job must checkpoint), 'reservation' or 'capacity-block' (both need the id below)."""
    reservation: str = ""
    """Capacity reservation or capacity block to use, 'cr-...'."""
    boot_minutes: int = 30
    """How long the nodes may take from launch to ready before the stack counts as failed."""
    usd_per_hour: float = 0.0
    """What one instance costs you per hour, for the plan. 0: looked up, or shown as unknown."""
    source: str = ""
    """Where the master gets this project at first boot: an https git address, '#' and a branch, tag or commit after
    it if you like, or s3://bucket/key.tar.gz, which no node may write. What it names is pinned at create;
    `stack.update --source latest` moves on. Empty: what is already on the shared file system or in the AMI."""

    def __post_init__(self) -> None:
        match("nodes.instance_type", self.instance_type, r"[a-z][a-z0-9-]*\.[a-z0-9-]+", "write it like 'p5.48xlarge'")
        if not 0 <= self.workers <= 63:
            raise FieldError(
                "nodes.workers", f"{self.workers} is outside 0 to 63", "the master counts extra: 3 makes 4 hosts"
            )
        if not self.ami.startswith("/"):
            match(
                "nodes.ami",
                self.ami,
                r"ami-([0-9a-f]{8}|[0-9a-f]{17})",
                "give an AMI id, or an SSM parameter ('/...')",
            )
        if not 75 <= self.root_gib <= 16384:
            raise FieldError(
                "nodes.root_gib", f"{self.root_gib} is outside 75 to 16384", "the DLAMI alone needs 75 GiB"
            )
        if self.capacity not in CAPACITIES:
            raise FieldError(
                "nodes.capacity", f"{self.capacity!r} is unknown", f"choose one of {', '.join(CAPACITIES)}"
            )
        reserved = self.capacity in ("reservation", "capacity-block")
        if reserved and not self.reservation:
            raise FieldError(
                "nodes.reservation", f"is empty although capacity is {self.capacity!r}", "give its id, 'cr-...'"
            )
        if self.reservation and not reserved:
            raise FieldError(
                "nodes.capacity",
                f"is {self.capacity!r} although a reservation is given",
                "write 'reservation' or 'capacity-block', or remove nodes.reservation",
            )
        if self.reservation:
            match(
                "nodes.reservation", self.reservation, r"cr-[0-9a-f]{8,17}", "write an id like 'cr-0123456789abcdef0'"
            )
        if not 5 <= self.boot_minutes <= 120:
            raise FieldError("nodes.boot_minutes", f"{self.boot_minutes} is outside 5 to 120", "30 suits most clusters")
        if not 0 <= self.usd_per_hour < 1e6:
            raise FieldError(
                "nodes.usd_per_hour", f"{self.usd_per_hour} is no price", "give the price, or 0 to have it looked up"
            )
        if self.source:
            _check_source_address(self.source)

    @property
    def uses_placement_group(self) -> bool:
        """A reservation or capacity block already fixes where the instances are."""
        return self.capacity in ("on-demand", "spot")


@dataclass(frozen=True, kw_only=True)
class Storage:
    """What outlives a node."""

    efs: str = ""
    """An existing EFS file system. Empty: one is made, encrypted and backed up, and kept when the stack is deleted."""
    tls: bool = True
    """Mount EFS through TLS; the file system that the stack makes takes nothing else then. The cluster's keys are
    on it."""
    fsx_gib: int = 0
    """Size of an FSx for Lustre file system: 1200, or a multiple of 2400. 0: none."""
    fsx_mount: str = "/fsx"
    """Where the nodes mount it."""
    fsx_throughput: int = 125
    """MB/s per TiB: 125, 250, 500 or 1000."""
    fsx_s3: str = ""
    """s3://bucket/prefix whose objects FSx shows and new files go back to. Deleting a file never deletes its object."""
    s3: str = ""
    """s3://bucket/prefix of an existing bucket that the nodes may read and write, and nothing else of S3."""

    def __post_init__(self) -> None:
        if self.efs:
            match("storage.efs", self.efs, r"fs-([0-9a-f]{8}|[0-9a-f]{17})", "write an id like 'fs-0123456789abcdef0'")
        if self.fsx_gib not in (0, 1200) and (self.fsx_gib % 2400 or not 0 < self.fsx_gib <= 2_400_000):
            raise FieldError(
                "storage.fsx_gib",
                f"{self.fsx_gib} is not a size FSx offers",
                "use 1200 or a multiple of 2400; 0 for none",
            )
        if self.fsx_throughput not in FSX_THROUGHPUTS:
            raise FieldError(
                "storage.fsx_throughput", f"{self.fsx_throughput} is not offered", f"choose one of {FSX_THROUGHPUTS}"
            )
        if self.fsx_s3 and not self.fsx_gib:
            raise FieldError("storage.fsx_s3", "is given although there is no FSx", "set storage.fsx_gib, or remove it")
        check_folder("storage.fsx_mount", self.fsx_mount, "/fsx")
        for name in ("fsx_s3", "s3"):
            if value := getattr(self, name):
                match(
                    f"storage.{name}",
                    value,
                    r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[\w!'()./-]*[\w]",
                    "write it like 's3://bucket/prefix': a whole bucket is never granted",
                )


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may come in."""

    mode: str = "ssh"
    """'ssh': the master has a public address and port 22 open to ssh_from. 'ssm': no public node, no open port."""
    ssh_from: str = ""
    """The only addresses that may reach the master's port 22, as '203.0.113.7/32'. Never the whole internet."""
    allow_wide: bool = False
    """Confirms an ssh_from that is wider than /16 (65,536 addresses); one wider than /8 is never taken."""
    key_pair: str = ""
    """Name of an EC2 key pair. Empty: come in with the public key below, or with EC2 Instance Connect."""
    public_key: str = ""
    """A public key ('ssh-ed25519 AAAA...') that every node lets in, as a line of ~/.ssh/*.pub. Without it and
    without a key pair only `inv ssh` gets in, and the tasks of every day only on the master."""
    protect: bool = True
    """Termination protection: `stack.delete` still works after its question, the console's button does not."""

    def __post_init__(self) -> None:
        if self.mode not in ACCESS_MODES:
            raise FieldError("access.mode", f"{self.mode!r} is unknown", "choose 'ssh' or 'ssm'")
        if self.mode == "ssm" and self.ssh_from:
            raise FieldError(
                "access.ssh_from", "is given although access.mode is 'ssm'", "remove it, or use mode 'ssh'"
            )
        if self.mode == "ssh":
            self._check_source()
        if self.key_pair and len(self.key_pair) > 255:
            raise FieldError("access.key_pair", "is longer than 255 characters", "give the name of the key pair")
        if self.public_key:
            match(
                "access.public_key",
                self.public_key,
                r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp\d+|sk-\S+@openssh\.com) [A-Za-z0-9+/]{40,2000}=*( [\w@.+-]*)?",
                "copy the line of a file like ~/.ssh/id_ed25519.pub",
            )

    def _check_source(self) -> None:
        if not self.ssh_from:
            raise FieldError(
                "access.ssh_from",
                "is empty",
                "give the network you come from, as '203.0.113.7/32', or use mode 'ssm'",
            )
        if ":" in self.ssh_from:
            raise FieldError(
                "access.ssh_from",
                f"{self.ssh_from!r} is IPv6, the network of the stack is IPv4",
                "give an IPv4 network",
            )
        network = network_of("access.ssh_from", self.ssh_from)
        if 8 <= network.prefixlen < 16 and not self.allow_wide:
            raise FieldError(
                "access.ssh_from",
                f"{self.ssh_from!r} lets {network.num_addresses} addresses in",
                "narrow it to /16 or less, or confirm it with access.allow_wide = true",
            )
        if network.prefixlen < 8:
            raise FieldError(
                "access.ssh_from",
                f"{self.ssh_from!r} opens the master to the internet",
                "give the network you come from, as '203.0.113.7/32', or use mode 'ssm'",
            )


@dataclass(frozen=True, kw_only=True)
class Ssh:
    """How the tasks reach the nodes; read by the `cluster` package too."""

    user: str = "ubuntu"
    """Login name: 'ubuntu' on Ubuntu AMIs, 'ec2-user' on Amazon Linux."""
    key: str = ""
    """Private key file on this machine. Empty: the agent's keys, then the cluster key."""
    port: int = 22
    """Port of sshd on the nodes."""
    known_hosts: str = ""
    """File with the nodes' host keys. Empty: the one the nodes publish on the shared file system."""
    gateway: str = ""
    """Host to jump over on the way to the nodes. Empty: the master, when this is not the master."""

    def __post_init__(self) -> None:
        match("ssh.user", self.user, r"[a-z_][a-z0-9_-]{0,31}", "give a login name such as 'ubuntu'")
        check_ssh({f.name: value for f in fields(self) if (value := getattr(self, f.name)) != ""})


@dataclass(frozen=True, kw_only=True)
class ClusterFile:
    """The whole cluster file."""

    name: str = "training"
    """Name of the cluster and of its stack: letters, digits and hyphens, a letter first."""
    region: str = "us-east-1"
    """AWS region of everything."""
    shared: str = "/efs"
    """Where every node mounts the shared file system."""
    project: str = "/opt/dlami-cluster"
    """Where this project lives on the nodes."""
    network: Network = field(default_factory=Network)
    nodes: Nodes = field(default_factory=Nodes)
    storage: Storage = field(default_factory=Storage)
    access: Access = field(default_factory=Access)
    ssh: Ssh = field(default_factory=Ssh)

    def __post_init__(self) -> None:
        match(
            "name",
            self.name,
            r"[A-Za-z][A-Za-z0-9-]{0,40}",
            "use a letter, then up to 40 letters, digits and hyphens",
        )
        match("region", self.region, r"[a-z]{2}(-[a-z]+)+-\d", "write it like 'us-east-1'")
        check_folder("shared", self.shared, "/efs")
        check_folder("project", self.project, "/opt/dlami-cluster", depth=2)
        if self.network.zone and not self.network.zone.startswith(self.region):
            raise FieldError(
                "network.zone", f"{self.network.zone} is not in region {self.region}", "change one of them"
            )
        if self.storage.fsx_gib and self.storage.fsx_mount == self.shared:
            raise FieldError("storage.fsx_mount", f"{self.shared} is already the shared folder", "choose another path")
        if self.network.vpc and self.access.mode == "ssh" and not self.network.public_subnet:
            raise FieldError(
                "network.public_subnet",
                "is empty although the master is reached over SSH",
                "give a public subnet of the VPC, or use access.mode 'ssm'",
            )
        self._check_room()

    def _check_room(self) -> None:
        """AWS keeps 5 addresses of a subnet; each node has one, the mount targets, NAT and FSx have a few."""
        if self.network.vpc:
            return
        room = network_of("network.private_cidr", self.network.private_cidr).num_addresses - 5 - 4
        if self.nodes.workers + 1 > room:
            raise FieldError(
                "network.private_cidr",
                f"{self.network.private_cidr} has room for {max(room, 0)} nodes, "
                f"{self.nodes.workers + 1} are asked for",
                "use a larger one, as '10.20.64.0/18'",
            )


__all__ = ["Access", "ClusterFile", "Network", "Nodes", "Ssh", "Storage"]

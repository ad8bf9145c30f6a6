"""What a cluster file says, as frozen values: each table checks itself, each refusal names its field and the remedy."""

from dataclasses import dataclass, field, fields

from cfn.clusterfile.addresses import Network, check_folder, match, network_of
from cfn.clusterfile.nodes import CHECKOUT, Master, Nodes
from cluster.eks.settings import EksSettings
from cluster.inventory import check_mode, check_notify, check_results, check_ssh
from cluster.settings import FieldError
from cluster.terminal import counted

MARKETS = ("on-demand", "spot")  # that need no reservation
FSX_THROUGHPUTS = (125, 250, 500, 1000)  # MB/s per TiB that PERSISTENT_2 on SSD offers


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
    """'ssh': the master has a public address and port 22 open to ssh_from. 'ssm': no public node, no open port; tasks
    reach the master through Session Manager. 'eic': so too, through an EC2 Instance Connect Endpoint; no key needed."""
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
    permissions_boundary: str = ""
    """ARN of the IAM policy that no role of this cluster may exceed, as 'arn:aws:iam::111122223333:policy/Bound'. With
    it `stack.policy` lets its holder make only bounded roles; without it that policy amounts to administration."""
    rank_credentials: bool = False
    """Lets every user of a node take its role's credentials (S3, results, what ends instances) from the metadata
    service. By default root and the login user alone can, so that ranks of other users get nothing."""
    role_path: str = "/"
    """IAM path of the cluster's roles, as '/dlami/': by it the account's own rules can tell them from others."""

    def __post_init__(self) -> None:
        check_mode(self.mode)
        if self.permissions_boundary:
            match(
                "access.permissions_boundary",
                self.permissions_boundary,
                r"arn:aws[a-z-]*:iam::(\d{12}|aws):policy/[\w+=,.@/-]{1,640}",
                "give the ARN of an IAM policy, as 'arn:aws:iam::111122223333:policy/Bound'",
            )
        if self.role_path != "/":
            match(
                "access.role_path", self.role_path, r"/[\w+=,.@/-]{1,500}/", "write it like '/dlami/', or '/' for none"
            )
        if self.mode != "ssh" and self.ssh_from:
            raise FieldError(
                "access.ssh_from", f"is given although access.mode is {self.mode!r}", "remove it, or use mode 'ssh'"
            )
        if self.mode == "ssh":
            self._check_source()
        if len(self.key_pair) > 255:
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
class Guard:
    """What ends a cluster that is forgotten: all its nodes end, its storage and addresses stay. 0 turns a limit off."""

    idle_minutes: int | None = None
    """So long without useful work, 20 or more. Not set: 60; and 0 where capacity is a capacity block, which is paid
    anyway."""
    max_hours: float = 0.0
    """So long since its nodes were started, whatever they do."""
    budget_usd: float = 0.0
    """So much for the hours of its instances, by nodes.usd_per_hour or AWS's price list; storage and NAT are extra."""

    def __post_init__(self) -> None:
        if self.idle_minutes and not 20 <= self.idle_minutes <= 10080:
            raise FieldError(
                "guard.idle_minutes",
                f"{self.idle_minutes} is outside 20 to 10080",
                "60 suits most clusters; 0 turns it off",
            )
        for name, most in (("max_hours", 8760.0), ("budget_usd", 1e8)):
            if not 0 <= getattr(self, name) <= most:
                raise FieldError(f"guard.{name}", f"{getattr(self, name)} is outside 0 to {most:.0f}", "0 turns it off")


@dataclass(frozen=True, kw_only=True)
class Ssh:
    """How the tasks reach the nodes; read by the `cluster` package too."""

    user: str = "ubuntu"
    """Login name: 'ubuntu' on Ubuntu AMIs, 'admin' on Debian's."""
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
    notify: str = ""
    """Who is told when a job fails, is healed or ends, when a host will go, or the master was away: a command that the
    master runs, as '/home/ubuntu/tell-us --loud' (its words, no shell; it gets JSON on its stdin), or the ARN of an SNS
    topic. `inv notify.test` tries it. Empty: nobody."""
    results: str = ""
    """Where a job's report, metrics, logs and best checkpoint go at its end and at each healing, as
    's3://bucket/trainings'; the master may write there. Empty: nowhere."""
    setup: str = ""
    """A script of your own, its path from this file, that every node runs as root: at first boot, and by `inv setup`;
    once for its content. It travels with the stack, so it must hold no secret. Empty: none."""
    network: Network = field(default_factory=Network)
    nodes: Nodes = field(default_factory=Nodes)
    master: Master = field(default_factory=Master)
    storage: Storage = field(default_factory=Storage)
    access: Access = field(default_factory=Access)
    guard: Guard = field(default_factory=Guard)
    ssh: Ssh = field(default_factory=Ssh)
    eks: EksSettings = field(default_factory=EksSettings)

    def __post_init__(self) -> None:
        match(
            "name",
            self.name,
            r"[A-Za-z][A-Za-z0-9-]{0,40}",
            "use a letter, then up to 40 letters, digits and hyphens",
        )
        match("region", self.region, r"[a-z]{2}(-[a-z]+)+-\d", "write it like 'us-east-1'")
        check_notify(self.notify)
        check_results(self.results)
        check_folder("shared", self.shared, "/efs")
        check_folder("project", self.project, "/opt/dlami-cluster", depth=2)
        if self.network.zone and not self.network.zone.startswith(self.region):
            raise FieldError(
                "network.zone", f"{self.network.zone} is not in region {self.region}", "change one of them"
            )
        if self.storage.fsx_gib and self.storage.fsx_mount == self.shared:
            raise FieldError("storage.fsx_mount", f"{self.shared} is already the shared folder", "choose another path")
        check_mode(self.access.mode, self.ssh.port)
        if self.master.instance_type and not self.nodes.workers:
            raise FieldError(
                "master.instance_type",
                "is given although nodes.workers is 0: such a master does not train, and nobody would",
                "give at least one worker, or leave it out",
            )
        if self.master.capacity and not self.master.instance_type and self.nodes.capacity not in MARKETS:
            raise FieldError(
                "master.capacity",
                f"is given although nodes.capacity is {self.nodes.capacity!r}",
                "leave it out: the master is in the reservation, too",
            )
        if self.network.vpc and self.access.mode == "eic":
            raise FieldError(
                "access.mode",
                "is 'eic' although network.vpc is given: a VPC takes one endpoint, so the stack makes none in yours",
                "use mode 'ssm', or leave network.vpc empty",
            )
        if self.network.vpc and self.access.mode == "ssh" and not self.network.public_subnet:
            raise FieldError(
                "network.public_subnet",
                "is empty although the master is reached over SSH",
                "give a public subnet of the VPC, or use access.mode 'ssm'",
            )
        has_key = bool(self.access.key_pair or self.access.public_key)
        if self.nodes.source == CHECKOUT and self.access.mode == "ssh" and not has_key:
            raise FieldError(
                "access.public_key",
                "is empty, as access.key_pair is, and the checkout comes to the nodes over SSH",
                "copy the line of a file like ~/.ssh/id_ed25519.pub",
            )
        self._check_room()

    @property
    def idle_minutes(self) -> int:
        """After how many minutes without useful work its nodes end; 0: never."""
        if self.guard.idle_minutes is None:
            return 0 if self.nodes.capacity == "capacity-block" else 60
        return self.guard.idle_minutes

    @property
    def is_guarded(self) -> bool:
        """Whether anything but the operator ends it."""
        return bool(self.idle_minutes or self.guard.max_hours or self.guard.budget_usd)

    def market(self, role: str) -> str:
        """How the instances of a role, master or worker, are bought."""
        if role == "master" and self.master.instance_type and self.nodes.capacity not in MARKETS:
            return "on-demand"  # a reservation is for the nodes' type
        return (self.master.capacity if role == "master" else "") or self.nodes.capacity

    def given_usd_per_hour(self, role: str) -> float:
        """What the file says that an instance of a role costs; 0 where it does not."""
        if role != "master":
            return self.nodes.usd_per_hour
        is_as_nodes = not self.master.instance_type and self.market("master") == self.nodes.capacity
        return self.master.usd_per_hour or (self.nodes.usd_per_hour if is_as_nodes else 0.0)

    @property
    def master_trains(self) -> bool:
        """Whether the master holds ranks too."""
        return not self.master.instance_type

    @property
    def hosts(self) -> int:
        """Hosts that train: the workers, and the master if it does."""
        return self.nodes.workers + self.master_trains

    @property
    def reserved(self) -> int:
        """Instances that are in the reservation, if there is one."""
        return self.nodes.pool + self.master_trains

    def _check_room(self) -> None:
        """AWS keeps 5 addresses of a subnet; each node has one, the mount targets, NAT and FSx have a few."""
        if self.network.vpc:
            return
        room = network_of("network.private_cidr", self.network.private_cidr).num_addresses - 5 - 4
        if self.nodes.instances > room:
            raise FieldError(
                "network.private_cidr",
                f"{self.network.private_cidr} has room for {counted(max(room, 0), 'node')}, "
                f"{self.nodes.instances} are asked for",
                "use a larger one, as '10.20.64.0/18'",
            )


__all__ = ["Access", "ClusterFile", "EksSettings", "Guard", "Master", "Network", "Nodes", "Ssh", "Storage"]

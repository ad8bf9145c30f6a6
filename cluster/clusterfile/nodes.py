"""[nodes] and [master] of a cluster file: number, type, market and image of its instances."""

import re
from dataclasses import dataclass

from cluster.clusterfile.checks import FieldError, in_range, match, match_if_set, several
from cluster.terminal import counted

DLAMI = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
CAPACITIES = ("on-demand", "spot", "reservation", "capacity-block")
SECRET = r"gh[a-z]_\w{16}|github_pat_|glpat-|x-token|access_token|[?&]|oauth2:"
CHECKOUT = "checkout"  # nodes.source: the checkout in which stack.create is typed
TYPE = r"[a-z][a-z0-9-]*\.[a-z0-9-]+"


def _check_price(name: str, usd: float) -> None:
    if not 0 <= usd < 1e6:
        raise FieldError(name, f"{usd} is no price", "give the price, or 0 to have it looked up")


def _check_source_address(source: str) -> None:
    """Raise FieldError for an address with a secret: the template, user data and every node show it."""
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
            f"{source!r} is neither an https git address nor s3://bucket/key.tar.gz nor {CHECKOUT!r}",
            "give one of these, or leave it empty",
        )


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Instances: one master, which trains too unless it has a type of its own, and the workers."""

    instance_type: str | tuple[str, ...] = "g5.12xlarge"
    """EC2 type of every node. A list, as ["p5.48xlarge", "p4d.24xlarge"]: the first of which some zone has enough."""
    workers: int = 1
    """Instances besides the master: the cluster has workers + 1 hosts. 0 to 63."""
    spares: int = 0
    """Instances beyond these that boot, hold the data and wait to take a dead worker's place. They cost as much."""
    min_nodes: int = 0
    """With how many hosts the cluster may begin where a zone has no room for all; it grows as more come. 0: all."""
    ami: str = DLAMI
    """An AMI id, or an SSM parameter that names one, of Debian or Ubuntu, with Python 3.11 or 3.12 where there
    is a source; resolved once at create and pinned, `stack.update --ami` moves on.
    """
    root_gib: int = 200
    """Size of the encrypted gp3 root volume."""
    capacity: str = "on-demand"
    """'on-demand', 'spot' (the job must checkpoint), 'reservation' or 'capacity-block' (both need the id below)."""
    reservation: str = ""
    """Capacity reservation or capacity block to use, 'cr-...'."""
    boot_minutes: int = 30
    """Minutes that the nodes may take from launch to ready before the stack counts as failed."""
    usd_per_hour: float = 0.0
    """Price of one instance per hour, for the plan. 0: looked up, or shown as unknown."""
    source: str = ""
    """Where the master gets this project at first boot: an https git address, '#' and a branch, tag or commit after
    it if you like, or s3://bucket/key.tar.gz, which no node may write. What it names is pinned at create;
    `stack.update --source latest` moves on. 'checkout': the checkout in which stack.create is typed, which brings it
    over SSH, so that nothing has to read its repository. Empty: what is on the shared file system or in the AMI."""

    def __post_init__(self) -> None:
        self._check_number()
        self._check_market()
        image = r"/.*|ami-([0-9a-f]{8}|[0-9a-f]{17})"
        match("nodes.ami", self.ami, image, "give an AMI id, or an SSM parameter ('/...')")
        in_range("nodes.root_gib", self.root_gib, 75, 16384, "the DLAMI alone needs 75 GiB")
        in_range("nodes.boot_minutes", self.boot_minutes, 5, 120, "30 suits most clusters")
        _check_price("nodes.usd_per_hour", self.usd_per_hour)
        if self.source and self.source != CHECKOUT:
            _check_source_address(self.source)

    def _check_number(self) -> None:
        """Raise FieldError for types that are none, or for numbers of instances that do not go together."""
        if not self.types or len(set(self.types)) < len(self.types):
            raise FieldError("nodes.instance_type", "is empty, or has a type twice", "write it like 'p5.48xlarge'")
        for one in self.types:
            match("nodes.instance_type", one, TYPE, "write it like 'p5.48xlarge'")
        in_range("nodes.workers", self.workers, 0, 63, "the master counts extra: 3 makes 4 hosts")
        if not 0 <= self.spares <= 63 - self.workers or (self.spares and not self.workers):
            raise FieldError(
                "nodes.spares",
                f"{self.spares} does not go with {counted(self.workers, 'worker')}",
                "a spare takes a worker's place, and workers and spares are 63 at most",
            )
        if self.min_nodes and not min(2, self.workers + 1) <= self.min_nodes <= self.workers + 1:
            raise FieldError(
                "nodes.min_nodes",
                f"{self.min_nodes} is outside 2 to {self.workers + 1}",
                "the master counts, spares do not; 0 is all of them",
            )

    def _check_market(self) -> None:
        """Raise FieldError for a market that is unknown, or a reservation that does not go with it."""
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
        if self.reservation and len(self.types) > 1:
            raise FieldError(
                "nodes.instance_type", "is a list although a reservation is given", "give the one it is for"
            )
        reservation = r"cr-[0-9a-f]{8,17}"
        match_if_set("nodes.reservation", self.reservation, reservation, "write an id like 'cr-0123456789abcdef0'")

    @property
    def types(self) -> tuple[str, ...]:
        """Return the instance types, in the order in which they are tried."""
        return several(self.instance_type)

    @property
    def least(self) -> int:
        """Return the number of hosts with which the cluster may begin: all, unless fewer are asked for."""
        return self.min_nodes or self.instances

    @property
    def pool(self) -> int:
        """Return the number of instances in the workers' group: workers and spares."""
        return self.workers + self.spares

    @property
    def instances(self) -> int:
        """Return the number of all instances: the master, the workers, the spares."""
        return 1 + self.pool

    @property
    def uses_placement_group(self) -> bool:
        """Return False if a reservation or capacity block already fixes where the instances are."""
        return self.capacity in ("on-demand", "spot")


@dataclass(frozen=True, kw_only=True)
class Master:
    """Master, if it differs from the other nodes."""

    instance_type: str = ""
    """An EC2 type of its own, as "m7i.large": it starts jobs and does not train then, the workers alone do. Empty: as
    the nodes, and it trains too."""
    capacity: str = ""
    """'on-demand' keeps it where workers are 'spot': the job's supervisor and the way in survive what ends them.
    Empty: as the workers; a master of its own type is in no reservation and 'on-demand' where they are."""
    usd_per_hour: float = 0.0
    """Its price per hour. 0: looked up; nodes.usd_per_hour where it is of their type and bought as they are."""

    def __post_init__(self) -> None:
        match_if_set("master.instance_type", self.instance_type, TYPE, "write it like 'm7i.large'")
        _check_price("master.usd_per_hour", self.usd_per_hour)
        if self.capacity not in ("", "on-demand"):
            raise FieldError("master.capacity", f"{self.capacity!r} is unknown", "write 'on-demand', or leave it empty")

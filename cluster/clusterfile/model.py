"""Cluster file as frozen values.

Each table checks itself. Each refusal names its field and the remedy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.clusterfile.access import Access, check_mode
from cluster.clusterfile.checks import REGION, FieldError, check_folder, match, network_of
from cluster.clusterfile.eks import SUFFIX, EksSettings
from cluster.clusterfile.guard import Guard
from cluster.clusterfile.network import Network
from cluster.clusterfile.nodes import CHECKOUT, Master, Nodes
from cluster.clusterfile.receivers import check_notify, check_results
from cluster.clusterfile.schema import filled, without_stack
from cluster.clusterfile.ssh import Ssh
from cluster.clusterfile.storage import Storage
from cluster.terminal import counted

MARKETS = ("on-demand", "spot")  # that need no reservation
ON_NODES = "/opt/dlami-cluster"  # the project's folder on a stack's nodes, unless their cluster file has another one
SHARERS = ("all", "master")
NOT_OF_A_STACK = ("ssh", "eks")  # tables that any cluster may have


@dataclass(frozen=True, kw_only=True)
class ClusterFile:
    """Cluster file, with a default for each field."""

    name: str = filled("training")
    """Name of the cluster and of its stack: letters, digits and hyphens, a letter first."""
    region: str = "us-east-1"
    """AWS region of everything."""
    shared: str = filled("/efs")
    """Path of the shared file system on every node."""
    project: str = filled(ON_NODES)
    """Folder of this project on the nodes."""
    notify: str = ""
    """Receiver of notifications: a job failed, recovered or ended, a host will go, or the master was away. It is a
    command that the master runs, as '/home/ubuntu/tell-us --loud' (its words, no shell; it gets JSON on its stdin), or
    the ARN of an SNS topic. `inv notify.test` tries it. Empty: nobody."""
    results: str = ""
    """Where a job's report, metrics, logs and best checkpoint go at its end and at each healing, as
    's3://bucket/trainings'; the master may write there. Empty: nowhere."""
    setup: str = ""
    """A script of your own, its path from this file, that every node runs as root: at first boot, and by `inv setup`;
    once for its content. It travels with the stack, so it must hold no secret. Empty: none."""
    shared_by: str = without_stack("all")
    """'all': every host sees the same shared folder. 'master': it is on the master's own disk."""
    network: Network = field(default_factory=Network)
    nodes: Nodes = field(default_factory=Nodes)
    master: Master = field(default_factory=Master)
    storage: Storage = field(default_factory=Storage)
    access: Access = field(default_factory=Access)
    guard: Guard = field(default_factory=Guard)
    ssh: Ssh = field(default_factory=Ssh)
    eks: EksSettings = field(default_factory=EksSettings)

    def __post_init__(self) -> None:
        check_notify(self.notify)
        check_results(self.results)
        check_mode(self.access.mode, self.ssh.port)
        for name in ("shared", "project"):
            if not getattr(self, name).startswith("/"):
                raise FieldError(name, f"{getattr(self, name)!r} is not an absolute path", "write it like '/efs'")
        if self.shared_by not in SHARERS:
            raise FieldError(
                "shared_by",
                f"{self.shared_by!r} is unknown",
                "choose 'all', or 'master': it is on the master's own disk",
            )
        if self.network.zone and not self.network.zone.startswith(self.region):
            raise FieldError(
                "network.zone", f"{self.network.zone} is not in region {self.region}", "change one of them"
            )
        if self.storage.fsx_gib and self.storage.fsx_mount == self.shared:
            raise FieldError("storage.fsx_mount", f"{self.shared} is already the shared folder", "choose another path")
        self._check_master()
        self._check_room()

    def _check_master(self) -> None:
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

    def check_stack(self) -> None:
        """Raise FieldError if the file lacks what a stack needs, or has what a stack cannot have."""
        match(
            "name",
            self.name,
            r"[A-Za-z][A-Za-z0-9-]{0,40}",
            "use a letter, then up to 40 letters, digits and hyphens",
        )
        match("region", self.region, REGION, "write it like 'us-east-1'")
        check_folder("shared", self.shared, "/efs")
        check_folder("project", self.project, ON_NODES, depth=2)
        if self.shared_by != "all":
            raise FieldError("shared_by", "is for hosts without a stack", "leave it out: a stack's nodes share one")
        self.ssh.check_stack()
        self.access.check_stack()
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

    @property
    def idle_minutes(self) -> int:
        """Return the minutes without useful work after which its nodes end; 0: never."""
        if self.guard.idle_minutes is None:
            return 0 if self.nodes.capacity == "capacity-block" else 60
        return self.guard.idle_minutes

    @property
    def eks_stack(self) -> str:
        """Return the name of its stack on EKS, beside that of the bare cluster."""
        return self.name + SUFFIX

    @property
    def api_from(self) -> tuple[str, ...]:
        """Return the networks that may reach the Kubernetes API: the operator's, and those that may reach services."""
        own = (self.access.ssh_from,) if self.access.ssh_from else ()
        return tuple(dict.fromkeys((*own, *self.eks.allow_cidrs)))

    @property
    def is_guarded(self) -> bool:
        """Return True if anything but the operator ends it."""
        return bool(self.idle_minutes or self.guard.max_hours or self.guard.budget_usd)

    def market(self, role: str) -> str:
        """Return the market of the instances of a role, master or worker."""
        if role == "master" and self.master.instance_type and self.nodes.capacity not in MARKETS:
            return "on-demand"  # a reservation is for the nodes' type
        return (self.master.capacity if role == "master" else "") or self.nodes.capacity

    def given_usd_per_hour(self, role: str) -> float:
        """Return the price in the file of an instance of a role; 0 if it has none."""
        if role != "master":
            return self.nodes.usd_per_hour
        is_as_nodes = not self.master.instance_type and self.market("master") == self.nodes.capacity
        return self.master.usd_per_hour or (self.nodes.usd_per_hour if is_as_nodes else 0.0)

    @property
    def master_trains(self) -> bool:
        """Return True if the master holds ranks too."""
        return not self.master.instance_type

    @property
    def hosts(self) -> int:
        """Return the number of hosts that train: the workers, and the master if it does."""
        return self.nodes.workers + self.master_trains

    @property
    def reserved(self) -> int:
        """Return the number of instances that are in the reservation, if there is one."""
        return self.nodes.pool + self.master_trains

    def _check_room(self) -> None:
        """Raise FieldError if the private subnet is too small.

        AWS keeps 5 addresses of a subnet; each node has one, the mount targets, NAT and FSx have a few.
        """
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


def is_of_a_stack(values: Mapping[str, Any]) -> bool:
    """Return True if the values of a cluster file have a table that only a stack needs."""
    return any(isinstance(value, dict) and name not in NOT_OF_A_STACK for name, value in values.items())


__all__ = ["Access", "ClusterFile", "EksSettings", "Guard", "Master", "Network", "Nodes", "Ssh", "Storage"]

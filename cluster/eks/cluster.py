"""The cluster file as Kubernetes needs it: nodes, their GPUs and EFA cards, folders and `[eks]`, without a hostfile."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster.eks.settings import EksSettings
from cluster.errors import ConfigError
from cluster.health.instance import Instance, instance_of
from cluster.inventory import check_notify, check_results
from cluster.locate import existing_folder
from cluster.settings import FieldError, read

DEFAULT_NAME, DEFAULT_TYPE, DEFAULT_WORKERS = "training", "g5.12xlarge", 1  # as the stack's cluster file has them


@dataclass(frozen=True, kw_only=True)
class EksCluster:
    """A cluster on Kubernetes as its cluster file describes it. All of its nodes train: none of them is a master."""

    name: str
    folder: Path
    region: str
    nodes: int
    """How many nodes: as many as train on the bare cluster of this file, its workers and a master that trains."""
    instance_type: str
    """The nodes' type. If the file names several, the first, until the stack's outputs name the actual one."""
    instance: Instance | None
    """The type's GPUs and cards; None for a type without GPUs that is not in our table."""
    shared: str
    fsx_mount: str
    """Where Lustre is mounted; "" without it."""
    notify: str
    results: str
    settings: EksSettings
    zone: str = ""
    cidr: str = "10.20.0.0/16"
    vpc: str = ""
    private_subnets: tuple[str, ...] = ()
    ssh_from: str = ""
    capacity: str = "on-demand"
    reservation: str = ""
    root_gib: int = 200
    other_types: tuple[str, ...] = ()
    """The file's further types, until the nodes' actual type is known."""

    @property
    def api_from(self) -> tuple[str, ...]:
        """Networks that may reach the Kubernetes API from outside: the operator's and those that may reach services."""
        own = (self.ssh_from,) if self.ssh_from else ()
        return tuple(dict.fromkeys((*own, *self.settings.allow_cidrs)))

    @property
    def gpus(self) -> int:
        """GPUs per node; 0 without GPUs."""
        return self.instance.gpus if self.instance else 0

    @property
    def slots(self) -> int:
        """Ranks per node: one per GPU, or one on a node without GPUs."""
        return self.gpus or 1

    @property
    def efa(self) -> int:
        """EFA interfaces per node."""
        return self.instance.efa if self.instance else 0

    @property
    def object_name(self) -> str:
        """The cluster's name for Kubernetes objects, which must be lower case."""
        return self.name.lower()

    @property
    def labels(self) -> dict[str, str]:
        """The labels that every object of the cluster has."""
        return {"app.kubernetes.io/part-of": "dlami-cluster", "dlami/cluster": self.object_name}


def load_eks(where: str | None = None) -> EksCluster:
    """Return the cluster that the cluster file of a folder describes (default: CLUSTER, or the nearest folder above).

    Raises ConfigError if the file is missing or cannot be used.
    """
    folder = existing_folder(where)
    path = folder / "cluster.toml"
    if not path.exists():
        raise ConfigError(f"{path} does not exist; `inv stack.init` writes one, the same for EKS")
    return read(path, lambda values: of_values(values, folder))


def of_type(cluster: EksCluster, kind: str) -> EksCluster:
    """Return the cluster with nodes of this type. Raises FieldError for a type with GPUs that we do not know."""
    return replace(cluster, instance_type=kind, instance=_instance(kind), other_types=())


def of_values(values: dict[str, Any], folder: Path) -> EksCluster:
    """Return the cluster that decoded TOML describes, its types checked.

    Raises FieldError for a value that cannot be used.
    """
    check_notify(values.get("notify", ""))
    check_results(values.get("results", ""))
    nodes, storage, eks = (values.get(table, {}) for table in ("nodes", "storage", "eks"))
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in eks.items()}
    settings = EksSettings(**given)
    named = nodes.get("instance_type", DEFAULT_TYPE)
    kind, *others = [named] if isinstance(named, str) else named
    has_fsx = bool(storage.get("fsx_gib") or settings.fsx)
    return EksCluster(
        name=_name(values.get("name", DEFAULT_NAME)),
        folder=folder,
        region=values.get("region", "us-east-1"),
        nodes=_number(nodes.get("workers", DEFAULT_WORKERS)) + (not values.get("master", {}).get("instance_type")),
        instance_type=kind,
        instance=_instance(kind),
        other_types=tuple(others),
        shared=values.get("shared", "/efs"),
        fsx_mount=storage.get("fsx_mount", "/fsx") if has_fsx else "",
        notify=values.get("notify", ""),
        results=values.get("results", ""),
        settings=settings,
        ssh_from=values.get("access", {}).get("ssh_from", ""),
        **{k: nodes[k] for k in ("capacity", "reservation", "root_gib") if k in nodes},
        **_network(values.get("network", {})),
    )


def _network(table: dict[str, Any]) -> dict[str, Any]:
    """Return the network fields of EksCluster from the file's [network] table."""
    private = table.get("private_subnet", "")
    subnets = tuple(private) if isinstance(private, list) else (private,) if private else ()
    return {"private_subnets": subnets, **{k: table[k] for k in ("zone", "cidr", "vpc") if k in table}}


def _name(name: str) -> str:
    """Check a cluster's name, which becomes part of names and labels of Kubernetes objects. Raises FieldError."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,39}[A-Za-z0-9]|[A-Za-z]", name):
        raise FieldError(
            "name", f"{name!r} does not fit Kubernetes", "use a letter, then up to 40 letters, digits and hyphens"
        )
    return name


def _number(workers: int) -> int:
    if not 0 <= workers <= 63:
        raise FieldError("nodes.workers", f"{workers} is outside 0 to 63", "the nodes are one more: 3 makes 4")
    return workers


def _instance(kind: str) -> Instance | None:
    """Return what is known of an instance type; None for a type without GPUs that we do not know.

    Raises FieldError for an unknown type whose name says that it has GPUs.
    """
    known = instance_of(kind)
    if known is None and kind[:1] in ("p", "g"):
        raise FieldError("nodes.instance_type", f"{kind!r} is not in our table of GPU instances", "choose another type")
    return known

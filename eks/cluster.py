"""Cluster file as Kubernetes needs it: nodes, their GPUs and EFA cards, folders and `[eks]`, without a hostfile."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster.clusterfile import reader
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.instance_types import Hardware, hardware_of
from cluster.clusterfile.model import ClusterFile, EksSettings
from cluster.errors import ConfigError
from cluster.locate import existing_folder


@dataclass(frozen=True, kw_only=True)
class EksCluster:
    """Cluster on Kubernetes as its cluster file describes it. All of its nodes train: none of them is a master."""

    file: ClusterFile
    folder: Path
    instance_type: str
    """The nodes' type. If the file names several, the first, until the stack's outputs name the actual one."""
    instance: Hardware | None
    """The type's GPUs and cards; None for a type without GPUs that is not in our table."""
    other_types: tuple[str, ...] = ()
    """The file's further types, until the nodes' actual type is known."""

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.file.name

    @property
    def region(self) -> str:
        """The AWS region of its nodes."""
        return self.file.region

    @property
    def shared(self) -> str:
        """The path of the shared folder in every pod."""
        return self.file.shared

    @property
    def settings(self) -> EksSettings:
        """The fields of [eks]."""
        return self.file.eks

    @property
    def nodes(self) -> int:
        """How many nodes: as many as train on the bare cluster of this file."""
        return self.file.hosts

    @property
    def fsx_mount(self) -> str:
        """Where Lustre is mounted; "" without it."""
        return self.file.storage.fsx_mount if self.file.storage.fsx_gib or self.settings.fsx else ""

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
    return reader.read(path, lambda values: of_values(values, folder))


def of_type(cluster: EksCluster, kind: str) -> EksCluster:
    """Return the cluster with nodes of this type. Raises FieldError for a type with GPUs that we do not know."""
    return replace(cluster, instance_type=kind, instance=_instance(kind), other_types=())


def with_settings(cluster: EksCluster, **settings: Any) -> EksCluster:
    """Return the cluster with other values of these fields of [eks]."""
    return replace(cluster, file=replace(cluster.file, eks=replace(cluster.settings, **settings)))


def of_values(values: dict[str, Any], folder: Path) -> EksCluster:
    """Return the cluster that decoded TOML describes, its types checked.

    Raises FieldError for a value that cannot be used.
    """
    file = reader.parse(values)
    # The name becomes part of names and labels of Kubernetes objects.
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,39}[A-Za-z0-9]|[A-Za-z]", file.name):
        raise FieldError(
            "name", f"{file.name!r} does not fit Kubernetes", "use a letter, then up to 40 letters, digits and hyphens"
        )
    kind, *others = file.nodes.types
    return EksCluster(file=file, folder=folder, instance_type=kind, instance=_instance(kind), other_types=tuple(others))


def _instance(kind: str) -> Hardware | None:
    """Return what is known of an instance type; None for a type without GPUs that we do not know.

    Raises FieldError for an unknown type whose name says that it has GPUs.
    """
    known = hardware_of(kind)
    if known is None and kind[:1] in ("p", "g"):
        raise FieldError("nodes.instance_type", f"{kind!r} is not in our table of GPU instances", "choose another type")
    return known

"""Cluster files of which documents are rendered in tests: from the least that does to all that there is."""

from pathlib import Path
from typing import Any

from eks.cluster import EksCluster, of_values

IMAGE = {"image": "registry.example/dlami:1.2"}
EFS = {"efs": "fs-0123456789abcdef0"}
LUSTRE = {"fsx": "fs-0fedcba9876543210:abcdefgh"}
OPEN = {"allow_cidrs": ["203.0.113.7/32", "198.51.100.0/24"]}
LOCAL = {"local": "/mnt/k8s-disks/0"}
EFA_NODES = {"nodes": {"instance_type": "p4d.24xlarge", "workers": 3}}


def cluster(name: str = "training", *eks: dict[str, Any], **tables: Any) -> EksCluster:
    """The cluster of a file with these fields of [eks] beside image and EFS, and these other tables and fields."""
    own: dict[str, Any] = {**IMAGE, **EFS}
    for fields in eks:
        own |= fields
    return of_values({"name": name, "eks": own, **tables}, Path())


VARIANTS = {
    "least": cluster(),
    "cpu": cluster("cpu", nodes={"instance_type": "c5.large", "workers": 0}),
    "lustre": cluster("Team-A", LUSTRE, storage={"fsx_mount": "/lustre"}, shared="/shared"),
    "open": cluster("open", OPEN),
    "local": cluster("disks", LOCAL, {"namespace": "ml-1"}, **EFA_NODES),
    "china": cluster("china", LUSTRE, **EFA_NODES, region="cn-north-1"),
    "all": cluster("All", LUSTRE, OPEN, LOCAL, {"namespace": "123"}, **EFA_NODES, region="eu-south-1"),
}

"""The two Auto Scaling groups of a cluster, by the names that the template gives them."""

from cluster.clusterfile.model import ClusterFile


def group_names(file: ClusterFile) -> tuple[str, str]:
    """Return the names of the master's group and of the workers' group."""
    return f"{file.name}-master", f"{file.name}-workers"

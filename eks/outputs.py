"""Values that a cluster file leaves to its stack, such as the EFS file system, read from the stack."""

from collections.abc import Mapping

from cluster.errors import ClusterError, ConfigError
from cluster.provider import provider, within
from eks.cluster import EksCluster, of_type, with_settings

_ANSWER_S = 60.0
# What the file leaves open, and the remedy.
_FILES = "eks.efs or eks.fsx is empty", "write them into cluster.toml, as efs = 'fs-0123456789abcdef0'"
_TYPE = "nodes.instance_type names several", "leave the one that the nodes have in cluster.toml"


def completed(cluster: EksCluster) -> EksCluster:
    """Return the cluster with its file systems and its nodes' type, from the file or else from its stack on EKS.

    Raises ConfigError if neither names them.
    """
    own = cluster.settings
    if own.efs and (own.fsx or not cluster.fsx_mount):
        return with_type(cluster)
    told = _asked(cluster, _FILES, *([_TYPE] if cluster.other_types else []))
    lustre = ":".join(told[name] for name in ("FastFileSystem", "FastName") if name in told)
    fsx = own.fsx or (lustre if cluster.fsx_mount else "")
    found = with_settings(cluster, efs=own.efs or told.get("FileSystem", ""), fsx=fsx)
    return of_type(found, told["InstanceType"]) if cluster.other_types else found


def with_type(cluster: EksCluster) -> EksCluster:
    """Return the cluster with its nodes' actual type.

    If the file names several, it is the one for which the stack found capacity. Raises ConfigError if there is no stack
    then.
    """
    return of_type(cluster, _asked(cluster, _TYPE)["InstanceType"]) if cluster.other_types else cluster


def _asked(cluster: EksCluster, *lacking: tuple[str, str]) -> Mapping[str, str]:
    """Return the stack's outputs.

    lacking: for each value, why it is needed and what the file may state instead. Raises ConfigError.
    """
    try:
        answer = within(_ANSWER_S, lambda: provider().outputs(f"{cluster.region}/{cluster.file.eks_stack}"))
    except ClusterError as e:
        raise _without(str(e), lacking) from None
    if not answer:
        raise _without(f"there is no cluster {cluster.name} on EKS in {cluster.region}", lacking)
    return answer


def _without(why: str, lacking: tuple[tuple[str, str], ...]) -> ConfigError:
    what, instead = (" and ".join(words) for words in zip(*lacking, strict=True))
    return ConfigError(f"{what}, and the stack could not be asked for its own: {why}; {instead}")

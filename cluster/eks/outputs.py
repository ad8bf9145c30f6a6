"""What a cluster file leaves to its stack, such as the EFS file system, asked of the stack by a process of its own."""

import dataclasses
import json
import subprocess
import sys

from cluster.eks.cluster import EksCluster
from cluster.errors import ConfigError
from cluster.inventory import ROOT

_ANSWER_S = 60.0


def completed(cluster: EksCluster) -> EksCluster:
    """The cluster with its file systems: the file's own, or those of its stack on EKS.

    Raises ConfigError where neither names them.
    """
    own = cluster.settings
    if own.efs and (own.fsx or not cluster.fsx_mount):
        return cluster
    told = _asked(cluster)
    fsx = own.fsx or ":".join(told[name] for name in ("FastFileSystem", "FastName") if name in told)
    settings = dataclasses.replace(own, efs=own.efs or told.get("FileSystem", ""), fsx=fsx)
    return dataclasses.replace(cluster, settings=settings)


def _asked(cluster: EksCluster) -> dict[str, str]:
    """The outputs of the stack: of another package, which this one may not import, and of AWS."""
    words = [sys.executable, "-m", "cfn.eks.outputs", cluster.region, cluster.name]
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=_ANSWER_S, errors="replace")
    except subprocess.TimeoutExpired:
        raise ConfigError(_without(f"AWS gave no answer within {_ANSWER_S:g} s")) from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise ConfigError(_without(said[-1]))
    answer: dict[str, str] = json.loads(done.stdout)
    if not answer:
        raise ConfigError(_without(f"there is no cluster {cluster.name} on EKS in {cluster.region}"))
    return answer


def _without(why: str) -> str:
    return (
        f"eks.efs or eks.fsx is empty, and the stack could not be asked for its own: {why}; "
        "write them into cluster.toml, as efs = 'fs-0123456789abcdef0'"
    )

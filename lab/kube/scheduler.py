"""Scheduler of pods: selects the node with the fewest pods that no anti-affinity rules out, and ignores all else."""

from collections.abc import Mapping, Sequence

from lab.kube.kinds import Document
from lab.kube.selectors import has_labels

_HOST = "kubernetes.io/hostname"  # each node is one


def node_for(pod: Document, nodes: Sequence[str], others: Sequence[Document]) -> str:
    """Return the name of the pod's node; "" if none fits.

    Args:
        others: the pods that run, or end, on nodes.
    """
    by_node: Mapping[str, list[Document]] = {name: [] for name in nodes}
    for other in others:
        by_node.get(other["spec"].get("nodeName", ""), []).append(other)
    free = [name for name in nodes if not any(_apart(pod, o) or _apart(o, pod) for o in by_node[name])]
    return min(free, key=lambda name: len(by_node[name]), default="")


def _apart(pod: Document, other: Document) -> bool:
    """Return True if the first pod refuses a node that has the other."""
    affinity = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or []
    same_space = pod["metadata"]["namespace"] == other["metadata"]["namespace"]
    return same_space and any(
        t["topologyKey"] == _HOST and has_labels(other, t["labelSelector"].get("matchLabels") or {}) for t in terms
    )

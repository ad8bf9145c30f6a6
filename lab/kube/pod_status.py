"""Status of a pod in the API: its phase, conditions and containers, as kubelet reports them."""

from collections.abc import Sequence

from lab.kube.api_errors import Refusal
from lab.kube.container import Container
from lab.kube.kinds import Document, kind
from lab.kube.store import now


def status_of(
    phase: str,
    containers: Sequence[Container],
    inits: Sequence[Container],
    place: tuple[str, str],
    why: tuple[str, str],
) -> Document:
    """Return the status without the times of its conditions.

    Args:
        place: addresses of the node and of the pod; the latter is empty before it has one.
        why: reason and message of a pod that could not be started.
    """
    is_ready = phase == "Running" and all(c.is_ready for c in containers)
    holds = {
        "PodScheduled": True,
        "Initialized": all(c.ended and c.ended["exitCode"] == 0 for c in inits),
        "ContainersReady": is_ready,
        "Ready": is_ready,
    }
    status: Document = {
        "phase": phase,
        "conditions": [{"type": k, "status": str(v)} for k, v in holds.items()],
        "hostIP": place[0],
        "containerStatuses": [c.status() for c in containers],
    }
    if place[1]:
        status |= {"podIP": place[1], "podIPs": [{"ip": place[1]}]}
    if inits:
        status["initContainerStatuses"] = [c.status() for c in inits]
    if why[0]:
        status |= {"reason": why[0], "message": why[1]}
    return status


def with_condition_times(pod: Document, uid: str, status: Document) -> Document:
    """Return the pod with this status and the time of each condition's last change.

    Raises Refusal if it is another pod.
    """
    if pod["metadata"]["uid"] != uid:
        raise Refusal.missing(kind("Pod"), pod["metadata"]["name"])
    old = pod.get("status") or {}
    before = {c["type"]: c for c in old.get("conditions", [])}
    conditions = []
    for condition in status["conditions"]:
        same = before.get(condition["type"], {})
        since = same["lastTransitionTime"] if same.get("status") == condition["status"] else now()
        conditions.append({**condition, "lastTransitionTime": since})
    return {**pod, "status": {**status, "conditions": conditions, "startTime": old.get("startTime", now())}}

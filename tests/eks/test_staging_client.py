"""What a staging's operator hears of its pods, by the real kubectl: also where one is on a node that does not answer."""

from typing import Any

import pytest

from cluster.ssh.onhost.frame import framed
from eks.kubectl import Kubectl
from eks.staging_client import INDEX, Watched, _look
from lab.kube.kinds import kind
from lab.kube.store import Store
from tests.eks.few_pods import FewPods

SPACE = "default"


def made(store: Store, name: str, index: int, phase: str, **state: Any) -> None:
    """A pod of a node, as its Job and its kubelet have it."""
    container = {"name": "stage", "image": "i"}
    meta = {"name": name, "labels": {INDEX: str(index)}}
    pod = store.create(kind("Pod"), SPACE, {"metadata": meta, "spec": {"nodeName": name, "containers": [container]}})
    status = {"phase": phase, "containerStatuses": [{"name": "stage", "state": state}]}
    store.change(kind("Pod"), SPACE, pod["metadata"]["name"], lambda found: {**found, "status": status})


@pytest.mark.parametrize(
    ("phase", "state", "said"),
    [("Running", "running", None), ("Failed", "terminated", "its container stage ended with 137")],
)
def test_a_log_that_nobody_can_read_ends_no_staging(
    operators_kubectl: None, store: Store, logs: FewPods, phase: str, state: str, said: str | None
) -> None:
    """The node of one pod is lost: what the other has said counts, and a third may bring what is missing."""
    result = {"files": 2, "bytes": 8, "skipped": 0, "seconds": 1.0, "objects": 2, "num_failed": 0}
    logs.file.write_bytes(framed({"result": result}))
    logs.runs.clear()
    made(store, "lost", 0, phase, **{state: {"exitCode": 137} if state == "terminated" else {}})
    made(store, "talker", 1, "Succeeded", terminated={"exitCode": 0})
    kubectl, watched = Kubectl("", SPACE), Watched()

    _look(kubectl, kubectl.get("pods"), watched)

    assert {**({0: said} if said else {}), 1: None} == {n: one.error for n, one in watched.staged.items()}

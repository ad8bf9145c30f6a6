"""Why a pod does not run, read from what Kubernetes says of it."""

from typing import Any

import pytest

from eks.waiting import HOPELESS, ended, has_begun, reason

UNSCHEDULED = {
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes\n are available"}
    ]
}
PULLING = {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}}}]}
CREATING = {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
RUNNING = {
    "containerStatuses": [{"state": {"running": {}}}],
    "conditions": [{"type": "PodScheduled", "status": "True"}],
}
ENDED = {"containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}


@pytest.mark.parametrize(
    ("status", "said", "begun"),
    [
        (UNSCHEDULED, ("Unschedulable", "0/2 nodes are available"), False),
        (PULLING, ("ImagePullBackOff", "Back-off pulling"), False),
        (CREATING, ("ContainerCreating", "ContainerCreating"), False),
        (RUNNING, ("", ""), True),
        (ENDED, ("", ""), True),
        ({}, ("", ""), False),
        (None, ("", ""), False),
    ],
)
def test_a_reason_is_read(status: Any, said: tuple[str, str], begun: bool) -> None:
    """One line each; what runs or has ended waits for nothing."""
    pod = {"metadata": {"name": "p"}, "status": status}
    assert (said, begun) == (reason(pod), has_begun(pod))
    assert (said[0] in HOPELESS) == (said[0] == "ImagePullBackOff")


def over(name: str, code: int, reason: str = "Error") -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason}}}


@pytest.mark.parametrize(
    ("status", "printed", "said"),
    [
        ({"containerStatuses": [over("stage", 1)]}, ["one", "the last", ""], "its container stage ended with 1; its last line: the last"),
        ({"containerStatuses": [over("stage", 137, "OOMKilled")]}, [], "its container stage ended with 137 (OOMKilled)"),
        ({"initContainerStatuses": [over("give", 1)], **CREATING}, [], "its container give ended with 1"),
        ({"initContainerStatuses": [over("give", 0, "Completed")], **PULLING}, [], "Back-off pulling"),
        ({"reason": "Evicted", "message": "The node was low on\n memory."}, [], "The node was low on memory."),
        ({}, [], "its pod ended without a word"),
    ],
)  # fmt: skip
def test_an_end_without_a_word_is_told(status: Any, printed: list[str], said: str) -> None:
    """The container that failed with its code and the last line of its log, or what Kubernetes says of the pod."""
    assert said == ended({"metadata": {"name": "p"}, "status": status}, printed)

"""Reasons why a pod does not run, read from Kubernetes: what it waits for, permanent errors, and how it ended."""

from collections.abc import Sequence

from eks.document import Document

# Reasons that stay until somebody changes something. Source: kubernetes/pkg/kubelet/images/types.go and container.
HOPELESS = frozenset(
    {"ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CrashLoopBackOff"}
)


def reason(pod: Document) -> tuple[str, str]:
    """Return Kubernetes' reason and message for a pod that waits. Both are empty for any other pod."""
    status = pod.get("status") or {}
    for one in status.get("containerStatuses") or ():
        if waits := one.get("state", {}).get("waiting"):
            return str(waits.get("reason", "")), _short(waits.get("message") or waits.get("reason", ""))
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("reason", "")), _short(condition.get("message", ""))
    return "", ""


def has_begun(pod: Document) -> bool:
    """Return True if a container of the pod runs or has run."""
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    return any({"running", "terminated"} & set(one.get("state", {})) for one in states)


def ended(pod: Document, printed: Sequence[str] = ()) -> str:
    """Return how a pod ended that has not reported it itself: a container's exit code, or why none ran.

    printed: the last lines of its log.
    """
    status = pod.get("status") or {}
    last = next((line.strip() for line in reversed(printed) if line.strip()), "")
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        how = one.get("state", {}).get("terminated") or {}
        if how.get("exitCode"):
            why = "" if how.get("reason", "Error") == "Error" else f" ({how['reason']})"
            said = f"; its last line: {_short(last)}" if last else ""
            return f"its container {one.get('name', '')} ended with {how['exitCode']}{why}{said}"
    return _short(status.get("message") or "") or reason(pod)[1] or "its pod ended without a word"


def _short(sentence: str) -> str:
    words = " ".join(sentence.split())
    return words if len(words) <= 300 else words[:299] + "…"

"""Controller of indexed Jobs: one pod per completion index, each index with its own retries."""

import copy
from collections.abc import Iterable, Sequence

from lab.kube.kinds import Document
from lab.kube.store import now, seconds_since

INDEX = "batch.kubernetes.io/job-completion-index"
VARIABLE = "JOB_COMPLETION_INDEX"  # a pod's own index, in its environment
_BACK_OFF_S, _BACK_OFF_MOST_S = 10.0, 600.0  # before an index's failed pod is replaced; doubled each time


class Indexes:
    """State of one Job's indexes: which have succeeded, which have failed for good, and how often each has failed."""

    def __init__(self, spec: Document) -> None:
        self._spec = spec
        self._succeeded: set[int] = set()
        self._given_up: set[int] = set()
        self._failures: dict[int, tuple[int, str]] = {}  # how many, and when the last was

    def count(self, pod: Document) -> None:
        """Record how a pod has ended."""
        index = index_of(pod)
        if pod["status"]["phase"] == "Succeeded":
            self._succeeded.add(index)
            return
        times = self._failures.get(index, (0, ""))[0] + 1
        self._failures[index] = times, now()
        limit = self._spec.get("backoffLimitPerIndex")
        if limit is not None and (times > limit or self._is_final(pod)):
            self._given_up.add(index)

    def to_start(self, live: Sequence[Document]) -> list[int]:
        """Return the indexes that need a pod now."""
        busy = {index_of(pod) for pod in live}
        room = self._spec["parallelism"] - len(live)
        free = (n for n in range(self._spec["completions"]) if n not in busy | self._succeeded | self._given_up)
        return [n for n in free if not self._is_backing_off(n)][: max(room, 0)]

    def failure(self) -> tuple[str, str] | None:
        """Return reason and message if the Job has failed because of its indexes, else None."""
        most = self._spec.get("maxFailedIndexes")
        if most is not None and len(self._given_up) > most:
            return "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
        if self._given_up and len(self._given_up | self._succeeded) == self._spec["completions"]:
            return "FailedIndexes", "Job has failed indexes"
        return None

    def status(self) -> Document:
        """Return the Job's status fields for its indexes."""
        given_up = {"failedIndexes": spans(self._given_up)} if "backoffLimitPerIndex" in self._spec else {}
        return {"completedIndexes": spans(self._succeeded), **given_up}

    def _is_final(self, pod: Document) -> bool:
        """Return True if the Job's failure policy rules out another try after this pod's failure."""
        codes = [
            s["state"].get("terminated", {}).get("exitCode", 0) for s in pod["status"].get("containerStatuses", [])
        ]
        for rule in (self._spec.get("podFailurePolicy") or {}).get("rules") or []:
            said = rule.get("onExitCodes") or {}
            values = said.get("values") or []
            if any(code and (code in values) == (said["operator"] == "In") for code in codes if said):
                return bool(rule["action"] == "FailIndex")
        return False

    def _is_backing_off(self, index: int) -> bool:
        times, at = self._failures.get(index, (0, ""))
        return bool(times) and seconds_since(at) < min(_BACK_OFF_S * 2 ** (times - 1), _BACK_OFF_MOST_S)


def index_of(pod: Document) -> int:
    """Return the pod's completion index."""
    return int(pod["metadata"]["annotations"][INDEX])


def numbered(job: Document, index: int) -> Document:
    """Return the Job's pod template with the index in its name, labels, annotations and environment."""
    template = copy.deepcopy(job["spec"]["template"])
    meta, spec = template.setdefault("metadata", {}), template["spec"]
    for marks in ("annotations", "labels"):
        meta.setdefault(marks, {})[INDEX] = str(index)
    name = f"{job['metadata']['name']}-{index}"
    meta["generateName"] = f"{name}-"
    spec["hostname"] = name
    own = {"name": VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}}
    for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
        container.setdefault("env", []).append(own)
    return dict(template)


def spans(indexes: Iterable[int]) -> str:
    """Return indexes in the form of a Job's status, such as `0,2-4`."""
    found: list[list[int]] = []
    for n in sorted(indexes):
        if found and found[-1][-1] == n - 1:
            found[-1] = [found[-1][0], n]
        else:
            found.append([n])
    return ",".join("-".join(map(str, span)) for span in found)

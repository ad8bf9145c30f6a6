"""What Kubernetes does with a Job whose pods have numbers: one pod for each number, each with tries of its own."""

import copy
from collections.abc import Iterable, Sequence

from cluster.lab.kube.kinds import Document
from cluster.lab.kube.store import now, seconds_since

INDEX = "batch.kubernetes.io/job-completion-index"
VARIABLE = "JOB_COMPLETION_INDEX"  # by which a pod knows its own
_BACK_OFF_S, _BACK_OFF_MOST_S = 10.0, 600.0  # until a number's failed pod has a successor: doubled each time


class Indexes:
    """The numbers of one Job: which have succeeded, which are given up, how often each has failed."""

    def __init__(self, spec: Document) -> None:
        self._spec = spec
        self._succeeded: set[int] = set()
        self._given_up: set[int] = set()
        self._failures: dict[int, tuple[int, str]] = {}  # how many, and when the last was

    def count(self, pod: Document) -> None:
        """Take in how a pod has ended."""
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
        """Numbers that are to have a pod now."""
        busy = {index_of(pod) for pod in live}
        room = self._spec["parallelism"] - len(live)
        free = (n for n in range(self._spec["completions"]) if n not in busy | self._succeeded | self._given_up)
        return [n for n in free if not self._is_backing_off(n)][: max(room, 0)]

    def failure(self) -> tuple[str, str] | None:
        """Reason and message if the Job has failed by its numbers."""
        most = self._spec.get("maxFailedIndexes")
        if most is not None and len(self._given_up) > most:
            return "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
        if self._given_up and len(self._given_up | self._succeeded) == self._spec["completions"]:
            return "FailedIndexes", "Job has failed indexes"
        return None

    def status(self) -> Document:
        """As the Job's status has them."""
        given_up = {"failedIndexes": spans(self._given_up)} if "backoffLimitPerIndex" in self._spec else {}
        return {"completedIndexes": spans(self._succeeded), **given_up}

    def _is_final(self, pod: Document) -> bool:
        """Whether the Job's rules say that another try would end as this one did."""
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
    """The pod's number."""
    return int(pod["metadata"]["annotations"][INDEX])


def numbered(job: Document, index: int) -> Document:
    """The Job's template of a pod, with the number's name and marks in it."""
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
    """Numbers as a Job's status writes them: `0,2-4`."""
    found: list[list[int]] = []
    for n in sorted(indexes):
        if found and found[-1][-1] == n - 1:
            found[-1] = [found[-1][0], n]
        else:
            found.append([n])
    return ",".join("-".join(map(str, span)) for span in found)

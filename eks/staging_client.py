"""Client of a staging Job on the operator's machine: creates it, waits for every pod's result, and deletes it."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.ssh.onhost.frame import MARK, Frames
from cluster.ssh.progress import StatusLine
from cluster.ssh.terminate import undisturbed
from cluster.stage.stage import Staged, how_it_went, lines, of_one_list, total_progress
from cluster.terminal import counted, print_json
from eks.cluster import EksCluster
from eks.document import Document
from eks.kubectl import Kubectl, KubectlError
from eks.prerequisites import require
from eks.staging import StagingJob
from eks.waiting import HOPELESS, ended, has_begun, reason

INDEX = "batch.kubernetes.io/job-completion-index"
_LOOK_S = 1.0
_AWAY_S = 120.0  # for an API server that does not answer to come back
_START_S = 900.0  # for the first pod to run: a node may have to come first
_LAST_LINES = 3  # of a pod's log: a frame is one


@dataclass
class Watched:
    """Progress and results of a staging so far."""

    at: dict[Host, tuple[int, int]] = field(default_factory=dict)  # bytes moved, and of how many
    staged: dict[int, Staged] = field(default_factory=dict)  # by the Job's index


def run_staging(cluster: EksCluster, job: StagingJob, *, as_json: bool) -> int:
    """Run a staging and print the result per node. Return the exit code.

    An interrupt ends the pods. Data that has arrived stays.
    """
    kubectl = Kubectl(cluster.settings.context, cluster.settings.namespace)
    documents = [*([job.environment] if job.environment else []), *job.documents]
    require(kubectl, cluster, documents)
    try:
        kubectl.create(documents)
        staged, pods = _follow(kubectl, job)
    finally:
        with undisturbed():
            _clear(kubectl, job)
    return _say(staged, {index: pod["metadata"]["name"] for index, pod in pods.items()}, as_json)


def _follow(kubectl: Kubectl, job: StagingJob) -> tuple[list[Staged], Mapping[int, Document]]:
    """Wait for the staging's end. Return the result of every index, and the last pod of each index that had one."""
    line, text, watched = StatusLine(), total_progress(time.monotonic()), Watched()
    began = heard = time.monotonic()
    try:
        while True:
            try:
                is_over = _is_over(kubectl.get("job", job.name))
                pods = kubectl.get("pods", selector=job.selector)
                _look(kubectl, pods, watched)
                heard = time.monotonic()
            except KubectlError:
                if time.monotonic() - heard > _AWAY_S:
                    raise
            else:
                if line.is_shown:
                    line.show(text(watched.at) if watched.at else _waits(pods, job))
                if is_over:
                    last = _newest(pods)
                    return of_one_list(
                        [watched.staged.get(n) or _nowhere(n, last.get(n)) for n in range(job.pods)]
                    ), last
                if not any(map(has_begun, pods)):
                    _give_up(pods, time.monotonic() - began)
            time.sleep(_LOOK_S)
    finally:
        line.clear()


def _look(kubectl: Kubectl, pods: Sequence[Document], watched: Watched) -> None:
    """Read the pods' new progress and results into `watched`."""
    for pod in _by_age(pods):
        index = _index(pod)
        if not has_begun(pod) or (index in watched.staged and not watched.staged[index].error):
            continue
        host, phase = _host(pod), pod["status"].get("phase")
        log = _log(kubectl, pod["metadata"]["name"], is_wanted=phase == "Succeeded")
        records = Frames().feed(log)
        for record in records:
            if "at" in record:
                watched.at[host] = (record["at"], record["of"])
        if phase in ("Succeeded", "Failed"):
            printed = [line.decode(errors="replace") for line in log.splitlines() if not line.startswith(MARK)]
            watched.staged[index] = how_it_went(host, records, ended(pod, printed))


def _log(kubectl: Kubectl, pod: str, *, is_wanted: bool) -> bytes:
    """Return the end of a pod's log; empty if kubectl fails, unless the log holds a result (`is_wanted`)."""
    try:
        return kubectl.tail(pod, _LAST_LINES).encode()
    except KubectlError:
        if is_wanted:
            raise
        return b""


def _nowhere(index: int, pod: Document | None) -> Staged:
    """Return the result of an index of which no pod's program ran."""
    if pod is None:
        return Staged(Host(rank=index, address=f"pod {index}", slots=1), "no pod of it ever ran", {})
    return Staged(_host(pod), ended(pod), {})


def _by_age(pods: Sequence[Document]) -> list[Document]:
    return sorted(pods, key=lambda one: str(one["metadata"].get("creationTimestamp", "")))


def _newest(pods: Sequence[Document]) -> dict[int, Document]:
    """Return the last pod of each index."""
    return {_index(pod): pod for pod in _by_age(pods)}


def _give_up(pods: Sequence[Document], waited_s: float) -> None:
    """Raise ClusterError if no pod can start without a change, or none has started in time."""
    said = [reason(pod) for pod in pods]
    hopeless = next((sentence for word, sentence in said if word in HOPELESS), "")
    if hopeless or waited_s > _START_S:
        why = hopeless or next((sentence for _, sentence in said if sentence), "no pod was made")
        raise ClusterError(f"no pod of it runs: {why}; nothing was staged")


def _is_over(jobs: Sequence[Document]) -> bool:
    """Return True if the Job has succeeded or failed, or has been deleted."""
    conditions = [c for job in jobs for c in job.get("status", {}).get("conditions") or ()]
    return not jobs or any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def _waits(pods: Sequence[Document], job: StagingJob) -> str:
    running = sum(map(has_begun, pods))
    why = next((sentence for _, sentence in map(reason, pods) if sentence), "")
    return f"{running} of {counted(job.pods, 'pod')} run{f'; {why}' if why else ''}"


def _index(pod: Document) -> int:
    metadata = pod["metadata"]
    return int({**metadata.get("annotations", {}), **metadata.get("labels", {})}.get(INDEX, "0"))


def _host(pod: Document) -> Host:
    """Return the pod's node, named as in a line of the report."""
    return Host(rank=_index(pod), address=pod.get("spec", {}).get("nodeName") or pod["metadata"]["name"], slots=1)


def _clear(kubectl: Kubectl, job: StagingJob) -> None:
    for kind, name in (("job", job.name), *([("secret", job.name)] if job.environment else [])):
        try:
            kubectl.delete(kind, name)
        except KubectlError as e:
            print(f"{kind} {name} stays: {e}", file=sys.stderr)


def _say(staged: Sequence[Staged], pods: Mapping[int, str], as_json: bool) -> int:
    failed = [one for one in staged if one.error]
    if as_json:
        for one in staged:
            print_json(_record(one, pods.get(one.host.rank)), one_line=True)
    else:
        print(lines(staged))
        if failed:
            again = "run it again: what arrived is not moved twice"
            named = ", ".join(pods[one.host.rank] for one in failed if one.host.rank in pods)
            print(
                f"{len(failed)} of {counted(len(staged), 'pod')} failed: {named or 'none ran'}; {again}",
                file=sys.stderr,
            )
    return 1 if failed else 0


def _record(one: Staged, pod: str | None) -> Mapping[str, Any]:
    return {"node": one.host.address, "index": one.host.rank, "pod": pod, "error": one.error, **one.said}

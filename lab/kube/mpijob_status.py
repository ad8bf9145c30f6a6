"""Status that mpi-operator 0.8 sets on an MPIJob, derived from its launcher Job and its pods.

Facts are from kubeflow/mpi-operator v0.8.2: pkg/controller/mpi_job_controller_status.go, and updateMPIJobStatus in
pkg/controller/mpi_job_controller.go.
"""

import copy
from collections.abc import Sequence

from lab.kube.kinds import Document

_MESSAGE = 1024  # of a condition, as of an event


def condition(status: Document, kind: str) -> Document | None:
    """Return the condition of this type; None if it was never set."""
    return next((c for c in status.get("conditions") or [] if c["type"] == kind), None)


def is_true(status: Document, kind: str) -> bool:
    """Return True if the condition has status True."""
    found = condition(status, kind)
    return found is not None and found["status"] == "True"


def is_finished(status: Document) -> bool:
    """Return True if the job has succeeded or failed."""
    return is_true(status, "Succeeded") or is_true(status, "Failed")


def with_condition(status: Document, kind: str, value: str, reason: str, message: str, now: str) -> Document:
    """Return the status with this condition. An equal type, value and reason leaves it unchanged."""
    old = condition(status, kind)
    if old and (old["status"], old["reason"]) == (value, reason):
        return status
    since = old["lastTransitionTime"] if old and old["status"] == value else now
    kept = []
    for c in status.get("conditions") or []:
        if c["type"] == kind or {c["type"], kind} == {"Running", "Restarting"}:
            continue
        ends = kind in ("Failed", "Succeeded") and c["type"] in ("Running", "Failed")
        kept.append({**c, "status": "False"} if ends else c)
    new = {
        "type": kind,
        "status": value,
        "lastUpdateTime": now,
        "lastTransitionTime": since,
        "reason": reason,
        "message": message,
    }
    return {**status, "conditions": [*kept, new]}


def status_of(
    job: Document, launcher: Document | None, launchers: Sequence[Document], workers: Sequence[Document], now: str
) -> Document:
    """Return the MPIJob's status.

    Args:
        job: with its defaults, and its previous status.
        launcher: the batch Job; None before it is created.
        launchers: the pods of that Job.
        workers: the worker pods.
        now: the time in the API's format.
    """
    status = copy.deepcopy(job.get("status") or {})
    name = f"{job['metadata']['namespace']}/{job['metadata']['name']}"
    is_suspended = bool(job["spec"]["runPolicy"].get("suspend"))
    status = _with_suspension(status, is_suspended, now)
    replicas: dict[str, Document] = {"Worker": _counts(workers)}
    if launcher is not None:
        status, replicas["Launcher"] = _with_launcher(status, name, launcher, launchers, now)
    evicted = [p for p in workers if _phase(p) == "Failed" and p["status"].get("reason") == "Evicted"]
    if evicted:
        said = f"{len(evicted)}/{len(workers)} workers are evicted"
        status = with_condition(status, "Failed", "True", "MPIJobEvicted", said, now)
    status["replicaStatuses"] = replicas
    runs = _running(launchers) and all(_phase(p) == "Running" for p in workers)
    return _with_running(status, name, is_suspended, bool(runs), now)


def _with_suspension(status: Document, is_suspended: bool, now: str) -> Document:
    if is_suspended:
        return with_condition(status, "Suspended", "True", "MPIJobSuspended", "MPIJob suspended", now)
    if not condition(status, "Suspended"):
        return status
    resumed = with_condition(status, "Suspended", "False", "MPIJobResumed", "MPIJob resumed", now)
    if resumed is not status:
        resumed["startTime"] = now
    return resumed


def _with_launcher(
    status: Document, name: str, launcher: Document, launchers: Sequence[Document], now: str
) -> tuple[Document, Document]:
    """Return the status with the outcome of the launcher's Job, and the launcher's counts."""
    done = launcher.get("status") or {}
    counts = {"failed": done.get("failed", 0)}
    if is_true(done, "Complete"):
        counts["succeeded"] = 1
        status.setdefault("completionTime", done.get("completionTime", now))
        said = f"MPIJob {name} successfully completed."
        status = with_condition(status, "Succeeded", "True", "MPIJobSucceeded", said, now)
    elif is_true(done, "Failed"):
        status.setdefault("completionTime", now)
        status = with_condition(status, "Failed", "True", *_failure(name, done, launchers), now)
    else:
        counts["active"] = len(_running(launchers))
    return status, {k: v for k, v in counts.items() if v}


def _with_running(status: Document, name: str, is_suspended: bool, runs: bool, now: str) -> Document:
    if is_suspended:
        return with_condition(status, "Running", "False", "MPIJobSuspended", f"MPIJob {name} is suspended.", now)
    if is_finished(status):
        if condition(status, "Running"):
            return status
        said = f"MPIJob {name} is finished but Running condition was never set."
        return with_condition(status, "Running", "False", "MPIJobRunning", said, status.get("completionTime", now))
    if runs:
        return with_condition(status, "Running", "True", "MPIJobRunning", f"MPIJob {name} is running.", now)
    return status


def _running(pods: Sequence[Document]) -> list[Document]:
    return [p for p in pods if _phase(p) == "Running"]


def _phase(pod: Document) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _counts(workers: Sequence[Document]) -> Document:
    names = {"Failed": "failed", "Succeeded": "succeeded", "Running": "active"}
    phases = [_phase(p) for p in workers]
    return {field: phases.count(phase) for phase, field in names.items() if phase in phases}


def _failure(name: str, done: Document, launchers: Sequence[Document]) -> tuple[str, str]:
    """Return reason and message of a failed MPIJob: those of the batch Job.

    If all retries are used, those of the last failed pod are appended.
    """
    why = condition(done, "Failed") or {}
    reason = why.get("reason") or "MPIJobFailed"
    message = why.get("message") or f"MPIJob {name} has failed"
    failed = [p for p in launchers if _phase(p) == "Failed"]
    if reason == "BackoffLimitExceeded" and failed:
        last = max(failed, key=lambda p: str(p["metadata"]["creationTimestamp"]))["status"]
        reason += f"/{last.get('reason', '')}"
        message += f": {last.get('message', '')}"
    return reason, message if len(message) <= _MESSAGE else message[: _MESSAGE - 3] + "..."

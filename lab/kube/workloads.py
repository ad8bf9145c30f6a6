"""Controllers of Jobs and Deployments: pods are created, counted and replaced, and the outcome is written."""

import copy
from collections.abc import Sequence

from lab.kube.indexed import Indexes, numbered
from lab.kube.kinds import Document, Kind, kind
from lab.kube.mpijob_status import is_true
from lab.kube.store import Store, now, seconds_since

_POD, _JOB, _DEPLOYMENT = kind("Pod"), kind("Job"), kind("Deployment")
_BACK_OFF_S, _BACK_OFF_MOST_S = 10.0, 600.0  # before a Job's failed pod is replaced; doubled each time


_COUNTED = "batch.kubernetes.io/job-tracking"  # finalizer: a Job's pod stays until its end is counted


class Workloads:
    """Controllers of Jobs and Deployments, with the time of each Job's last failed pod."""

    def __init__(self) -> None:
        self._failed_at: dict[str, str] = {}  # by the Job's uid
        self._indexes: dict[str, Indexes] = {}  # likewise, of those whose pods have numbers

    def sync(self, store: Store) -> None:
        """Run one pass over all Jobs and Deployments."""
        jobs = store.listed(_JOB)
        for job in jobs:
            self._sync_job(store, job)
        _let_orphans_go(store, {job["metadata"]["uid"] for job in jobs})
        for deployment in store.listed(_DEPLOYMENT):
            _sync_deployment(store, deployment)

    def _sync_job(self, store: Store, job: Document) -> None:
        spec, status = job["spec"], job.setdefault("status", {})
        if _is_over(store, job):
            return
        indexes = self._indexes_of(job)
        pods = pods_of(store, job)
        counts = {c: int(status.get(c, 0)) for c in ("succeeded", "failed")}
        for pod in pods:
            if _COUNTED in pod["metadata"].get("finalizers", []) and _has_ended(pod):
                counts["succeeded" if _phase(pod) == "Succeeded" else "failed"] += 1
                if _phase(pod) == "Failed":
                    self._failed_at[job["metadata"]["uid"]] = now()
                if indexes:
                    indexes.count(pod)
                _let_go(store, pod)
        live = [p for p in pods if not _has_ended(p)]
        if spec["suspend"]:
            _delete(store, live)
            _write_job(store, job, {**counts, "active": 0}, [])
            return
        status.setdefault("startTime", now())
        conditions: list[Document] = []
        if failure := _failure(spec, status, live, counts["failed"]) or (indexes.failure() if indexes else None):
            conditions = [_condition("FailureTarget", *failure), _condition("Failed", *failure)]
            _delete(store, live)
            live = []
        elif counts["succeeded"] >= spec["completions"]:
            said = ("CompletionsReached", "Reached expected number of succeeded pods")
            conditions = [_condition("SuccessCriteriaMet", *said), _condition("Complete", *said)]
            status["completionTime"] = now()
        elif indexes:
            live += [_make_pod(store, _JOB, job, numbered(job, n), [_COUNTED]) for n in indexes.to_start(live)]
        elif not self._is_backing_off(job, counts["failed"]):
            for _ in range(min(spec["parallelism"], spec["completions"] - counts["succeeded"]) - len(live)):
                live.append(_make_pod(store, _JOB, job, spec["template"], [_COUNTED]))
        ready = sum(is_true(p.get("status") or {}, "Ready") for p in live)
        told = indexes.status() if indexes else {}
        _write_job(store, job, {**counts, "active": len(live), "ready": ready, **told}, conditions)

    def _indexes_of(self, job: Document) -> Indexes | None:
        """Return the state of an indexed Job's indexes; None for any other Job."""
        if job["spec"]["completionMode"] != "Indexed":
            return None
        return self._indexes.setdefault(job["metadata"]["uid"], Indexes(job["spec"]))

    def _is_backing_off(self, job: Document, failed: int) -> bool:
        at = self._failed_at.get(job["metadata"]["uid"])
        wait_s = min(_BACK_OFF_S * 2 ** (failed - 1), _BACK_OFF_MOST_S) if failed else 0.0
        return at is not None and seconds_since(at) < wait_s


def pods_of(store: Store, owner: Document) -> list[Document]:
    """Return the pods that an object owns."""
    uid = owner["metadata"]["uid"]
    return [
        p
        for p in store.listed(_POD, owner["metadata"]["namespace"])
        if any(o["uid"] == uid for o in p["metadata"].get("ownerReferences") or [])
    ]


def _let_orphans_go(store: Store, jobs: set[str]) -> None:
    """Remove the finalizer of pods whose Job is gone, because no controller counts them any more."""
    for pod in store.listed(_POD):
        owners = {o["uid"] for o in pod["metadata"].get("ownerReferences") or []}
        if owners and not owners & jobs:
            _let_go(store, pod)


def _is_over(store: Store, job: Document) -> bool:
    """Return True if the Job has ended. The Job is removed once its ttlSecondsAfterFinished has passed."""
    spec, status, meta = job["spec"], job["status"], job["metadata"]
    ended = next((c for c in ("Complete", "Failed") if is_true(status, c)), "")
    if not ended:
        return False
    for pod in pods_of(store, job):
        if _has_ended(pod):
            _let_go(store, pod)
    at = next(c["lastTransitionTime"] for c in status["conditions"] if c["type"] == ended)
    ttl_s = spec.get("ttlSecondsAfterFinished")
    if ttl_s is not None and seconds_since(at) >= ttl_s:
        store.remove(_JOB, meta["namespace"], meta["name"])
    return True


def _failure(spec: Document, status: Document, live: list[Document], failed: int) -> tuple[str, str] | None:
    """Return reason and message if the Job must fail, else None."""
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and seconds_since(status["startTime"]) >= deadline:
        return "DeadlineExceeded", "Job was active longer than specified deadline"
    limit = spec["backoffLimit"]
    if spec["template"]["spec"]["restartPolicy"] == "OnFailure":
        # Kubelet starts its containers again in the same pod: those times count while the pod runs.
        times = [c.get("restartCount", 0) for p in live for c in (p.get("status") or {}).get("containerStatuses", [])]
        if sum(times) > 0 and sum(times) >= limit:
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    if failed > limit:
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    return None


def _sync_deployment(store: Store, deployment: Document) -> None:
    """Create pods by template and replicas. A changed template replaces all pods at once, without ReplicaSets."""
    spec, meta = deployment["spec"], deployment["metadata"]
    pods = [p for p in pods_of(store, deployment) if _phase(p) not in ("Succeeded", "Failed")]
    generation = str(meta["generation"])
    label = "pod-template-generation"
    stale = [p for p in pods if p["metadata"]["labels"].get(label) != generation]
    current = [p for p in pods if p not in stale and "deletionTimestamp" not in p["metadata"]]
    _delete(store, stale)
    _delete(store, current[spec["replicas"] :])
    for _ in range(spec["replicas"] - len(current)):
        template = copy.deepcopy(spec["template"])
        template["metadata"].setdefault("labels", {})[label] = generation
        _make_pod(store, _DEPLOYMENT, deployment, template)
    ready = sum(is_true(p.get("status") or {}, "Ready") for p in current)
    is_up = ready >= spec["replicas"]
    available = {"type": "Available", "status": str(is_up), "reason": "MinimumReplicasAvailable"}
    status = {
        "observedGeneration": meta["generation"],
        "replicas": len(current),
        "updatedReplicas": len(current),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": max(spec["replicas"] - ready, 0),
        "conditions": [available],
    }
    store.change(_DEPLOYMENT, meta["namespace"], meta["name"], lambda d: {**d, "status": status})


def _make_pod(
    store: Store, what: Kind, owner: Document, template: Document, finalizers: Sequence[str] = ()
) -> Document:
    meta = copy.deepcopy(template.get("metadata") or {})
    reference = {
        "apiVersion": what.api_version,
        "kind": what.name,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    meta = {"generateName": f"{owner['metadata']['name']}-", **meta, "ownerReferences": [reference]}
    if finalizers:
        meta["finalizers"] = list(finalizers)
    pod = {"metadata": meta, "spec": copy.deepcopy(template["spec"])}
    return store.create(_POD, owner["metadata"]["namespace"], pod)


def _write_job(store: Store, job: Document, numbers: Document, conditions: list[Document]) -> None:
    status = {k: v for k, v in job["status"].items() if k not in ("active", "ready", "succeeded", "failed")}
    status |= {k: v for k, v in numbers.items() if v or k == "ready"}
    if conditions:
        status["conditions"] = [*status.get("conditions", []), *conditions]
    meta = job["metadata"]
    store.change(_JOB, meta["namespace"], meta["name"], lambda d: {**d, "status": status})


def _condition(kind_: str, reason: str, message: str) -> Document:
    at = now()
    return {
        "type": kind_,
        "status": "True",
        "lastProbeTime": at,
        "lastTransitionTime": at,
        "reason": reason,
        "message": message,
    }


def _delete(store: Store, pods: list[Document]) -> None:
    for pod in pods:
        if "deletionTimestamp" not in pod["metadata"]:
            store.delete(_POD, pod["metadata"]["namespace"], pod["metadata"]["name"])


def _phase(pod: Document) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _has_ended(pod: Document) -> bool:
    return _phase(pod) in ("Succeeded", "Failed")


def _let_go(store: Store, pod: Document) -> None:
    """Remove the finalizer of a pod whose end is counted, so that it can be deleted."""
    meta = pod["metadata"]
    if _COUNTED in meta.get("finalizers", []):
        left = [f for f in meta["finalizers"] if f != _COUNTED]
        store.change(
            _POD, meta["namespace"], meta["name"], lambda d: {**d, "metadata": {**d["metadata"], "finalizers": left}}
        )

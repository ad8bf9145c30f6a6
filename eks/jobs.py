"""Trainings on Kubernetes, controlled from the operator's machine by kubectl: start, list, follow, stop."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from cluster.errors import ClusterError, ConfigError, NothingToDo
from eks.cluster import EksCluster
from eks.document import CLUSTER, JOB, Document, object_name
from eks.kubectl import Kubectl, KubectlError
from eks.mpijob import GRACE_S
from eks.prerequisites import require
from eks.progress import ask
from eks.waiting import has_begun, reason

KIND = "mpijobs.kubeflow.org"
_LOOK_S = 2.0
_AWAY_S = 120.0  # for an API server that does not answer to come back, while a job is followed
_GONE_S = GRACE_S + 60.0  # for all pods of a job to be gone
_STATES = {"Succeeded": "succeeded", "Failed": "failed", "Suspended": "suspended", "Running": "running"}


@dataclass(frozen=True, kw_only=True)
class EksJob:
    """State of a training, read from its MPIJob."""

    id: str
    state: str  # waiting, running, succeeded, failed, suspended
    nodes: int
    ready: int  # workers that run
    restarts: int  # failures of its launcher
    age_s: float
    why: str = ""  # of one that has failed

    @property
    def is_over(self) -> bool:
        """True if the job has succeeded or failed."""
        return self.state in ("succeeded", "failed")


def still_there(pods: list[Document]) -> list[Document]:
    """Return those pods that may still run something. Ended pods stay listed until Kubernetes removes them."""
    return [p for p in pods if p.get("status", {}).get("phase") not in ("Succeeded", "Failed")]


def job_of(mpijob: Document, now: float) -> EksJob:
    """Return the state of the job that an MPIJob describes.

    Args:
        now: seconds since the epoch, for the job's age.
    """
    status, meta = mpijob.get("status") or {}, mpijob["metadata"]
    conditions = {c["type"]: c for c in status.get("conditions", ()) if c.get("status") == "True"}
    kind = next((k for k in _STATES if k in conditions), "")
    replicas = status.get("replicaStatuses") or {}
    created = datetime.fromisoformat(meta["creationTimestamp"]) if "creationTimestamp" in meta else None
    return EksJob(
        id=meta["name"],
        state=_STATES.get(kind, "waiting"),
        nodes=mpijob["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"],
        ready=(replicas.get("Worker") or {}).get("active", 0),
        restarts=(replicas.get("Launcher") or {}).get("failed", 0),
        age_s=max(0.0, now - created.timestamp()) if created else 0.0,
        why=" ".join(str(conditions[kind].get("message", "")).split()) if kind == "Failed" else "",
    )


class EksJobs:
    """Trainings of one cluster, controlled by kubectl."""

    def __init__(self, cluster: EksCluster) -> None:
        self._cluster = cluster
        self._kubectl = Kubectl(cluster.settings.context, cluster.settings.namespace)

    def start(self, mpijob: Document, secrets: Sequence[Document] = ()) -> None:
        """Create an MPIJob, and Secrets that Kubernetes deletes with it.

        An ended job of the same name is deleted first. Raises ConfigError if a prerequisite is missing, or if a job of
        this name has not ended.
        """
        name = mpijob["metadata"]["name"]
        require(self._kubectl, self._cluster, [mpijob, *secrets])
        if before := self._find(name):
            if not before.is_over:
                raise ConfigError(f"{name} is {before.state}: 'inv eks.jobs.stop {name}' first")
            self._kubectl.delete(KIND, name, wait_s=60)
            self._await_gone(name)
        made = self._kubectl.create([mpijob])[0]
        owner = {"apiVersion": made["apiVersion"], "kind": made["kind"], "name": name, "uid": made["metadata"]["uid"]}
        owned = [{**s, "metadata": {**s["metadata"], "ownerReferences": [owner]}} for s in secrets]
        try:
            if owned:
                self._kubectl.create(owned)
        except BaseException:
            self._kubectl.delete(KIND, name)
            raise

    def list(self) -> list[EksJob]:
        """Return all jobs that Kubernetes still knows, the oldest first."""
        found = self._kubectl.get(KIND, selector=f"{CLUSTER}={object_name(self._cluster.name)}")
        return sorted((job_of(one, time.time()) for one in found), key=lambda job: -job.age_s)

    def find(self, which: str) -> EksJob:
        """Return the job with this id or an unambiguous part of it; `last` is the youngest. Raises ConfigError."""
        known = self.list()
        found = known[-1:] if which == "last" else [j for j in known if j.id == which]
        found = found or [j for j in known if which in j.id]
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigError(f"{which!r} could be any of {', '.join(j.id for j in found)}: give more of it")
        raise ConfigError(
            f"no job {which!r} in Kubernetes: see 'inv eks.jobs.list'; of one that was stopped or removed there the "
            f"folder stays in {self._cluster.shared}/jobs"
        )

    @property
    def kubectl(self) -> Kubectl:
        """Return the client of the namespace that has the jobs."""
        return self._kubectl

    def left_s(self) -> dict[str, float | None]:
        """Return the seconds until the last step of each running training, as its launcher estimates. None if unknown.

        Raises ClusterError if a launcher cannot be queried.
        """
        found: dict[str, float | None] = {}
        for job in self.list():
            pod = None if job.is_over else self._launcher(job.id)
            if pod and (pod.get("status") or {}).get("phase") == "Running":
                progress = ask(self._kubectl, pod["metadata"]["name"])
                found[job.id] = progress.left_s if progress else None
        return found

    def follow(self, name: str, *, raw: bool = False) -> int:
        """Print a job's console until the job ends, across restarts of its launcher.

        Return 0 if the job has succeeded, else 1. Raises ConfigError if the job is deleted meanwhile.
        """
        said, shown = "", ""
        for job in self._watched(name):
            if job.is_over and shown:
                return _ended(job)
            pod = self._launcher(name)
            if pod and has_begun(pod) and (which := _container(pod)) != shown:
                shown = which
                self._kubectl.logs(pod["metadata"]["name"], follow=not job.is_over, raw=raw)
            elif job.is_over:
                return _ended(job)
            elif (text := self._waits_for(job, pod)) != said:
                said = text
                print(text, file=sys.stderr, flush=True)
        raise ConfigError(f"{name} is not there any more: somebody has stopped it")

    def logs(self, name: str, *, follow: bool, raw: bool = False) -> int:
        """Print what the job's launcher has printed so far; with `follow`, until the job ends."""
        if follow:
            return self.follow(name, raw=raw)
        pod = self._launcher(name)
        if pod is None and self.find(name).is_over:
            raise NothingToDo(
                f"{name} has ended, and Kubernetes has removed its pods: {self._cluster.shared}/jobs/{name}/logs has "
                "what it said"
            )
        if pod is None or not has_begun(pod):
            raise NothingToDo(f"{name} has said nothing yet: {self._waits_for(self.find(name), pod)}")
        return self._kubectl.logs(pod["metadata"]["name"], raw=raw)

    def stop(self, name: str) -> None:
        """Delete the job and wait until its pods are gone. Its ranks save and leave.

        Raises ClusterError if pods stay.
        """
        self._kubectl.delete(KIND, name)
        self._await_gone(name)

    def _await_gone(self, name: str) -> None:
        deadline = time.monotonic() + _GONE_S
        while pods := still_there(self._kubectl.get("pods", selector=f"{JOB}={name}")):
            if time.monotonic() > deadline:
                names = ", ".join(p["metadata"]["name"] for p in pods)
                raise ClusterError(f"{name} is deleted, but pods of it stay: {names}; 'kubectl describe pod' says why")
            time.sleep(_LOOK_S)

    def _find(self, name: str) -> EksJob | None:
        found = self._kubectl.get(KIND, name)
        return job_of(found[0], time.time()) if found else None

    def _watched(self, name: str) -> Iterator[EksJob]:
        """Yield the job's state every few seconds while it exists.

        Tolerates an API server that is away for up to _AWAY_S.
        """
        heard = time.monotonic()
        while True:
            try:
                job = self._find(name)
                heard = time.monotonic()
            except KubectlError:
                if time.monotonic() - heard > _AWAY_S:
                    raise
            else:
                if job is None:
                    return
                yield job
            time.sleep(_LOOK_S)

    def _launcher(self, name: str) -> Document | None:
        """Return the job's newest launcher pod."""
        pods = self._kubectl.get("pods", selector=f"{JOB}={name},dlami/role=launcher")
        return max(pods, key=lambda p: str(p["metadata"].get("creationTimestamp", "")), default=None)

    def _waits_for(self, job: EksJob, launcher: Document | None) -> str:
        """Return one line that says why there is no console yet."""
        if launcher is not None:
            return f"its launcher starts: {': '.join(filter(None, reason(launcher))) or 'it is being scheduled'}"
        pods = self._kubectl.get("pods", selector=f"{JOB}={job.id},dlami/role=worker")
        waiting = {p["metadata"]["name"]: ": ".join(filter(None, reason(p))) for p in pods}
        first = next((f"; {name}: {why}" for name, why in waiting.items() if why), "")
        return f"{sum(_is_ready(p) for p in pods)} of {job.nodes} workers are ready{first}"


def _ended(job: EksJob) -> int:
    print(f"{job.id}: {job.state}{f': {job.why}' if job.why else ''}", file=sys.stderr, flush=True)
    return 0 if job.state == "succeeded" else 1


def _container(pod: Document) -> str:
    """Return a text that identifies one run of the pod's container."""
    states = (pod.get("status") or {}).get("containerStatuses") or [{}]
    return f"{pod['metadata']['name']} {states[0].get('containerID', '')} {states[0].get('restartCount', 0)}"


def _is_ready(pod: Document) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def table(jobs: Sequence[EksJob]) -> str:
    """Return the jobs as a table, one per line."""
    from cluster.jobs.client.show import duration

    if not jobs:
        return "no jobs"
    width = max(len(j.id) for j in jobs)
    lines = [f"{'job':<{width}}  state      nodes    age       launcher restarts"]
    for j in jobs:
        nodes = f"{j.nodes}" if j.is_over else f"{j.ready}/{j.nodes}"
        lines.append(f"{j.id:<{width}}  {j.state:<9}  {nodes:<7}  {duration(j.age_s):<8}  {j.restarts}")
    return "\n".join(lines)

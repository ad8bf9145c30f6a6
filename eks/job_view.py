"""One training on Kubernetes in detail: its MPIJob, its pods, and how far it is, for `inv eks.jobs.show`."""

import dataclasses
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.jobs.client.show import duration
from cluster.jobs.record import TrainingProgress
from eks.document import JOB, Document
from eks.job_spec import ORDER_VARIABLE, Order
from eks.jobs import KIND, EksJob, job_of
from eks.kubectl import Kubectl
from eks.progress import ask
from eks.waiting import ended, reason


@dataclass(frozen=True, kw_only=True)
class EksJobView:
    """Detailed view of one training."""

    job: EksJob
    folder: str
    command: str  # the trainer's module and words, or the program
    pods: Mapping[str, str]  # name -> phase, with what it waits for or how it ended
    progress: TrainingProgress | None = None  # None: no step yet, or no launcher answers
    trouble: str = ""  # why the progress is unknown

    def to_json(self) -> dict[str, Any]:
        """Return the view as JSON data."""
        return {**dataclasses.asdict(self.job), **{k: v for k, v in dataclasses.asdict(self).items() if k != "job"}}

    def __str__(self) -> str:
        job, p = self.job, self.progress
        parts = [f"step {p.step}"] if p else []
        parts += [f"{p.images_per_s:.1f} images/s"] if p and p.images_per_s is not None else []
        parts += [f"{duration(p.left_s)} left"] if p and p.left_s is not None else []
        rows = {
            "state": job.state + (f": {job.why}" if job.why else ""),
            "age": duration(job.age_s),
            "nodes": f"{job.ready} of {job.nodes} run" if not job.is_over else f"{job.nodes}",
            "launcher": f"its restarts: {job.restarts}" if job.restarts else "",
            "progress": ", ".join(parts) or self.trouble,
            "command": self.command,
            "folder": self.folder,
        }
        lines = [job.id, *(f"  {name:<9}  {value}" for name, value in rows.items() if value)]
        return "\n".join([*lines, *(f"  pod        {name}: {how}" for name, how in self.pods.items())])


def view(kubectl: Kubectl, name: str, shared: str) -> EksJobView:
    """Return the training in detail. Raises ClusterError."""
    (mpijob,) = kubectl.get(KIND, name)
    job, pods = job_of(mpijob, time.time()), kubectl.get("pods", selector=f"{JOB}={name}")
    progress, trouble = None, ""
    running = [p for p in pods if _phase(p) == "Running" and p["metadata"]["labels"].get("dlami/role") == "launcher"]
    if running and not job.is_over:
        try:
            progress = ask(kubectl, running[-1]["metadata"]["name"])
        except ClusterError as e:
            trouble = str(e)
    return EksJobView(
        job=job,
        folder=f"{shared}/jobs/{name}",
        command=_command(mpijob),
        pods={p["metadata"]["name"]: _how(p) for p in sorted(pods, key=lambda p: str(p["metadata"]["name"]))},
        progress=progress,
        trouble=trouble,
    )


def _command(mpijob: Document) -> str:
    """Return the words of the order that the launcher carries; "" for an MPIJob that our tasks did not create."""
    try:
        launcher = mpijob["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
        said = next(one["value"] for one in launcher["env"] if one["name"] == ORDER_VARIABLE)
        program = Order.from_json(said).spec.program
        return " ".join(filter(None, [program.trainer, shlex.join(program.words)]))
    except (ConfigError, LookupError, TypeError, ValueError, StopIteration):
        return ""


def _phase(pod: Document) -> str:
    return str((pod.get("status") or {}).get("phase", "Unknown"))


def _how(pod: Document) -> str:
    phase = _phase(pod)
    why = ": ".join(filter(None, reason(pod))) or (ended(pod) if phase == "Failed" else "")
    return f"{phase}, {why}" if why else phase

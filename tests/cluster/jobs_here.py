"""Jobs on this machine alone, with a shell script in mpirun's place: a real supervisor, and no lab."""

from collections.abc import Callable

from cluster.hosts import Host
from cluster.jobs.process import ProcessId
from cluster.jobs.record import Job, JobPaths
from cluster.jobs.status import read_status
from tests.cluster.flat_jobs import job_of
from tests.conftest import PATIENCE_S, wait_for

HERE = Host(rank=0, address="localhost", slots=1)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    wait_for(condition, timeout_s, what, look_s=0.02)


def a_job(script: str, job_id: str, **changes: object) -> Job:
    """A job whose mpirun is a shell script; its id is unique on this machine, for processes are ended by it."""
    fields = {
        "id": job_id,
        "name": "here",
        "command": ("python", "-m", "trainer.resnet50", "--job-dir", "x", "--synthetic"),
        "mpirun": ("sh", "-c", script),
        "np": 1,
        "hosts": (HERE,),
        "profile": "tcp",
        "revision": "none",
    }
    return job_of(**{**fields, **changes})


def ended(paths: JobPaths) -> None:
    wait_until(lambda: not read_status(paths).state.is_going, f"{paths.folder.name} ends")


def is_there(process: ProcessId) -> bool:
    return process.is_alive

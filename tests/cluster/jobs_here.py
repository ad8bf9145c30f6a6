"""Jobs on this machine alone, with a shell script in mpirun's place: a real supervisor, and no lab."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.hosts import Host
from cluster.inventory import Cluster, load_cluster
from cluster.jobs.claim import NAME_VARIABLE
from cluster.jobs.lookup import read_all
from cluster.jobs.process import ProcessId
from cluster.jobs.record import Job, JobPaths, now
from cluster.jobs.status import read_status
from cluster.jobs.sweep import sweep
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
        "environment": {},
        "versions": {},
        "revision": "none",
        "created": now(),
    }
    return Job(**{**fields, **changes})


def ended(paths: JobPaths) -> None:
    wait_until(lambda: not read_status(paths).state.is_going, f"{paths.folder.name} ends")


def is_there(process: ProcessId) -> bool:
    return process.is_alive


@pytest.fixture
def here(tmp_path: Path) -> Cluster:
    """This machine alone."""
    (tmp_path / "hosts").write_text("localhost slots=1\n")
    (tmp_path / "cluster.toml").write_text(f'shared = "{tmp_path}"\n')
    return load_cluster(str(tmp_path))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The jobs' folder; nothing of its jobs runs afterwards, or is in the way of another test's."""
    made = tmp_path / "jobs"
    monkeypatch.setenv(NAME_VARIABLE, f"dlami-{os.getpid()}-{tmp_path.name}"[:100])
    yield made
    for job, status in read_all(made).jobs:
        if status.supervisor and status.supervisor.is_alive and status.supervisor.pid != os.getpid():
            os.kill(status.supervisor.pid, signal.SIGTERM)
            wait_until(lambda one=status.supervisor: not one.is_alive, "its supervisor is gone")
        sweep(job.hosts, job.id, grace_s=1)


@pytest.fixture
def job_id(request: pytest.FixtureRequest) -> str:
    return f"here-{os.getpid()}-{abs(hash(request.node.name)) % 10**8}"

"""Fixtures of jobs, on a lab's hosts and on this machine alone."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import Cluster, load_cluster
from cluster.jobs.claim import NAME_VARIABLE
from cluster.jobs.cleanup import sweep
from cluster.jobs.client.client import Jobs
from cluster.jobs.records import read_all
from cluster.ssh.fanout import Reach
from tests.cluster.jobs_here import wait_until


@pytest.fixture
def jobs(reach: Reach, cluster: Cluster) -> Iterator[Any]:
    """The jobs of the lab's cluster; none goes on afterwards."""
    made = Jobs(reach, cluster)
    yield made
    for job in made.list().jobs:
        if job.state.holds_hosts:
            made.stop(job.id)


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

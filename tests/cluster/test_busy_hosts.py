"""What must not be disturbed is refused by the jobs' records too, on this machine, without a lab."""

import dataclasses
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ClusterError, ConfigError
from cluster.inventory import Cluster
from cluster.jobs.claim import NAME_VARIABLE
from cluster.jobs.process import this_process
from cluster.jobs.record import JobPaths, JobStatus, write_job
from cluster.jobs.state import JobState
from cluster.jobs.status import write_status
from cluster.kill.busy import refuse_busy
from cluster.ssh.fanout import Executor
from tests.cluster.jobs_here import a_job


def on_record(folder: Path, state: JobState, **supervisor: Any) -> JobPaths:
    paths = JobPaths(folder / "jobs/x")
    paths.folder.mkdir(parents=True)
    write_job(paths, a_job("exit 0", "x"))
    write_status(paths, JobStatus(state=state, supervisor=dataclasses.replace(this_process(), **supervisor)))
    paths.hostfile.write_text("localhost slots=1\n")
    return paths


@pytest.mark.parametrize(
    ("state", "supervisor", "is_damaged", "said"),
    [
        (JobState.RUNNING, {}, False, "x runs on localhost: why; wait, 'inv jobs.stop x', or take others"),
        (JobState.RUNNING, {"started": 0}, False, "x is lost, and may run on localhost: why; 'inv jobs.stop x', or"),
        (JobState.RUNNING, {}, True, "the record of x is damaged, and it may run on localhost: why; 'inv jobs.remove"),
        (JobState.FAILED, {}, True, "the record of x is damaged, and it may run on localhost: why; 'inv jobs.remove"),
    ],
)
def test_a_job_that_may_run_is_refused_by_its_record(
    here: Cluster, tmp_path: Path, state: JobState, supervisor: Any, is_damaged: bool, said: str
) -> None:
    """One that goes on, one whose ranks may, and one of which nobody knows."""
    paths = on_record(tmp_path, state, **supervisor)
    if is_damaged:
        paths.status.write_text('{"sta')
    with Executor(here) as reach, pytest.raises(ConfigError) as refused:
        refuse_busy(reach, here, here.hosts, "why")
    assert str(refused.value).startswith(said)


def test_a_master_that_does_not_tell_its_jobs_is_no_leave(here: Cluster, tmp_path: Path) -> None:
    """Nothing is done while nobody knows which jobs run."""
    (tmp_path / "jobs").write_text("")
    with (
        Executor(here) as reach,
        pytest.raises(ClusterError, match="cannot tell which jobs are running, so nothing was"),
    ):
        refuse_busy(reach, here, here.hosts, "why")


def test_a_claim_of_one_slot_is_enough_to_be_refused(here: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that shares the host, or a process that holds it and does not answer."""
    name = f"dlami-busy-{os.getpid()}"
    monkeypatch.setenv(NAME_VARIABLE, name)
    with Executor(here) as reach, socket.socket(socket.AF_UNIX) as other:
        assert {} == refuse_busy(reach, here, here.hosts, "why")
        other.bind(f"\0{name}.3")
        other.listen(1)
        with pytest.raises(ConfigError, match=rf"process {os.getpid()}, which does not say for which job.* localhost"):
            refuse_busy(reach, here, here.hosts, "why")

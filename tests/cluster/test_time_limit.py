"""A job's time limit, with a real supervisor and a shell script in mpirun's place."""

from pathlib import Path

import pytest

from cluster.inventory import Cluster
from cluster.jobs.client.resume import next_attempt
from cluster.jobs.master.submit import submit
from cluster.jobs.records import view
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status
from cluster.recovery.failure_kinds import FailureKind
from tests.cluster.jobs_here import HERE, a_job, ended

pytestmark = pytest.mark.slow  # a real supervisor, some seconds


def test_a_job_ends_once_its_attempts_have_used_up_its_time(folder: Path, job_id: str) -> None:
    """All of them together, though each alone is short; it is not retried, and goes on with a longer limit."""
    script = "trap 'exit 0' USR1; sleep 0.7 & wait; kill -9 $$"
    job = a_job(script, job_id, heal=True, attempts_per_hour=0, time_limit=3.0, whole_np=1, whole_hosts=(HERE,))
    paths = submit(folder, job)
    ended(paths)
    status = read_status(paths)

    assert (JobState.FAILED, FailureKind.STOPPED) == (status.state, status.ended_by), status.cause
    assert "its time limit of 0.05 minutes is used up" in status.cause
    assert f"inv jobs.resume {job_id} --time-limit" in status.cause
    here = Cluster(name="c", hosts=(HERE,), folder=Path(), shared="/s", project="/p")
    assert 7200.0 == next_attempt(view(paths), here, None, None, {"time_limit": 7200.0}).time_limit

"""Jobs on record."""

from typing import Any

from cluster.jobs.record import JobPaths, JobStatus, write_job
from cluster.jobs.state import JobState
from cluster.jobs.status import write_status
from tests.cluster.jobs_here import a_job


def on_record(folder: Any, job_id: Any, state: Any = JobState.FAILED, **changes: Any) -> Any:
    """A job's record, as a supervisor left it."""
    paths = JobPaths(folder / job_id)
    paths.folder.mkdir(parents=True)
    write_job(paths, a_job("exit 0", job_id, **changes))
    write_status(paths, JobStatus(state=state, started="2026-11-22T10:00:00+00:00", ended="2026-11-22T10:00:05+00:00"))
    return paths

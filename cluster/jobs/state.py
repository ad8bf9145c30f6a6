"""States of a job and what each of them allows. All other modules use these predicates."""

import enum


class JobState(enum.StrEnum):
    """State of a job, spelt as in its record."""

    QUEUED = "queued"  # the supervisor waits for its turn and its hosts
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    HEALING = "healing"  # between two attempts; the supervisor prepares the next
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"  # the supervisor is gone and did not record how the job ended

    @property
    def is_going(self) -> bool:
        """Return True if a supervisor runs the job."""
        return self in GOING

    @property
    def is_over(self) -> bool:
        """Return True if the job has ended and its supervisor recorded how."""
        return self in OVER

    @property
    def holds_hosts(self) -> bool:
        """Return True if its processes may be on its hosts. A lost job's ranks can outlive their supervisor."""
        return not self.is_over

    @property
    def may_resume(self) -> bool:
        """Return True if the next attempt may begin, once nothing is left of the last one."""
        return not self.is_going

    @property
    def is_bad(self) -> bool:
        """Return True if the job failed or is lost."""
        return self in (JobState.FAILED, JobState.LOST)


GOING = frozenset({JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.STOPPING, JobState.HEALING})
OVER = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED})

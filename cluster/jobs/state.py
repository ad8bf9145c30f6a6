"""The states of a job and what each of them allows; every other module asks here."""

import enum


class JobState(enum.StrEnum):
    """Where a job is in its life, spelt as its record spells it."""

    QUEUED = "queued"  # its supervisor waits for its turn and its hosts
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    HEALING = "healing"  # between two attempts, the next of which its supervisor prepares
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"  # its supervisor is gone without having said how it ended

    @property
    def is_going(self) -> bool:
        """A supervisor watches it."""
        return self in GOING

    @property
    def is_over(self) -> bool:
        """It has come to its end, and its supervisor said how."""
        return self in OVER

    @property
    def holds_hosts(self) -> bool:
        """Processes of it may be on its hosts: a lost job's ranks can outlive its supervisor."""
        return not self.is_over

    @property
    def may_resume(self) -> bool:
        """Its next attempt may begin, once nothing of the last one is left."""
        return not self.is_going

    @property
    def is_bad(self) -> bool:
        """It did not end as it was meant to."""
        return self in (JobState.FAILED, JobState.LOST)


GOING = frozenset({JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.STOPPING, JobState.HEALING})
OVER = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED})

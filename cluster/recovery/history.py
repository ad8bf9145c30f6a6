"""History of a job's attempts: `attempts.json` in the job's folder."""

import dataclasses
from dataclasses import dataclass

from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.preemption import PreemptionNotice


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """Record of one attempt. Times are seconds since 1970. None: not yet, or never."""

    number: int
    np: int
    hosts: tuple[str, ...]  # addresses
    began: float  # when the supervisor began with it: at its own start, or after clearing the attempt before
    waited_s: float = 0.0  # between `began` and `started`: waiting for a host, the shared folder, a limit on attempts
    gate_s: float = 0.0  # of the same time: checking hosts
    started: float | None = None  # when mpirun started
    first_step: int | None = None  # the first that was observed
    first_step_at: float | None = None
    step: int | None = None  # the last that was observed
    saved: bool = False  # it left a new checkpoint
    futile: int = 0  # attempts of its supervisor without progress, in a row before it
    alive_at: float | None = None  # the last sign of progress, a step or another
    step_at: float | None = None
    noticed: float | None = None  # when its end was noticed, or decided
    ended: float | None = None  # when mpirun ended
    cleared: float | None = None  # when nothing of it was left on its hosts
    what: FailureKind | None = None
    text: str = ""  # what ended it, in a line
    host: str = ""
    rank: int | None = None
    leaving: tuple[PreemptionNotice, ...] = ()  # the notices because of which it was ended
    then: str = ""  # what was done about it

    @property
    def is_over(self) -> bool:
        """Return True if the end of the attempt was recorded."""
        return self.what is not None


@dataclass(frozen=True, kw_only=True)
class History:
    """Attempts of a job, the oldest first."""

    attempts: tuple[AttemptRecord, ...] = ()
    boot: str = ""  # the master's boot in which it was written
    offset_s: float = 0.0  # added to that boot's monotonic clock, the clock that dates the last attempt

    def with_last(self, record: AttemptRecord) -> "History":
        """Return a copy with this record as its last attempt. It replaces a record of the same number."""
        kept = (a for a in self.attempts if a.number < record.number)
        return dataclasses.replace(self, attempts=(*kept, record))

    def now(self, boot: str, monotonic: float, wall: float) -> float:
        """Return the current time on the clock that dates the last attempt. The wall clock may have been set since."""
        return monotonic + self.offset_s if boot and boot == self.boot else wall

"""Every attempt that a job has had, as it went: `attempts.json` in the job's folder."""

import dataclasses
from dataclasses import dataclass

from cluster.healing.departure import Departure
from cluster.healing.ending import Ending


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """One attempt. Times are seconds since 1970; None: not yet, or never."""

    number: int
    np: int
    hosts: tuple[str, ...]  # addresses
    began: float  # when the supervisor turned to it: as it started itself, or once the attempt before was cleared away
    waited_s: float = 0.0  # of the time from then to mpirun's start: for a host, the shared folder, a bound
    gate_s: float = 0.0  # of that time: until its hosts had been looked at
    started: float | None = None  # mpirun
    first_step: int | None = None  # that was seen
    first_step_at: float | None = None
    step: int | None = None  # the last that was seen
    saved: bool = False  # it left a checkpoint that shows progress
    futile: int = 0  # attempts in a row before it that made none, of those of its supervisor
    alive_at: float | None = None  # the last sign that its ranks went on, a step or other
    step_at: float | None = None
    noticed: float | None = None  # that it was at its end, or was to be ended
    ended: float | None = None  # mpirun
    cleared: float | None = None  # nothing of it was left on its hosts
    what: Ending | None = None
    text: str = ""  # what ended it, in a line
    host: str = ""
    rank: int | None = None
    leaving: tuple[Departure, ...] = ()  # what hosts said for whose end it was ended
    then: str = ""  # what was done about it

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and somebody has seen it."""
        return self.what is not None


@dataclass(frozen=True, kw_only=True)
class History:
    """A job's attempts, the oldest first."""

    attempts: tuple[AttemptRecord, ...] = ()
    boot: str = ""  # the master's boot in which it was written
    offset_s: float = 0.0  # that boot's monotonic clock and this give the time that the last attempt is dated by

    def with_last(self, record: AttemptRecord) -> "History":
        """The same with this attempt in its place, as the last."""
        kept = (a for a in self.attempts if a.number < record.number)
        return dataclasses.replace(self, attempts=(*kept, record))

    def now(self, boot: str, monotonic: float, wall: float) -> float:
        """Return the time by which the last attempt is dated: the wall clock may have been set since."""
        return monotonic + self.offset_s if boot and boot == self.boot else wall

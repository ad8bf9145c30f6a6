"""How far an attempt is: by its ranks' beats, or by the lines of its metrics where ranks do not beat."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.jobs.steady_time import clock_set_by_s, steady_now

_LOOK_S = 2.0


class Beats(Protocol):
    """What is known of the ranks' beats."""

    def step(self) -> int | None:
        """How many steps are done; None of a program that does not beat."""

    def first_step(self) -> int | None:
        """How many steps were done after the first one of this attempt."""

    def first_step_at(self) -> float | None:
        """When the first step of this attempt was done, in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """How many steps were done, and when: seconds since 1970."""

    number: int
    at: float


class Steps:
    """The first and the last step of an attempt that began at this time."""

    def __init__(self, metrics: Callable[[], Sequence[Mapping[str, Any]]], since: float, beats: Beats) -> None:
        """metrics: reads their last lines; an OSError of it says that they cannot be read now."""
        self._metrics, self._since, self._beats = metrics, since, beats
        self._looked = 0.0
        self.first: Step | None = None
        self.last: Step | None = None

    def look(self) -> None:
        """Learn what is new; the metrics are not read each time."""
        done, first, first_at = self._beats.step(), self._beats.first_step(), self._beats.first_step_at()
        if done is not None:
            if done and first and first_at is not None and (self.last is None or done != self.last.number):
                self.last = Step(number=done, at=steady_now())
                self.first = self.first or Step(number=first, at=min(first_at, self.last.at))
        elif time.monotonic() - self._looked > _LOOK_S:
            self.read()

    def read(self) -> None:
        """Learn what the metrics say: of ranks that beat, what came after the last beat that was heard."""
        self._looked = time.monotonic()
        rows: Sequence[Mapping[str, Any]] = ()
        with contextlib.suppress(OSError):
            rows = self._metrics()
        for row in rows:
            step, at = row.get("step"), row.get("time")
            if row.get("kind") != "train" or not isinstance(step, int) or not isinstance(at, float | int):
                continue
            if (when := self._steady(float(at))) >= self._since:
                one = Step(number=step + 1, at=when)
                self.first = self.first or one
                if not self.last or one.number > self.last.number:
                    self.last = one

    def _steady(self, at: float) -> float:
        """Return when a line was written that a rank dated by its wall clock, which may have been set meanwhile."""
        before = at - clock_set_by_s()
        return before if before >= self._since else at

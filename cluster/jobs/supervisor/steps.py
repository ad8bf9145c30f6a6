"""Progress of an attempt in steps: by its ranks' heartbeats, or by its metrics if ranks send none."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.steady_time import clock_set_by_s, steady_now

_LOOK_S = 2.0


class Beats(Protocol):
    """Source of the ranks' heartbeats."""

    def step(self) -> int | None:
        """Return how many steps are done; None for a program that sends no heartbeats."""

    def first_step(self) -> int | None:
        """Return how many steps were done after the first one of this attempt."""

    def first_step_at(self) -> float | None:
        """Return when the first step of this attempt was done, in seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class StepCount:
    """Number of steps done, and when, in seconds since 1970."""

    number: int
    at: float


class Steps:
    """First and last step of an attempt that began at `since`."""

    def __init__(self, metrics: Callable[[], Sequence[Mapping[str, Any]]], since: float, beats: Beats) -> None:
        """Begin without a step.

        metrics: reads the last metrics records. An OSError from it means that they cannot be read now.
        """
        self._metrics, self._since, self._beats = metrics, since, beats
        self._looked = 0.0
        self.first: StepCount | None = None
        self.last: StepCount | None = None

    def look(self) -> None:
        """Update the steps from the heartbeats. Without heartbeats, read the metrics every 2 s."""
        done, first, first_at = self._beats.step(), self._beats.first_step(), self._beats.first_step_at()
        if done is not None:
            if done and first and first_at is not None and (self.last is None or done != self.last.number):
                self.last = StepCount(number=done, at=steady_now())
                self.first = self.first or StepCount(number=first, at=min(first_at, self.last.at))
        elif time.monotonic() - self._looked > _LOOK_S:
            self.read()

    def read(self) -> None:
        """Update the steps from the metrics. For ranks with heartbeats this adds the steps after the last heartbeat."""
        self._looked = time.monotonic()
        rows: Sequence[Mapping[str, Any]] = ()
        with contextlib.suppress(OSError):
            rows = self._metrics()
        for row in rows:
            step, at = row.get("step"), row.get("time")
            if row.get("kind") != "train" or not isinstance(step, int) or not isinstance(at, float | int):
                continue
            if (when := self._steady(float(at))) >= self._since:
                one = StepCount(number=step + 1, at=when)
                self.first = self.first or one
                if not self.last or one.number > self.last.number:
                    self.last = one

    def _steady(self, at: float) -> float:
        """Return the steady time of a metrics line, which a rank dated by a wall clock that may have been set since."""
        before = at - clock_set_by_s()
        return before if before >= self._since else at

"""Interval of the checkpoints by time: as short as possible, while saving takes at most a hundredth of the time."""

import time
from collections.abc import Callable

LEAST_S = 30.0  # minimum between two checkpoints, if saving costs next to nothing
SHARE = 0.01  # of the training time that saving may take


class CheckpointInterval:
    """Interval between checkpoints by time, adapted to what the last checkpoint cost.

    Args:
        seconds: between two checkpoints; None: adaptive; 0: none by time.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._asked, self._clock = seconds, clock
        self._cost_s = 0.0
        self._since = clock()

    @property
    def interval_s(self) -> float:
        """Return the seconds between two checkpoints; 0: none by time."""
        return max(LEAST_S, self._cost_s / SHARE) if self._asked is None else self._asked

    @property
    def is_due(self) -> bool:
        """Return True if the interval has passed since the last checkpoint, or since the start."""
        return bool(self.interval_s) and self._clock() - self._since >= self.interval_s

    def begin(self) -> None:
        """Restart the interval: the present state is on disk, or soon will be."""
        self._since = self._clock()

    def learn(self, cost_s: float) -> None:
        """Record the seconds by which the last checkpoint delayed the training."""
        self._cost_s = cost_s

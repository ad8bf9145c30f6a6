"""Clock of a rank's time, split into waiting for input, computing, and waiting for the other ranks."""

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """Mean times per step of one rank, in seconds.

    GPUs execute kernels from a queue. PyTorch's times are the GPU's own. With TensorFlow `compute_s` ends when the last
    kernel is launched, and `reduce_s` when all have run.
    """

    input_s: float  # waiting for the next batch
    compute_s: float  # forward and backward
    reduce_s: float  # until all gradients are reduced: waiting for slower ranks and the network

    @property
    def own_s(self) -> float:
        """Return the time of the rank's own work, without waiting for the others."""
        return self.input_s + self.compute_s


@dataclass(frozen=True)
class Interval:
    """Speed and time split of a rank since its clock was last read."""

    images_per_s: float
    input_wait: float  # share of the time
    times: Times


class Clock:
    """Clock that adds up the times of an interval's steps on this rank."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start an interval."""
        self._since, self._images, self._steps = time.monotonic(), 0, 0
        self.waited_s, self.away_s, self._compute_s, self._reduce_s = 0.0, 0.0, 0.0, 0.0

    def waiting(self) -> "Stopwatch":
        """Return a context that measures a wait for input."""
        return Stopwatch(self, "waited_s")

    def paused(self) -> "Stopwatch":
        """Return a context whose time is excluded, because it is not training."""
        return Stopwatch(self, "away_s")

    def stepped(self, images: int, compute_s: float, reduce_s: float) -> None:
        """Count a step of so many images over all ranks."""
        self._images, self._steps = self._images + images, self._steps + 1
        self._compute_s, self._reduce_s = self._compute_s + compute_s, self._reduce_s + reduce_s

    def read(self) -> Interval:
        """Return the interval and start the next one."""
        taken = max(time.monotonic() - self._since - self.away_s, 1e-9)
        parts = (self.waited_s, self._compute_s, self._reduce_s)
        found = Interval(
            self._images / taken, self.waited_s / taken, Times(*(part / max(self._steps, 1) for part in parts))
        )
        self.restart()
        return found


class Stopwatch:
    """Context that adds its duration to one field of a clock."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        setattr(self._clock, self._name, getattr(self._clock, self._name) + time.monotonic() - self._began)

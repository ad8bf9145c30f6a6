"""Where a step's time goes, on each rank, and which ranks the others wait for."""

import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from trainer.resnet50.step import StepResult

SLOW = 1.3  # times the median of the ranks' own work
HOST_BYTES = 64  # of a host's name that travel


@dataclass(frozen=True)
class Times:
    """Means per step of one rank, in seconds.

    On a GPU kernels are queued: `compute_s` ends when the last is launched, `reduce_s` when all have run.
    """

    input_s: float  # waiting for the next batch
    compute_s: float  # forward and backward
    reduce_s: float  # then until all gradients are reduced: waiting for slower ranks, and what the network shows

    @property
    def own_s(self) -> float:
        """The rank's own work, without the others."""
        return self.input_s + self.compute_s


@dataclass(frozen=True)
class Interval:
    """What a clock saw since it was last read."""

    images_per_s: float
    input_wait: float  # share of the time
    times: Times


class Clock:
    """Adds up an interval's steps on this rank."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._since, self._images, self._steps = time.monotonic(), 0, 0
        self.waited_s, self.away_s, self._compute_s, self._reduce_s = 0.0, 0.0, 0.0, 0.0

    def waiting(self) -> "Stopwatch":
        """Measures a wait for input."""
        return Stopwatch(self, "waited_s")

    def paused(self) -> "Stopwatch":
        """Leaves out what is no training."""
        return Stopwatch(self, "away_s")

    def stepped(self, images: int, result: StepResult) -> None:
        """Counts a step."""
        self._images, self._steps = self._images + images, self._steps + 1
        self._compute_s, self._reduce_s = self._compute_s + result.compute_s, self._reduce_s + result.reduce_s

    def read(self) -> Interval:
        """The interval; the next begins."""
        taken = max(time.monotonic() - self._since - self.away_s, 1e-9)
        parts = (self.waited_s, self._compute_s, self._reduce_s)
        found = Interval(
            self._images / taken, self.waited_s / taken, Times(*(part / max(self._steps, 1) for part in parts))
        )
        self._clear()
        return found


class Stopwatch:
    """Adds the time inside a `with` to one field of a clock."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        setattr(self._clock, self._name, getattr(self._clock, self._name) + time.monotonic() - self._began)


def gather(times: Times) -> list[Times]:
    """Every rank's, in their order; all ranks must call it at the same step."""
    # Horovod: a few numbers, once per line of the table.
    everyone = hvd.allgather(tf.constant([astuple(times)], tf.float32), name="times").numpy()
    return [Times(*(float(x) for x in row)) for row in everyone]


def host_names() -> list[str]:
    """Every rank's host; all ranks must call it."""
    name = np.zeros(HOST_BYTES, np.uint8)
    own = socket.gethostname().encode()[:HOST_BYTES]
    name[: len(own)] = list(own)
    return [
        row.tobytes().rstrip(b"\0").decode(errors="replace")
        for row in hvd.allgather(tf.constant(name[None]), name="hosts").numpy()
    ]


def slow_ranks(everyone: Sequence[Times]) -> list[int]:
    """Ranks whose own work takes clearly longer than the median: all the others wait for them at every step."""
    usual = statistics.median(t.own_s for t in everyone)
    return [rank for rank, t in enumerate(everyone) if t.own_s > SLOW * usual]


def straggler_line(rank: int, host: str, everyone: Sequence[Times]) -> str:
    """One slow rank in a sentence."""
    own, usual = everyone[rank], statistics.median(t.own_s for t in everyone)
    cause = "input" if own.input_s > 0.5 * (own.own_s - usual) else "compute"
    return (
        f"slow: rank {rank} on {host} needs {own.own_s:.3f} s of its own per step, the median {usual:.3f} s ({cause})"
    )


def rank_values(everyone: Sequence[Times], batch: int) -> dict[str, list[float]]:
    """For the metrics: each rank's own speed in images/s, as if it never waited for the others, and its times."""
    return {
        "rank_images_per_s": [round(batch / max(t.own_s, 1e-9), 2) for t in everyone],
        "rank_input_s": [round(t.input_s, 5) for t in everyone],
        "rank_compute_s": [round(t.compute_s, 5) for t in everyone],
        "rank_reduce_s": [round(t.reduce_s, 5) for t in everyone],
    }


def mean_values(everyone: Sequence[Times]) -> dict[str, float]:
    """For the metrics: the breakdown, mean over the ranks, seconds per step."""
    return {name: statistics.fmean(getattr(t, name) for t in everyone) for name in ("input_s", "compute_s", "reduce_s")}

"""Interfaces that each framework implements for an attempt: the connected ranks, the learning network, its input."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trainer.common.ranks.horovod_rank import GatherBytes, Ranks
from trainer.resnet50.plan import RunPlan
from trainer.resnet50.reader import RecordReader
from trainer.resnet50.shards import Shards

Requests = tuple[float, float, float]
Batch = Any  # type that a source yields to its learner


@dataclass(frozen=True)
class StepResult:
    """Result of a step. All but the last three fields are alike on all ranks."""

    loss: float  # mean over the global batch
    accuracy: float  # top-1 on the global batch
    asked: float  # share of the ranks that were asked to stop
    terminated: float  # share of the ranks that received SIGTERM
    due: float  # share of the ranks that request a checkpoint
    skipped: float  # 1: gradients overflowed and the update was skipped
    own_loss: float  # this rank's
    compute_s: float  # this rank's forward and backward
    reduce_s: float  # from its last gradient until all are reduced


class Learner(Protocol):
    """Network with its optimizer's state, equal on all ranks at all times."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return copies of everything that a checkpoint must hold, by name."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each array, by name."""

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set all arrays."""

    def broadcast(self, rank: int = 0) -> None:
        """Copy this state from `rank` to all ranks. All ranks must call it."""

    def train(self, batch: Batch, lr: float, requests: Requests = (0.0, 0.0, 0.0), step: int = 0) -> Any:
        """Take one step. Its result, which `result` reads, may still be computed on the device.

        Args:
            requests: this rank's `StopRequest.numbers`, and whether it requests a checkpoint.
            step: its number; the moving average follows fast at first.
        """

    def result(self, pending: Any) -> StepResult:
        """Wait for a step and return its result."""

    def scores(self, batches: Iterable[Batch]) -> np.ndarray:
        """Return [4] float64 sums over this rank's batches: images, top-1 hits, top-5 hits, cross-entropy.

        If the weights have a moving average, that is what is evaluated.
        """

    def penalty(self) -> float:
        """Return the L2 term of the loss, weight decay x half the squared kernels."""

    @property
    def scale(self) -> float | None:
        """Return the factor of the loss during the backward pass; None without loss scaling."""


class BatchSource(Protocol):
    """Source of one rank's batches. Its iterators raise `InputError` for damaged data."""

    def training(self, plan: RunPlan, step: int) -> Iterator[Batch]:
        """Yield batches from this step to the plan's last one."""

    def validation(self) -> tuple[Iterable[Batch], RecordReader]:
        """Return this rank's validation images with labels, and the reader, which counts the examples it skipped."""


@dataclass(frozen=True)
class Engine:
    """Everything that an attempt needs from a framework."""

    version: str  # of the framework, for the log: "TF2.18.1"
    exchange: str  # library that reduces the gradients: "Horovod"
    ranks: Ranks
    gather: GatherBytes
    learner: Callable[[Any, int], Learner]  # arguments: its `Run`, number of classes
    source: Callable[[Any, int, Ranks, Shards], BatchSource]  # arguments: the same, ranks, shards
    begin: Callable[[Any, Any], str] | None = None  # loads a weights file into the learner


def moving_average_decay(decay: float, step: int) -> float:
    """Return the decay of the weights' moving average in this step: small at first, so that it follows fast.

    Source: tf.train.ExponentialMovingAverage with `num_updates`.
    """
    return min(decay, (1 + step) / (10 + step))

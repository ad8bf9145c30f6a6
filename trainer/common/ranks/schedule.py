"""Learning-rate schedules as pure functions of the step, for both trainers.

Formulas: the reference's train_imagenet_resnet_hvd.py; its printed tables are the tests.
"""

import bisect
import math
from dataclasses import dataclass

import numpy as np

POLY_END = 1e-5


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Parameters of the modes other than poly and cosine."""

    periods: float = 0.47  # linear_cosine: cosine periods over the decay
    alpha: float = 0.0  # linear_cosine: added to the linear factor
    beta: float = 1e-5  # linear_cosine: added to the product
    first_decay: float = 0.33  # cosine_decay_restarts: share of the decay that its first period takes
    t_mul: float = 2.0  # cosine_decay_restarts: each period as a multiple of the one before
    m_mul: float = 0.1  # cosine_decay_restarts: each peak as a multiple of the one before
    end: float = 0.0  # cosine_decay_restarts: lowest rate as a share of the peak
    boundaries: tuple[int, ...] = ()  # steps: the steps of the run at which the rate changes
    rates: tuple[float, ...] = ()  # steps: the rate from each boundary on


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning-rate schedule: warm-up, then decay."""

    mode: str  # one of MODES
    peak: float  # rate at the end of the warm-up
    steps: int  # of the whole run, warm-up included
    warmup_steps: int = 0
    warmup_start: float = 0.001
    shape: Shape = Shape()

    def __call__(self, step: float) -> float:
        """Return the rate of the step with this number. The first step is 0."""
        if step < self.warmup_steps:
            rising = self.warmup_start + (self.peak - self.warmup_start) * step / self.warmup_steps
            return min(rising, self._stepped(step)) if self.mode == "steps" else rising
        if self.mode == "steps":
            return self._stepped(step)
        length = self.steps - self.warmup_steps
        done = (step - self.warmup_steps) / length if length else 1.0
        return DECAYS[self.mode](self, done if self.mode == "poly_cycle" else min(done, 1.0))

    def _stepped(self, step: float) -> float:
        """Return the piecewise constant rate of the raw step.

        A boundary still has the rate before it, as in TensorFlow.
        """
        passed = bisect.bisect_left(self.shape.boundaries, step)
        return (self.peak, *self.shape.rates)[passed]


def _poly(schedule: Schedule, done: float) -> float:
    # In single precision as the reference's: its printed 3.13600 is 3.1360051 in exact arithmetic.
    peak, end, left = np.float32(schedule.peak), np.float32(POLY_END), np.float32(1) - np.float32(done)
    return float((peak - end) * left * left + end)


def _poly_cycle(schedule: Schedule, done: float) -> float:
    """Return poly's rate until the run's end. Beyond it the decay starts again, over 2, 3, … times its length."""
    return _poly(schedule, done / max(1, math.ceil(done)))


def _linear_cosine(schedule: Schedule, done: float) -> float:
    shape = schedule.shape
    cosine = 0.5 * (1 + math.cos(2 * math.pi * shape.periods * done))
    return schedule.peak * ((shape.alpha + 1 - done) * cosine + shape.beta)


def _cosine(schedule: Schedule, done: float) -> float:
    return schedule.peak * 0.5 * (1 + math.cos(math.pi * done))


def _cosine_restarts(schedule: Schedule, done: float) -> float:
    """Return the rate with warm restarts. Source: Loshchilov and Hutter, arXiv:1608.03983."""
    shape = schedule.shape
    left, length, factor = done, shape.first_decay, 1.0
    while left > length * (1 - 1e-9):  # tolerance, so that rounding does not move a period's first step
        left, length, factor = left - length, length * shape.t_mul, factor * shape.m_mul
    cosine = 0.5 * factor * (1 + math.cos(math.pi * left / length))
    return schedule.peak * ((1 - shape.end) * cosine + shape.end)


def _constant(schedule: Schedule, done: float) -> float:
    return schedule.peak


DECAYS = {
    "poly": _poly,
    "poly_cycle": _poly_cycle,
    "linear_cosine": _linear_cosine,
    "cosine": _cosine,
    "cosine_decay_restarts": _cosine_restarts,
    "constant": _constant,
}
MODES = (*DECAYS, "steps")


def scaled_rate(global_batch: int, base: float = 0.1, per: int = 256) -> float:
    """Return the peak rate of linear scaling: 0.1 for each 256 images. Source: Goyal et al., arXiv:1706.02677."""
    return base * global_batch / per

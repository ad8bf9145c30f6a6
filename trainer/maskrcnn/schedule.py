"""How long a run is and how fast it learns, from ranks and images per rank. No TensorFlow."""

import math
from dataclasses import dataclass

from trainer.errors import ConfigError
from trainer.maskrcnn.config import Config, TrainConfig

REFERENCE_BATCH = 8
"""Images per step that BASE_LR, WARMUP_INIT_LR and LR_SCHEDULE are given for."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The whole run, in steps of `images_per_step` images over all ranks."""

    images_per_step: int
    steps_per_epoch: int
    """Steps in one period of EVAL_PERIOD and CHECKPOINT_PERIOD."""
    total_steps: int
    warmup_steps: int
    warmup_lr: float
    drops: tuple[tuple[int, float], ...]
    """(step, learning rate from there on), the first at step 0."""

    def learning_rate(self, step: int) -> float:
        """The rate of the step that is about to be taken, counted from 0."""
        rate = [lr for first, lr in self.drops if first <= step][-1]
        if step < self.warmup_steps:
            full = self.drops[0][1]
            return min(rate, self.warmup_lr + (full - self.warmup_lr) * step / self.warmup_steps)
        return rate


def make_schedule(config: Config, *, ranks: int, num_images: int) -> Schedule:
    """The run's steps and rates; linear scaling with the images per step (arXiv:1706.02677).

    Raises:
        ConfigError: an evaluation or checkpoint period, or a warm-up, that the run would never reach.
    """
    train = config.train
    images_per_step = ranks * train.batch_size_per_gpu
    scale = images_per_step / REFERENCE_BATCH
    full_rate = train.base_lr * scale
    pass_steps = math.ceil(num_images / images_per_step)
    drops, end = _in_steps(train, pass_steps, scale)
    total = min(end, train.max_steps) if train.max_steps else end
    schedule = Schedule(
        images_per_step=images_per_step,
        steps_per_epoch=train.steps_per_epoch or pass_steps,
        total_steps=total,
        warmup_steps=train.warmup,
        warmup_lr=min(train.warmup_init_lr * scale, full_rate),
        drops=((0, full_rate), *((step, full_rate * factor) for step, factor in drops)),
    )
    _refuse_never(train, schedule)
    return schedule


def reference_steps(name: str) -> tuple[int, ...]:
    """Drops and end of '1x', '2x', ... for 8 images per step: kx ends at k x 180k and drops 120k and 40k before it."""
    times = int(name.removesuffix("x"))
    if times == 1:
        return 120_000, 160_000, 180_000  # the published 1x keeps a longer first part than the rule gives
    return 180_000 * times - 120_000, 180_000 * times - 40_000, 180_000 * times


def _in_steps(train: TrainConfig, pass_steps: int, scale: float) -> tuple[list[tuple[int, float]], int]:
    """Drops as (step, factor), and the step that ends the run."""
    if train.lr_epoch_schedule:
        steps = [math.ceil(epoch * pass_steps) for epoch, _ in train.lr_epoch_schedule]
        factors = [factor for _, factor in train.lr_epoch_schedule[:-1] if factor is not None]
        return list(zip(steps[:-1], factors, strict=True)), steps[-1]
    reference = reference_steps(train.lr_schedule) if isinstance(train.lr_schedule, str) else train.lr_schedule
    steps = [math.ceil(step / scale) for step in reference]
    return [(step, 0.1 ** (i + 1)) for i, step in enumerate(steps[:-1])], steps[-1]


def _refuse_never(train: TrainConfig, schedule: Schedule) -> None:
    total, per_epoch = schedule.total_steps, schedule.steps_per_epoch
    for key, period in (("EVAL_PERIOD", train.eval_period), ("CHECKPOINT_PERIOD", train.checkpoint_period)):
        if period * per_epoch > total:
            raise ConfigError(
                f"TRAIN.{key}={period} would never happen: {period} x {per_epoch} steps are more "
                f"than the run's {total}; give at most {total // per_epoch}"
                + (" or lower TRAIN.STEPS_PER_EPOCH" if total < per_epoch else "")
            )
    if schedule.warmup_steps >= total:
        raise ConfigError(
            f"TRAIN.WARMUP={schedule.warmup_steps} steps do not fit in a run of {total}: "
            "give a shorter warm-up or a longer schedule"
        )

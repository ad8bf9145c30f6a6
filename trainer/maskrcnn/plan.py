"""Plan of a run, from settings, ranks and annotations. Finds all errors it can before TensorFlow is loaded."""

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trainer.coco.annotations import AnnotatedImage, CocoSet, read_set
from trainer.coco.categories import check_categories, check_order
from trainer.coco.listing import check_files
from trainer.coco.losses import MOST_LEFT_OUT, check_share, losses
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.data.sampler import BEGINNING, DataPosition
from trainer.common.files.errors import ConfigError, mpi_rank
from trainer.common.files.plural import counted
from trainer.common.ranks.batch_split import Origin, change_text, share
from trainer.common.ranks.schedule import Schedule, Shape
from trainer.maskrcnn import keys
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.config_training import TrainConfig
from trainer.maskrcnn.loader import training_pictures
from trainer.maskrcnn.overlays import check_ranks
from trainer.maskrcnn.resume import DetectorPosition, check_job_dir, read_settings

REFERENCE_BATCH = 8
"""Images per step to which BASE_LR, WARMUP_INIT_LR and LR_SCHEDULE refer."""


@dataclass(frozen=True, kw_only=True)
class DetectorPlan:
    """Checked plan of a run."""

    config: Config
    """Complete configuration, with the categories."""
    job_dir: Path | None
    load: Path | None
    """COCO-trained weights to start from, given by --load."""
    pictures: tuple[AnnotatedImage, ...]
    """Training pictures."""
    validation: CocoSet
    ranks: int
    origin_ranks: int
    """Ranks of the job's first attempt. Its images per step stay if this attempt's ranks can share them equally."""
    schedule: Schedule
    """Schedule of the whole job, in steps of its first attempt's images."""
    first_step: int = 0
    """First step of this attempt."""
    first: DataPosition = BEGINNING
    """Its first place in the data order."""
    before: int = 0
    """Ranks of the previous attempt."""
    left_out: tuple[str, ...] = ()
    """Objects left out of training or evaluation, and why: one sentence for each rule and set."""
    begins_anew: bool = False
    """Allowed to start from scratch despite unreadable checkpoints."""

    @property
    def parts(self) -> int:
        """Return the micro-steps of each rank in a step, each with BATCH_SIZE_PER_GPU images."""
        shared = share(self.origin_ranks, self.ranks, 1)
        return shared.parts if shared else 1

    @property
    def width(self) -> int:
        """Return the groups of BATCH_SIZE_PER_GPU images in a step over all ranks."""
        return self.ranks * self.parts

    @property
    def groups(self) -> int:
        """Return the groups of BATCH_SIZE_PER_GPU images in an epoch."""
        return math.ceil(len(self.pictures) / self.config.train.batch_size_per_gpu)

    @property
    def scale(self) -> float:
        """Return the ratio of the images per step to those of the job's first attempt."""
        return self.width / self.origin_ranks

    @property
    def images_per_step(self) -> int:
        """Return the images per step over all ranks."""
        return self.width * self.config.train.batch_size_per_gpu

    @property
    def change(self) -> str:
        """Return one line on how ranks and batch differ from the job's first attempt."""
        batch = self.config.train.batch_size_per_gpu
        origin = Origin(self.origin_ranks * batch, self.origin_ranks)
        return change_text(origin, before=self.before, ranks=self.ranks, batch=self.images_per_step, parts=self.parts)

    @property
    def steps_per_epoch(self) -> int:
        """Return the steps in one period of EVAL_PERIOD and CHECKPOINT_PERIOD, with the first attempt's ranks."""
        return steps_per_epoch(self.config.train, self.origin_ranks, len(self.pictures))

    @property
    def steps(self) -> int:
        """Return the number of steps at the run's end, including earlier attempts'. It changes if the ranks change."""
        end = BEGINNING.after(self.schedule.steps, groups=self.groups, width=self.origin_ranks)
        return self.first_step + self.first.steps_to(end, groups=self.groups, width=self.width)

    def place(self, step: int) -> DataPosition:
        """Return the position in the data order at which this step begins."""
        return self.first.after(step - self.first_step, groups=self.groups, width=self.width)

    def images(self, step: int) -> int:
        """Return the number of images learned from before the step with this number."""
        place = self.place(step)
        return place.epoch * len(self.pictures) + min(
            len(self.pictures), place.group * self.config.train.batch_size_per_gpu
        )

    def origin_step(self, step: int) -> int:
        """Return the number that the step would have if the ranks had never changed."""
        return self.place(step).steps(groups=self.groups, width=self.origin_ranks)

    def rate(self, step: int) -> float:
        """Return the step's learning rate: the one that the job planned for its images, scaled with their number."""
        return self.schedule(self.origin_step(step)) * self.scale

    def is_due(self, epochs: int, step: int) -> bool:
        """Return True if a period of so many epochs ends with this step."""
        period = epochs * self.steps_per_epoch
        return bool(period) and self.origin_step(step) // period > self.origin_step(step - 1) // period


def continued(plan: DetectorPlan, position: DetectorPosition) -> DetectorPlan:
    """Return the plan from this position on. The ranks learn once from each image that the epoch still has.

    The position carries what the job began with to all ranks, including those that cannot read its folder.
    """
    origin = position.origin_ranks if position.images and position.origin_ranks else plan.ranks
    if origin != plan.origin_ranks:
        schedule = make_schedule(plan.config, ranks=origin, num_images=len(plan.pictures))
        plan = replace(plan, origin_ranks=origin, schedule=schedule)
    if not position.images:
        return plan
    if position.epoch < 0:  # as version 0.1 counted
        step = position.images // plan.images_per_step
        place = BEGINNING.after(step, groups=plan.groups, width=plan.width)
    else:
        place = DataPosition(position.epoch, position.group)
    return replace(plan, first_step=position.step, first=place, before=position.ranks)


def make_plan(
    config: Config, *, ranks: int, job_dir: Path | None, load: Path | None, most_left_out: float = MOST_LEFT_OUT
) -> DetectorPlan:
    """Return the run's plan. Reads annotations and lists the images' folders. Writes nothing.

    Args:
        most_left_out: share of a set's objects that may be left out.

    Raises:
        ConfigError: settings, ranks, data and job folder do not fit together. The message names the change to make.
    """
    if not config.data.basedir:
        raise ConfigError(
            "DATA.BASEDIR is not set: give the folder with annotations/ and the images, as in DATA.BASEDIR=/data/coco"
        )
    if ranks < 1:
        raise ConfigError(f"{counted(ranks, 'rank')} cannot train: give at least 1")
    read = partial(read_set, Path(config.data.basedir), with_masks=config.mode_mask)
    sets = [read(name) for name in config.data.train]
    validation = read(config.data.val[0])
    config = with_categories(config, sets[0])
    check_categories([*sets, validation])
    if len(config.data.val) != 1:
        raise ConfigError(f"DATA.VAL names {len(config.data.val)} sets: a training evaluates on one")
    _check_weights(config, load)
    begun = None
    if job_dir:
        check_job_dir(job_dir, config)
        newest = CheckpointFolder(job_dir / "checkpoints").peek()
        begun = DetectorPosition.of(newest) if newest else None
    origin_ranks = begun.origin_ranks if begun and begun.images and begun.origin_ranks else ranks
    if not (job_dir and read_settings(job_dir)):  # a started run may resume with fewer ranks
        check_ranks(config.overlay, ranks)
    # The other ranks would find the same, each with its own listing.
    left_out = _left_out(sets, validation, config, most_left_out) if mpi_rank() == 0 else ()
    pictures = tuple(training_pictures(sets, config))
    return DetectorPlan(
        left_out=left_out,
        config=config,
        job_dir=job_dir,
        load=load,
        pictures=pictures,
        validation=validation,
        ranks=ranks,
        origin_ranks=origin_ranks,
        schedule=make_schedule(config, ranks=origin_ranks, num_images=len(pictures)),
    )


def _left_out(sets: list[CocoSet], validation: CocoSet, config: Config, most: float) -> tuple[str, ...]:
    """Return sentences on the objects left out of training and evaluation. Raises ConfigError if they are too many."""
    told = []
    for data in dict.fromkeys(s.file for s in (*sets, validation)):
        one = next(s for s in (*sets, validation) if s.file == data)
        found = losses(one)
        check_share(one, found, most)
        name = one.file.stem.removeprefix("instances_")
        told += [f"{name}: {loss}" for loss in found]
        is_learned = any(s.file == one.file for s in sets) and config.data.filter_empty_annotations
        empty = sum(not p.objects for p in one.pictures) if is_learned else 0
        if empty:
            told.append(f"{name}: {counted(empty, 'image')} without an object (DATA.FILTER_EMPTY_ANNOTATIONS)")
        is_needed = not is_learned or one.file == validation.file
        check_files((p for p in one.pictures if is_needed or p.objects), one.file)
    return tuple(told)


def make_schedule(config: Config, *, ranks: int, num_images: int) -> Schedule:
    """Return the run's steps and rates, by linear scaling with the images per step (arXiv:1706.02677).

    Raises:
        ConfigError: an evaluation or checkpoint period, or a warm-up, that the run would never reach.
    """
    train = config.train
    scale = ranks * train.batch_size_per_gpu / REFERENCE_BATCH
    rate = train.base_lr * scale
    drops, end = _in_steps(train, _pass_steps(train, ranks, num_images), scale)
    steps = min(end, train.max_steps) if train.max_steps else end
    _refuse_never(train, steps, steps_per_epoch(train, ranks, num_images))
    return Schedule(
        mode="steps",
        peak=rate,
        steps=steps,
        warmup_steps=train.warmup,
        warmup_start=min(train.warmup_init_lr * scale, rate),
        # The step of a drop already has the new rate; to the schedule a boundary is the last step with the old one.
        shape=Shape(boundaries=tuple(step - 1 for step, _ in drops), rates=tuple(rate * factor for _, factor in drops)),
    )


def rates(schedule: Schedule) -> list[tuple[int, float]]:
    """Return (step, learning rate from there on), the first at step 0, without the warm-up."""
    firsts = [0, *(boundary + 1 for boundary in schedule.shape.boundaries)]
    return list(zip(firsts, (schedule.peak, *schedule.shape.rates), strict=True))


def reference_steps(name: str) -> tuple[int, ...]:
    """Return drops and end of '1x', '2x', ... for 8 images per step.

    kx ends at k x 180k and drops 120k and 40k before it.
    """
    times = int(name.removesuffix("x"))
    if times == 1:
        return 120_000, 160_000, 180_000  # the published 1x keeps a longer first part than the rule gives
    return 180_000 * times - 120_000, 180_000 * times - 40_000, 180_000 * times


def with_categories(config: Config, data: CocoSet) -> Config:
    """Return the configuration with number and names of the set's categories.

    Raises:
        ConfigError: DATA.NUM_CATEGORY was given and is another number.
    """
    count = len(data.category_ids)
    if config.data.num_category not in (-1, count):
        raise ConfigError(f"DATA.NUM_CATEGORY={config.data.num_category}, but {data.file} has {count} categories")
    check_order(data, config.data.class_names, "DATA.CLASS_NAMES")
    return replace(
        config, data=replace(config.data, num_category=count, class_names=config.data.class_names or data.class_names)
    )


def text(plan: DetectorPlan) -> str:
    """Return the plan as text for people."""
    schedule, train = plan.schedule, plan.config.train
    passes = schedule.steps * plan.origin_ranks * train.batch_size_per_gpu / len(plan.pictures)
    period = train.checkpoint_period * plan.steps_per_epoch
    drops = ", ".join(f"{rate:g} from step {step}" for step, rate in rates(schedule))
    return "\n".join(
        [
            f"images           {len(plan.pictures)} to learn from, {len(plan.validation.pictures)} to evaluate on, "
            f"{plan.config.data.num_category} categories",
            *(f"left out         {line}" for line in plan.left_out),
            f"ranks            {plan.ranks} x {counted(train.batch_size_per_gpu * plan.parts, 'image')} = "
            f"{plan.images_per_step} per step" + (f", in {plan.parts} micro-steps" if plan.parts > 1 else ""),
            f"steps            {schedule.steps}, {passes:.1f} passes",
            f"learning rate    {drops}; warm-up from {schedule.warmup_start:g} over "
            f"{counted(schedule.warmup_steps, 'step')}",
            f"evaluation       every {counted(train.eval_period * plan.steps_per_epoch, 'step')}"
            if train.eval_period
            else "evaluation       at the end"
            if train.eval_at_end
            else "evaluation       none",
            f"checkpoint       {_by_time(train)}every {counted(period, 'step')} and at the end"
            if plan.job_dir
            else "checkpoint       none: no --job-dir",
        ]
    )


def summary(plan: DetectorPlan) -> dict[str, Any]:
    """Return the plan as a dictionary for programs."""
    return {
        "ranks": plan.ranks,
        "images": len(plan.pictures),
        "left_out": list(plan.left_out),
        "images_per_step": plan.images_per_step,
        "total_steps": plan.schedule.steps,
        "steps_per_epoch": plan.steps_per_epoch,
        "drops": rates(plan.schedule),
        "warmup_steps": plan.schedule.warmup_steps,
        "config": keys.plain(plan.config),
    }


def steps_per_epoch(train: TrainConfig, ranks: int, num_images: int) -> int:
    """Return the steps of an epoch, the unit of EVAL_PERIOD and CHECKPOINT_PERIOD."""
    return train.steps_per_epoch or _pass_steps(train, ranks, num_images)


def _pass_steps(train: TrainConfig, ranks: int, num_images: int) -> int:
    return math.ceil(num_images / (ranks * train.batch_size_per_gpu))


def _in_steps(train: TrainConfig, pass_steps: int, scale: float) -> tuple[list[tuple[int, float]], int]:
    """Return the drops as (step, factor), and the step that ends the run."""
    if train.lr_epoch_schedule:
        steps = [math.ceil(epoch * pass_steps) for epoch, _ in train.lr_epoch_schedule]
        factors = [factor for _, factor in train.lr_epoch_schedule[:-1] if factor is not None]
        return list(zip(steps[:-1], factors, strict=True)), steps[-1]
    reference = reference_steps(train.lr_schedule) if isinstance(train.lr_schedule, str) else train.lr_schedule
    steps = [math.ceil(step / scale) for step in reference]
    return [(step, 0.1 ** (i + 1)) for i, step in enumerate(steps[:-1])], steps[-1]


def _refuse_never(train: TrainConfig, steps: int, per_epoch: int) -> None:
    for key, period in (("EVAL_PERIOD", train.eval_period), ("CHECKPOINT_PERIOD", train.checkpoint_period)):
        if period * per_epoch > steps:
            raise ConfigError(
                f"TRAIN.{key}={period} would never happen: {period} x {counted(per_epoch, 'step')} are more "
                f"than the run's {steps}; give at most {steps // per_epoch}"
                + (" or lower TRAIN.STEPS_PER_EPOCH" if steps < per_epoch else "")
            )
    if train.warmup >= steps:
        raise ConfigError(
            f"TRAIN.WARMUP={train.warmup} does not fit in a run of {steps}: give a shorter warm-up or a longer schedule"
        )


def _by_time(train: TrainConfig) -> str:
    """Return the plan text's words for checkpoints by time, "" if there are none."""
    if not train.checkpoint_seconds:
        return ""
    return f"every {train.checkpoint_seconds:g} s, " if train.checkpoint_seconds > 0 else "every 30 s or more, "


def _check_weights(config: Config, load: Path | None) -> None:
    given = [p for p in (Path(config.backbone.weights) if config.backbone.weights else None, load) if p]
    for path in given:
        if not path.is_file():
            raise ConfigError(f"{path} does not exist: give the weights' npz")
    if not given and config.backbone.norm == "FreezeBN":
        raise ConfigError(
            "BACKBONE.NORM=FreezeBN learns nothing from random weights: give BACKBONE.WEIGHTS=FILE.npz, "
            "or BACKBONE.NORM=GN BACKBONE.FREEZE_AT=0 to start without"
        )
    if not given and config.backbone.freeze_at:
        raise ConfigError(
            "BACKBONE.FREEZE_AT=2 would freeze random weights: give BACKBONE.WEIGHTS=FILE.npz or BACKBONE.FREEZE_AT=0"
        )

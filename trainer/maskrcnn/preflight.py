"""All that can be found wrong with a run before TensorFlow is loaded, and what the run would be."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.coco.annotations import CocoSet, Picture, read_set
from trainer.errors import ConfigError
from trainer.maskrcnn import keys
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.loader import training_pictures
from trainer.maskrcnn.schedule import Schedule, make_schedule

CONFIG_FILE = "maskrcnn.json"
MAY_CHANGE = (
    "DATA.BASEDIR",
    "DATA.NUM_WORKERS",
    "DATA.VAL",
    "BACKBONE.WEIGHTS",
    "TRAIN.MAX_STEPS",
    "TEST.",
    "TRAIN.EVAL_PERIOD",
    "TRAIN.EVAL_AT_END",
    "TRAIN.ASYNC_EVAL",
    "TRAIN.CHECKPOINT_PERIOD",
    "TRAIN.CHECKPOINTS_KEPT",
    "TRAIN.LOG_PERIOD",
    "TRAIN.STEPS_PER_EPOCH",
    "TRAIN.FP16_ALLREDUCE",
    "MRCNN.ACCURATE_PASTE",
)
"""Keys that a continued run may set anew: they do not change what the weights mean or where the data stands."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that may begin."""

    config: Config
    """Complete: categories filled in."""
    job_dir: Path | None
    load: Path | None
    """COCO-trained weights to start from, chosen knowingly."""
    pictures: tuple[Picture, ...]
    """To learn from."""
    validation: CocoSet
    schedule: Schedule
    ranks: int


def prepare(config: Config, *, ranks: int, job_dir: Path | None, load: Path | None) -> Run:
    """The run, or `ConfigError` with what has to change. Reads annotations; writes nothing."""
    if not config.data.basedir:
        raise ConfigError(
            "DATA.BASEDIR is not set: give the folder with annotations/ and the images, as in DATA.BASEDIR=/data/coco"
        )
    if ranks < 1:
        raise ConfigError(f"{ranks} ranks cannot train: give at least 1")
    sets = [read_set(Path(config.data.basedir), name) for name in config.data.train]
    validation = read_set(Path(config.data.basedir), config.data.val[0])
    config = with_categories(config, sets[0])
    if validation.category_ids != sets[0].category_ids:
        raise ConfigError(f"{validation.file} has other categories than {sets[0].file}")
    if len(config.data.val) != 1:
        raise ConfigError(f"DATA.VAL names {len(config.data.val)} sets: a training evaluates on one")
    _check_weights(config, load)
    if job_dir:
        check_job_dir(job_dir, config)
    pictures = tuple(training_pictures(sets, config))
    return Run(
        config=config,
        job_dir=job_dir,
        load=load,
        pictures=pictures,
        validation=validation,
        ranks=ranks,
        schedule=make_schedule(config, ranks=ranks, num_images=len(pictures)),
    )


def with_categories(config: Config, data: CocoSet) -> Config:
    """The configuration with number and names of the set's categories.

    Raises:
        ConfigError: DATA.NUM_CATEGORY was given and is another number.
    """
    count = len(data.category_ids)
    if config.data.num_category not in (-1, count):
        raise ConfigError(f"DATA.NUM_CATEGORY={config.data.num_category}, but {data.file} has {count} categories")
    return replace(
        config, data=replace(config.data, num_category=count, class_names=config.data.class_names or data.class_names)
    )


def check_job_dir(job_dir: Path, config: Config) -> None:
    """Passes an absent, an empty and a fitting job folder.

    Raises:
        ConfigError: the folder holds something else, or a run with other settings.
    """
    if job_dir.exists() and not job_dir.is_dir():
        raise ConfigError(f"--job-dir {job_dir} is a file")
    file = job_dir / CONFIG_FILE
    if not file.is_file():
        if (job_dir / "checkpoints").exists():
            raise ConfigError(f"{job_dir} holds checkpoints of another trainer: give another --job-dir")
        return
    was, now = json.loads(file.read_text()), plain(config)
    changed = [k for k in now if k in was and was[k] != now[k] and not k.startswith(MAY_CHANGE)]
    if changed:
        key = changed[0]
        raise ConfigError(
            f"{job_dir} holds a run with {key}={was[key]}, not {now[key]}: continue it with the same "
            f"settings, or give another --job-dir"
        )


def plain(config: Config) -> dict[str, Any]:
    """The configuration as JSON gives it back."""
    value: dict[str, Any] = json.loads(json.dumps(keys.dump(config)))
    return value


def text(run: Run) -> str:
    """What the run would be, for people."""
    s, train = run.schedule, run.config.train
    drops = ", ".join(f"{lr:g} from step {step}" for step, lr in s.drops)
    return "\n".join(
        [
            f"images           {len(run.pictures)} to learn from, {len(run.validation.pictures)} to evaluate on, "
            f"{run.config.data.num_category} categories",
            f"ranks            {run.ranks} x {train.batch_size_per_gpu} images = {s.images_per_step} per step",
            f"steps            {s.total_steps}, {s.total_steps * s.images_per_step / len(run.pictures):.1f} passes",
            f"learning rate    {drops}; warm-up from {s.warmup_lr:g} over {s.warmup_steps} steps",
            f"evaluation       every {train.eval_period * s.steps_per_epoch} steps"
            if train.eval_period
            else "evaluation       at the end"
            if train.eval_at_end
            else "evaluation       none",
            f"checkpoint       every {train.checkpoint_period * s.steps_per_epoch} steps and at the end"
            if run.job_dir
            else "checkpoint       none: no --job-dir",
        ]
    )


def summary(run: Run) -> dict[str, Any]:
    """What the run would be, for programs."""
    s = run.schedule
    return {
        "ranks": run.ranks,
        "images": len(run.pictures),
        "images_per_step": s.images_per_step,
        "total_steps": s.total_steps,
        "steps_per_epoch": s.steps_per_epoch,
        "drops": s.drops,
        "warmup_steps": s.warmup_steps,
        "config": plain(run.config),
    }


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

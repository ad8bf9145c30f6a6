"""Resume of a run from a job's folder: checks that its settings match, and reads its newest checkpoint's position."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.common.checkpoints.facts import Facts, whole_number
from trainer.common.files.errors import ConfigError, TrainerError
from trainer.maskrcnn import keys
from trainer.maskrcnn.config import Config

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
    "TRAIN.CHECKPOINT_SECONDS",
    "TRAIN.CHECKPOINTS_KEPT",
    "TRAIN.LOG_PERIOD",
    "TRAIN.STEPS_PER_EPOCH",
    "TRAIN.FP16_ALLREDUCE",
    "MRCNN.ACCURATE_PASTE",
)
"""Keys that a resumed run may change: they affect neither the weights' meaning nor the position in the data."""


@dataclass(frozen=True)
class DetectorPosition:
    """Progress of a run and its number of ranks, as whole numbers that fit one message."""

    step: int = 0
    images: int = 0  # learned from so far; 0: nothing to resume
    epoch: int = -1  # with group the place in the data order; -1: a checkpoint of version 0.1, which lacks it
    group: int = 0
    ranks: int = 0
    origin_ranks: int = 0  # of the first attempt

    @classmethod
    def of(cls, facts: Facts) -> "DetectorPosition":
        """Return the position that a checkpoint's facts contain.

        Raises:
            TrainerError: they contain none.
        """
        try:
            images = whole_number(facts.more, "images_seen")
            if "epoch" not in facts.more:
                return cls(facts.step, images)
            return cls(
                facts.step,
                images,
                epoch=whole_number(facts.more, "epoch"),
                group=whole_number(facts.more, "group"),
                ranks=whole_number(facts.more, "ranks", 1),
                origin_ranks=whole_number(facts.more, "origin_ranks", 1),
            )
        except ValueError as e:
            raise TrainerError(
                f"the checkpoint of step {facts.step} does not tell where to go on ({e}): it is of another trainer, "
                "so give another --job-dir"
            ) from e


def read_settings(job_dir: Path) -> dict[str, Any] | None:
    """Return the settings that a job was trained with, as `keys.dump` names them; None if no run has begun.

    Raises:
        ConfigError: the file cannot be read.
    """
    file = job_dir / CONFIG_FILE
    try:
        settings = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as e:
        raise ConfigError(f"{file} cannot be read ({e}): put it back or give another --job-dir") from e
    if not isinstance(settings, dict):
        raise ConfigError(f"{file} holds no settings: put it back or give another --job-dir")
    return settings


def check_job_dir(job_dir: Path, config: Config) -> None:
    """Check that the job's folder is absent, empty or of a run with the same settings.

    Raises:
        ConfigError: the folder contains something else, or a run with other settings.
    """
    if job_dir.exists() and not job_dir.is_dir():
        raise ConfigError(f"--job-dir {job_dir} is a file")
    was = read_settings(job_dir)
    if was is None:
        if (job_dir / "checkpoints").exists():
            raise ConfigError(f"{job_dir} holds checkpoints of another trainer: give another --job-dir")
        return
    now = keys.plain(config)
    changed = [k for k in now if k in was and was[k] != now[k] and not k.startswith(MAY_CHANGE)]
    if changed:
        key = changed[0]
        raise ConfigError(
            f"{job_dir} holds a run with {key}={was[key]}, not {now[key]}: continue it with the same "
            f"settings, or give another --job-dir"
        )

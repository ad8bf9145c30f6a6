"""Loader of a trained model from its job's folder or from an npz."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainer.common.checkpoints import checkpoint
from trainer.common.files.errors import ConfigError
from trainer.maskrcnn import keys
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.resume import CONFIG_FILE, read_settings

if TYPE_CHECKING:
    from trainer.maskrcnn.detector import Detector


def find_config(job_dir: Path, settings: list[str]) -> Config:
    """Return the configuration that a job was trained with, changed by settings.

    Raises:
        ConfigError: the folder contains no Mask R-CNN run.
    """
    flat = read_settings(job_dir)
    if flat is None:
        raise ConfigError(
            f"{job_dir / CONFIG_FILE} is missing: {job_dir} is not the --job-dir of a Mask R-CNN training"
        )
    return keys.apply_settings(keys.load(flat), settings)


def newest_weights(job_dir: Path, step: int | None = None) -> tuple[int, dict[str, NDArray[np.generic]]]:
    """Return step and variables of the newest valid checkpoint, or of the given step's.

    Raises:
        ConfigError: there is no such checkpoint.
    """
    folder = checkpoint.CheckpointFolder(job_dir / "checkpoints")
    if step is not None and step not in folder.steps():
        raise ConfigError(f"{job_dir} has no checkpoint of step {step}; there are {sorted(folder.steps())}")
    facts = folder.facts(step) if step is not None else folder.newest_or_refuse()
    if facts is None:
        raise ConfigError(f"{job_dir}/checkpoints holds no valid checkpoint: train first")
    return facts.step, folder.load(facts)


def detector_of_job(
    job_dir: Path, settings: list[str], *, step: int | None = None, threads: int = 0
) -> tuple[int, "Detector"]:
    """Return the step and a detector with the weights of a job's checkpoint."""
    from trainer.maskrcnn.detector import Detector

    config = find_config(job_dir, settings)
    at, values = newest_weights(job_dir, step)
    detector = Detector(config, threads=threads)
    detector.assign(values)
    return at, detector


def detector_of_npz(weights: Path, config: Config, *, threads: int = 0) -> "Detector":
    """Return a detector with the weights that `model_weights` reads.

    The configuration must set the number of categories.
    """
    from trainer.maskrcnn.detector import Detector
    from trainer.maskrcnn.weights import model_weights

    if config.data.num_category < 1:
        raise ConfigError("DATA.NUM_CATEGORY is not set: give the number the weights were trained with, 80 for COCO")
    detector = Detector(config, threads=threads)
    detector.assign(model_weights(weights, detector.shapes, config))
    return detector

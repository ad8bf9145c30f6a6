"""Weights as users have them: npz files in tensorpack's names and shapes, and back."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.errors import ConfigError
from trainer.maskrcnn.classifier import Arrays, as_backbone, check_settings, is_classifier
from trainer.maskrcnn.config import Config

BACKBONE = ("conv0/", "group0/", "group1/", "group2/", "group3/")
HEADS = ("rpn/", "fastrcnn/", "maskrcnn/", "cascade_rcnn_stage", "fpn/")
BOX_CELLS = 7
"""The first dense layer of a box head sees 7 x 7 cells."""


def read_npz(path: Path) -> Arrays:
    """The arrays of an npz by name, without a `:0` at the end.

    Raises:
        ConfigError: missing or no npz.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name.removesuffix(":0"): file[name] for name in file.files}
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path} cannot be read as weights (npz): {e}") from e


def backbone_weights(path: Path, shapes: Mapping[str, tuple[int, ...]], config: Config) -> Arrays:
    """The backbone's variables from ImageNet weights; the classifier's last layer is left out.

    Takes tensorpack's npz and the npz of a checkpoint of `trainer.resnet50`.

    Raises:
        ConfigError: the file holds a detector, or lacks a variable, or has it in another shape.
    """
    arrays = read_npz(path)
    if is_classifier(arrays):
        check_settings(config)
        arrays = as_backbone(arrays)
    if any(name.startswith(HEADS) for name in arrays):
        raise ConfigError(
            f"{path} was trained on detection already, so the AP of a run from it would prove little: "
            "give ImageNet weights as BACKBONE.WEIGHTS, or start from these knowingly with --load"
        )
    return _fit(path, arrays, {n: s for n, s in shapes.items() if n.startswith(BACKBONE)})


def model_weights(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """All variables of the model from a tensorpack npz or one that `write_npz` made.

    Raises:
        ConfigError: a variable is missing or has another shape; names the first.
    """
    return {name: to_nhwc(name, array, shapes[name]) for name, array in _fit(path, read_npz(path), shapes).items()}


def write_npz(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Writes the model's variables in tensorpack's names and layout, whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.savez(file, **{n: to_nchw(n, a) for n, a in arrays.items()})
    partial.replace(path)


def to_nhwc(name: str, array: NDArray[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
    """The rows of a head's first dense layer in the order height, width, channel instead of channel, height, width."""
    if not _reads_cells(name):
        return array
    return array.reshape(-1, BOX_CELLS, BOX_CELLS, shape[1]).transpose(1, 2, 0, 3).reshape(shape)


def to_nchw(name: str, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """The inverse of `to_nhwc`."""
    if not _reads_cells(name):
        return array
    channels = len(array) // BOX_CELLS**2
    return array.reshape(BOX_CELLS, BOX_CELLS, channels, -1).transpose(2, 0, 1, 3).reshape(array.shape)


def is_model_variable(name: str) -> bool:
    """Whether a variable belongs to the model, not to the optimizer or the step counter."""
    return name.startswith((*BACKBONE, *HEADS)) and not name.endswith(("/Momentum", "/Adam"))


def _reads_cells(name: str) -> bool:
    return name.endswith(("/fc6/W", "/fc/W"))


def _fit(path: Path, arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    missing = [n for n in shapes if n not in arrays]
    wrong = [n for n in shapes if n in arrays and arrays[n].shape != shapes[n]]
    if missing:
        raise ConfigError(
            f"{path} lacks {missing[0]}{_more(missing)}: it is of another model; check "
            "BACKBONE.RESNET_NUM_BLOCKS, BACKBONE.NORM and the heads"
        )
    if wrong:
        name = wrong[0]
        raise ConfigError(f"{path}: {name} is {arrays[name].shape}, this model has {shapes[name]}{_more(wrong)}")
    return {n: arrays[n] for n in shapes}


def _more(names: Iterable[str]) -> str:
    rest = len(list(names)) - 1
    return f" and {rest} more" if rest else ""

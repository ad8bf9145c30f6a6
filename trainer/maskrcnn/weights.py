"""Conversion of weights files to this trainer's variables, and back to tensorpack's names, shapes and meaning.

Two things have the same names and shapes in tensorpack, but another meaning. Its anchors lie on the corners of their
cells, and this trainer's lie in the middle. An anchor's shift is the same share of its size on all levels. So a change
of the predicted offsets' bias compensates for it, and the boxes are the same. Its group-norm heads normalise after the
ReLU: that is a setting.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.common.checkpoints import npz, npz_writer, weight_files
from trainer.common.files.atomic_write import written_whole
from trainer.common.files.errors import ConfigError, TrainerError
from trainer.maskrcnn import detectron2
from trainer.maskrcnn.classifier import Arrays, as_backbone, check_settings, is_classifier
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.config_network import STRIDES

BACKBONE = ("conv0/", "group0/", "group1/", "group2/", "group3/")
RPN_BIAS = "rpn/box/b"
HEADS = ("rpn/", "fastrcnn/", "maskrcnn/", "cascade_rcnn_stage", "fpn/")
PARTS = ("/W", "/b", "/gamma", "/beta", "/EMA")
"""Ends of the names of a layer's arrays. Others in a file are an optimizer's or a counter's."""
BOX_CELLS = 7
"""The first dense layer of a box head sees 7 x 7 cells."""
GN_HEAD_ORDER = "dlami/gn_head_order"
"""Name in our own npz files: the order in which the group-norm heads were trained, as UTF-8."""


def backbone_weights(path: Path, shapes: Mapping[str, tuple[int, ...]], config: Config) -> Arrays:
    """Return the backbone's variables from ImageNet weights, without the classifier's last layer.

    Reads tensorpack's npz and the npz of a checkpoint of `trainer.resnet50`.

    Raises:
        ConfigError: the file is a detector's or of a deeper network, lacks a variable, or has it in another shape.
    """
    arrays = npz.read(path)
    if is_classifier(arrays):
        check_settings(config)
        arrays = as_backbone(arrays)
    if any(name.startswith(HEADS) for name in arrays):
        raise ConfigError(
            f"{path} was trained on detection already, so the AP of a run from it would prove little: "
            "give ImageNet weights as BACKBONE.WEIGHTS, or start from these knowingly with --load"
        )
    return _fit(path, arrays, {n: s for n, s in shapes.items() if n.startswith(BACKBONE)}, BACKBONE)


def model_weights(path: Path, shapes: Mapping[str, tuple[int, ...]], config: Config) -> Arrays:
    """Return all variables of the model from tensorpack's npz, `write_npz`'s, or Detectron2's weights in any format.

    Raises:
        ConfigError: a variable is missing, has another shape or is unexpected, and the message names the first. Or the
            file's group-norm heads or anchors have another meaning than those of the configuration.
    """
    found = weight_files.read(path)
    if detectron2.is_detectron2(found):
        detectron2.check_settings(path, found, config)
        told = np.frombuffer(detectron2.HEAD_ORDER.encode(), np.uint8)
        found = {**detectron2.as_tensorpack(path, found), GN_HEAD_ORDER: told}
    _check_heads(path, found, config)
    of = (*BACKBONE, *(part for part in HEADS if config.mode_mask or part != "maskrcnn/"))
    arrays = {name: to_nhwc(name, array, shapes[name]) for name, array in _fit(path, found, shapes, of).items()}
    return {**arrays, RPN_BIAS: np.subtract(arrays[RPN_BIAS], anchor_shift(config), dtype=np.float32)}


def write_npz(path: Path, arrays: Mapping[str, NDArray[np.generic]], config: Config) -> None:
    """Write the model's variables in tensorpack's names, layout and meaning, atomically.

    Raises:
        ConfigError: the anchors cannot be converted to tensorpack's.
        TrainerError: the file cannot be written.
    """
    theirs = {n: to_nchw(n, a) for n, a in arrays.items()}
    theirs[RPN_BIAS] = np.add(theirs[RPN_BIAS], anchor_shift(config), dtype=np.float32)
    if config.fpn.has_gn_heads:
        theirs[GN_HEAD_ORDER] = np.frombuffer(config.fpn.gn_head_order.encode(), np.uint8)
    try:
        with written_whole(path) as partial, partial.open("wb") as file:
            npz_writer.write(file, theirs)
    except OSError as e:
        raise TrainerError(f"{path} cannot be written ({e.strerror}): make room or give another --out") from e


def anchor_shift(config: Config) -> NDArray[np.float32]:
    """Return what our anchors' offsets to the same boxes are less than an npz's: [4 x ratios] for each size on a level.

    Raises:
        ConfigError: the shift is another share of the anchors' size on each level.
    """
    ours = config.rpn.anchor_center
    ratios = np.sqrt(np.array(config.rpn.anchor_ratios))  # of height to width: a side is size x or / its root
    apart = ours - config.rpn.npz_anchor_center
    levels = np.array([[apart * stride / size for size in sizes] for stride, sizes in config.anchor_places])
    if not np.allclose(levels, levels[0]):
        raise ConfigError(
            f"RPN.ANCHOR_SIZES={config.rpn.anchor_sizes} are not in proportion to the strides {STRIDES}, so anchors "
            "elsewhere in their cells cannot be converted: "
            f"RPN.NPZ_ANCHOR_CENTER={ours} takes and writes them as ours"
        )
    of_size = [np.stack([share * ratios, share / ratios, 0 * ratios, 0 * ratios], 1) for share in levels[0]]
    return np.concatenate(of_size).ravel().astype(np.float32)


def to_nhwc(name: str, array: NDArray[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Reorder a head's first dense layer: its rows from channel, height, width to height, width, channel."""
    if not _reads_cells(name):
        return array
    return array.reshape(-1, BOX_CELLS, BOX_CELLS, shape[1]).transpose(1, 2, 0, 3).reshape(shape)


def to_nchw(name: str, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Undo `to_nhwc`."""
    if not _reads_cells(name):
        return array
    channels = len(array) // BOX_CELLS**2
    return array.reshape(BOX_CELLS, BOX_CELLS, channels, -1).transpose(2, 0, 1, 3).reshape(array.shape)


def is_model_variable(name: str) -> bool:
    """Return True if the variable belongs to the model, not to the optimizer or the step counter."""
    return name.startswith((*BACKBONE, *HEADS)) and not name.endswith(("/Momentum", "/Adam"))


def _reads_cells(name: str) -> bool:
    return name.endswith(("/fc6/W", "/fc/W"))


def _check_heads(path: Path, arrays: Arrays, config: Config) -> None:
    if not config.fpn.has_gn_heads:
        return
    told = bytes(arrays[GN_HEAD_ORDER].astype(np.uint8)).decode(errors="replace") if GN_HEAD_ORDER in arrays else ""
    order = told or "relu-norm"  # tensorpack's
    if order != config.fpn.gn_head_order:
        why = "it says so" if told else "as tensorpack's do; what version 0.1.0 exported is to be exported again"
        raise ConfigError(
            f"{path}: its group-norm heads are {order} ({why}), not {config.fpn.gn_head_order}: give "
            f"FPN.GN_HEAD_ORDER={order}"
        )


def _fit(path: Path, arrays: Arrays, shapes: Mapping[str, tuple[int, ...]], of: tuple[str, ...]) -> Arrays:
    """Return the arrays of these shapes. Raises ConfigError if one is missing or the parts `of` a model have more."""
    missing = [n for n in shapes if n not in arrays]
    wrong = [n for n in shapes if n in arrays and arrays[n].shape != shapes[n]]
    more = [n for n in arrays if n.startswith(of) and n.endswith(PARTS) and n not in shapes]
    if missing:
        raise ConfigError(
            f"{path} lacks {missing[0]}{_more(missing)}: it is of another model; check "
            "BACKBONE.RESNET_NUM_BLOCKS, BACKBONE.NORM and the heads"
        )
    if wrong:
        name = wrong[0]
        raise ConfigError(f"{path}: {name} is {arrays[name].shape}, this model has {shapes[name]}{_more(wrong)}")
    if more:
        raise ConfigError(
            f"{path} has {more[0]}{_more(more)}, for which this model has no place: it is of another model; check "
            "BACKBONE.RESNET_NUM_BLOCKS, BACKBONE.NORM, MODE_MASK and the heads"
        )
    return {n: arrays[n] for n in shapes}


def _more(names: Iterable[str]) -> str:
    rest = len(list(names)) - 1
    return f" and {rest} more" if rest else ""

"""Converter of Detectron2's detector weights, with a pyramid, to tensorpack's names, from which `weights` loads them.

Source: the names of detectron2.modeling, and tensorpack's own converter, examples/FasterRCNN/convert_d2.
"""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.common.files.errors import ConfigError
from trainer.maskrcnn.classifier import Arrays
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.rules import need

STEM = "backbone.bottom_up.stem.conv1"
HEAD_ORDER = "norm-relu"
_PART = re.compile(r"(.+?)\.(norm\.)?(weight|bias|running_mean|running_var)")
_BLOCK = re.compile(r"backbone\.bottom_up\.res([2-5])\.(\d+)\.(conv[123]|shortcut)")
_PYRAMID = re.compile(r"backbone\.fpn_(lateral|output)([2-5])")
_RPN = re.compile(r"proposal_generator\.rpn_head\.(conv|objectness_logits|anchor_deltas)")
_BOX = re.compile(r"roi_heads\.box_(?:head|predictor)(?:\.(\d))?\.(conv|fc|cls_score|bbox_pred)(\d*)")
_MASK = re.compile(r"roi_heads\.mask_head\.(mask_fcn|deconv|predictor)(\d*)")
_WITHOUT_WEIGHTS = re.compile(r"pixel_(mean|std)|.*\.(cell_anchors\.\d|num_batches_tracked)")
_RPN_NAMES = {"conv": "conv0", "objectness_logits": "class", "anchor_deltas": "box"}
_NORM_NAMES = {"weight": "gamma", "bias": "beta", "running_mean": "mean/EMA", "running_var": "variance/EMA"}


def is_detectron2(arrays: Arrays) -> bool:
    """Return True if the arrays' names are those of a Detectron2 detector."""
    return any(name.startswith(("backbone.bottom_up.", "proposal_generator.", "roi_heads.")) for name in arrays)


def check_settings(path: Path, arrays: Arrays, config: Config) -> None:
    """Check that the settings compute what these weights learned, as far as the file shows it.

    Raises:
        ConfigError: they do not. The message lists the settings to give.
    """
    preproc = config.preproc
    for key, given in (("mean", preproc.pixel_mean), ("std", preproc.pixel_std)):
        told = arrays.get(f"pixel_{key}")
        if told is not None and not np.allclose(wanted := told.ravel()[::-1], given, atol=1e-3):
            numbers = ",".join(f"{v:.6g}" if v % 1 else f"{v:.1f}" for v in wanted)
            raise ConfigError(f"{path}: its pixels are others': give PREPROC.PIXEL_{key.upper()}={numbers}")
    mean, variance = (arrays.get(f"{STEM}.norm.running_{what}") for what in ("mean", "var"))
    if mean is None or variance is None or mean.any() or not np.allclose(variance, 1, atol=1e-4):
        return
    fits = config.backbone.stride_1x1 and preproc.pixel_std == (1.0, 1.0, 1.0)
    need(
        fits and not config.backbone.tf_pad_mode,
        f"{path}: its statistics are folded into its affines, as in Detectron2's networks from MSRA's weights: give "
        "BACKBONE.STRIDE_1X1=True PREPROC.PIXEL_STD=1.,1.,1. BACKBONE.TF_PAD_MODE=False",
    )


def as_tensorpack(path: Path, arrays: Arrays) -> Arrays:
    """Return the arrays by tensorpack's names and in its layouts, with the background first.

    Raises:
        ConfigError: an array has no counterpart in a detector with a pyramid.
    """
    has_convs = any(".box_head." in name and ".conv1." in name for name in arrays)
    found: Arrays = {}
    for name, array in arrays.items():
        if _WITHOUT_WEIGHTS.fullmatch(name):
            continue
        match = _PART.fullmatch(name)
        places = _places(match[1], has_convs) if match else None
        if not match or places is None:
            raise ConfigError(f"{path} has {name}, for which a detector with a pyramid has no place")
        layer, norm = places
        if match[2]:
            kind = "bn" if f"{match[1]}.norm.running_var" in arrays else "gn"
            found[f"{norm or f'{layer}/{kind}'}/{_NORM_NAMES[match[3]]}"] = array
            if norm and f"{match[1]}.bias" not in arrays:
                found[f"{layer}/b"] = np.zeros(len(array), np.float32)
        else:
            found[f"{layer}/{'W' if match[3] == 'weight' else 'b'}"] = _laid_out(layer, array)
    return found


def _places(layer: str, has_convs: bool) -> tuple[str, str] | None:
    """Return tensorpack's names for a layer and for its norm, "" if the norm is folded into the layer; None if unknown.

    Args:
        has_convs: the box heads have convolutions, and one dense layer after them.
    """
    if layer == STEM:
        return "conv0", ""
    if match := _BLOCK.fullmatch(layer):
        return f"group{int(match[1]) - 2}/block{match[2]}/{match[3].replace('shortcut', 'convshortcut')}", ""
    if match := _PYRAMID.fullmatch(layer):
        kind, letter = ("lateral_1x1", "c") if match[1] == "lateral" else ("posthoc_3x3", "p")
        return f"fpn/{kind}_{letter}{match[2]}", f"fpn/gn_{letter}{match[2]}"
    if match := _RPN.fullmatch(layer):
        return f"rpn/{_RPN_NAMES[match[1]]}", ""
    if match := _BOX.fullmatch(layer):
        return _of_box_head(match, has_convs)
    if match := _MASK.fullmatch(layer):
        if match[1] == "mask_fcn":
            number = int(match[2]) - 1
            return f"maskrcnn/fcn{number}", f"maskrcnn/gn{number}"
        return "maskrcnn/conv" if match[1] == "predictor" else "maskrcnn/deconv", ""
    return None


def _of_box_head(match: re.Match[str], has_convs: bool) -> tuple[str, str]:
    stage, kind, number = match[1], match[2], match[3]
    scope = f"cascade_rcnn_stage{int(stage) + 1}" if stage else "fastrcnn"
    inner = f"{scope}/head" if stage else scope
    if kind == "conv":
        return f"{inner}/conv{int(number) - 1}", f"{inner}/gn{int(number) - 1}"
    if kind == "fc":
        return f"{inner}/fc" if has_convs else f"{inner}/fc{int(number) + 5}", ""
    return f"{scope}/outputs/{'class' if kind == 'cls_score' else 'box'}", ""


def _laid_out(layer: str, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return a kernel with its outputs last. Class outputs get the background first, box outputs get zeros for it."""
    if layer.endswith("outputs/class"):
        array = np.roll(array, 1, axis=0)
    elif (
        layer.endswith("outputs/box") and len(array) > 4
    ):  # Detectron2 has no box for the background, tensorpack an unused one
        array = np.concatenate([np.zeros_like(array[:4]), array])
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T

"""Conversion of the project's own classifier weights, `trainer.resnet50`, to a detector's backbone."""

import re

import numpy as np
from numpy.typing import NDArray

from trainer.maskrcnn.config import Config
from trainer.maskrcnn.config_network import NORM_EPSILON
from trainer.maskrcnn.rules import need

Arrays = dict[str, NDArray[np.generic]]
CLASSIFIER_EPSILON = 1e-4
"""Epsilon of the classifier's batch norms. Its difference to the detector's is added to the variance."""
PIXEL_MEAN, PIXEL_STD = (121.0, 115.0, 100.0), (70.0, 68.0, 71.0)
"""Normalisation of red, green and blue in the classifier: mean and divisor."""
PARTS = {
    "kernel": "W",
    "gamma": "bn/gamma",
    "beta": "bn/beta",
    "moving_mean": "bn/mean/EMA",
    "moving_variance": "bn/variance/EMA",
}
_BLOCK = re.compile(r"stage(\d)/block(\d+)/(?:(conv|bn)(\d)|(shortcut)(?:_bn)?)/(\w+)")
_STEM = re.compile(r"stem(?:_bn)?/(\w+)")


def is_classifier(arrays: Arrays) -> bool:
    """Return True if the arrays are a checkpoint of `trainer.resnet50`."""
    return "stem/kernel" in arrays


def check_settings(config: Config) -> None:
    """Check that the detector's settings compute what the classifier learned.

    Raises:
        ConfigError: they do not. The message lists the settings to give.
    """
    fits = (
        config.backbone.tf_pad_mode
        and not config.backbone.stride_1x1
        and (config.preproc.pixel_mean, config.preproc.pixel_std) == (PIXEL_MEAN, PIXEL_STD)
    )
    need(
        fits,
        "weights of trainer.resnet50 need BACKBONE.TF_PAD_MODE=True BACKBONE.STRIDE_1X1=False "
        "PREPROC.PIXEL_MEAN=121.,115.,100. PREPROC.PIXEL_STD=70.,68.,71., as it was trained",
    )


def as_backbone(arrays: Arrays) -> Arrays:
    """Return the backbone's variables under the detector's names, without the dense layer and the optimizer.

    The classifier's input is red green blue, the detector's blue green red, so the first kernel is reversed.
    """
    result: Arrays = {}
    for name, array in arrays.items():
        target = _target(name)
        if target:
            result[target] = array
    result["conv0/W"] = np.ascontiguousarray(result["conv0/W"][:, :, ::-1])
    for name in [n for n in result if n.endswith("variance/EMA")]:
        result[name] = np.add(result[name], CLASSIFIER_EPSILON - NORM_EPSILON, dtype=np.float32)
    return result


def _target(name: str) -> str | None:
    if match := _STEM.fullmatch(name):
        return f"conv0/{PARTS[match[1]]}" if match[1] in PARTS else None
    if (match := _BLOCK.fullmatch(name)) and match[6] in PARTS:
        layer = "convshortcut" if match[5] else f"conv{int(match[4]) + 1}"
        return f"group{match[1]}/block{match[2]}/{layer}/{PARTS[match[6]]}"
    return None

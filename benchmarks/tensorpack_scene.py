"""A drawn image, its objects, regions and weights, the same wherever they are drawn: what tensorpack's graph and this
trainer's are compared on (`benchmarks/tensorpack_numbers.py` stores the former's numbers, tests compare the latter's).

All of it comes from NumPy's RandomState, whose numbers never change.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

CATEGORIES = 4
ELEMENTS = 64
"""Elements of a tensor that are stored, beside its norm and its maximum."""
Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One comparison: what is drawn, and the settings of both in the words that both know."""

    name: str
    height: int = 70
    """Of the image file, in pixels."""
    width: int = 90
    scale: float = 1.0
    """Pixels of the file for one of the image that the network sees."""
    is_mirrored: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def told(self) -> dict[str, Any]:
        """Every setting that is given to both."""
        return {**SMALL, **self.settings}

    def words(self) -> list[str]:
        """The settings as this trainer takes them."""
        return [
            f"{key}={value!r}" if not isinstance(value, str) else f"{key}={value}" for key, value in self.told.items()
        ]


SMALL = {
    "BACKBONE.RESNET_NUM_BLOCKS": [1, 1, 1, 1],
    "FPN.NUM_CHANNEL": 64,
    "FPN.FRCNN_FC_HEAD_DIM": 128,
    "FPN.FRCNN_CONV_HEAD_DIM": 32,
    "MRCNN.HEAD_DIM": 32,
    "PREPROC.TRAIN_SHORT_EDGE_SIZE": [70, 70],
    "PREPROC.TEST_SHORT_EDGE_SIZE": 70,
    "PREPROC.MAX_SIZE": 100,
    "RPN.ANCHOR_SIZES": (16, 32, 64, 128, 256),
    "RPN.BATCH_PER_IM": 8192,
    "RPN.TRAIN_PER_LEVEL_NMS_TOPK": 200,
    "RPN.TEST_PER_LEVEL_NMS_TOPK": 100,
    "TRAIN.WEIGHT_DECAY": 0.01,
    "TEST.RESULT_SCORE_THRESH": 0.05,
    "TEST.RESULTS_PER_IM": 80,
}
"""A shallow, narrow model on a small image, all of whose anchors are learned from, so that nothing is drawn."""
NORMED = {
    "BACKBONE.NORM": "GN",
    "BACKBONE.FREEZE_AT": 0,
    "FPN.NORM": "GN",
    "FPN.FRCNN_HEAD_FUNC": "fastrcnn_4conv1fc_gn_head",
    "FPN.MRCNN_HEAD_FUNC": "maskrcnn_up4conv_gn_head",
}
WITHOUT_PYRAMID = {
    "MODE_FPN": False,
    "RPN.HEAD_DIM": 64,
    "RPN.TRAIN_PRE_NMS_TOPK": 200,
    "RPN.TRAIN_POST_NMS_TOPK": 200,
    "RPN.TEST_PRE_NMS_TOPK": 100,
    "RPN.TEST_POST_NMS_TOPK": 100,
    "PREPROC.TRAIN_SHORT_EDGE_SIZE": [64, 64],
    "PREPROC.TEST_SHORT_EDGE_SIZE": 64,
    "PREPROC.MAX_SIZE": 128,
}
"""On an image that needs no padding, as tensorpack does not pad it then."""
SCENES = (
    Scene(name="frozen", height=91, width=117, scale=1.3),
    Scene(name="normed", is_mirrored=True, settings=NORMED),
    Scene(name="cascade", settings={"FPN.CASCADE": True, "BACKBONE.FREEZE_AT": 1}),
    Scene(name="c4", height=64, width=96, settings=WITHOUT_PYRAMID),
)


@dataclass(frozen=True, kw_only=True)
class Object:
    """One annotation: polygons in pixels of the file, or a crowd's rectangle."""

    label: int
    box: tuple[float, float, float, float]
    polygons: list[list[float]]
    is_crowd: bool = False


def image(scene: Scene) -> NDArray[np.uint8]:
    """[height, width, 3], blue green red: coloured shades with some noise."""
    random = np.random.RandomState(scene.seed)
    small = random.uniform(0, 255, (6, 8, 3)).astype(np.float32)
    shades = cv2.resize(small, (scene.width, scene.height), interpolation=cv2.INTER_CUBIC)
    return np.clip(shades + random.normal(0, 12, shades.shape), 0, 255).astype(np.uint8)


def objects(scene: Scene) -> list[Object]:
    """Four objects, one of them at the image's corner, one of two parts, and a crowd."""
    height, width = scene.height, scene.width

    def of(label: int, *polygons: list[float], is_crowd: bool = False) -> Object:
        corners = np.array([v for p in polygons for v in p]).reshape(-1, 2) * [width, height]
        scaled = [(np.array(p).reshape(-1, 2) * [width, height]).round(2).ravel().tolist() for p in polygons]
        box = (*corners.min(0).round(2).tolist(), *corners.max(0).round(2).tolist())
        return Object(label=label, box=box, polygons=scaled, is_crowd=is_crowd)

    return [
        of(1, [0.11, 0.13, 0.46, 0.18, 0.41, 0.67, 0.16, 0.58]),
        of(3, [0.62, 0.52, 1.0, 0.49, 1.0, 1.0, 0.58, 1.0]),
        of(2, [0.55, 0.08, 0.7, 0.1, 0.66, 0.31], [0.74, 0.12, 0.86, 0.12, 0.81, 0.37]),
        of(4, [0.2, 0.72, 0.34, 0.7, 0.36, 0.93, 0.22, 0.95]),
        of(1, [0.4, 0.5, 0.9, 0.5, 0.9, 0.8, 0.4, 0.8], is_crowd=True),
    ]


def write(scene: Scene, folder: Path) -> Path:
    """The image as a file without loss."""
    path = folder / f"{scene.name}.png"
    cv2.imwrite(str(path), image(scene))
    return path


def regions(boxes: Floats, labels: NDArray[np.int32], size: tuple[int, int], seed: int) -> tuple[Floats, Any, Any, int]:
    """Regions instead of drawn ones: rois [24, 4], classes [24], matched object [24], and how many are on objects.

    Args:
        boxes, labels: of the resized image's objects.
        size: height and width of the resized image.
    """
    random = np.random.RandomState(seed + 1)
    limit = np.array([size[1], size[0]] * 2)
    near = np.repeat(boxes, 2, axis=0)
    near[1::2] += random.uniform(-3, 3, near[1::2].shape)
    match = np.repeat(np.arange(len(boxes)), 2)
    first = random.uniform(0, 0.7, (24 - len(near), 2)) * limit[:2]
    elsewhere = np.concatenate([first, first + random.uniform(4, 40, first.shape)], 1)
    rois = np.clip(np.concatenate([near, elsewhere]), 0, limit).astype(np.float32)
    classes = np.concatenate([labels[match], np.zeros(len(elsewhere), np.int32)])
    return rois, classes, np.concatenate([match, np.zeros(len(elsewhere), int)]), len(near)


def weights(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Floats]:
    """Numbers for every variable, drawn by its name; shapes and layout are tensorpack's.

    Most channels are clearly above a ReLU's zero or below: near it the last bit decides, and with it a gradient.
    """
    return {name: _weight(name, shape, seed) for name, shape in shapes.items()}


def _weight(name: str, shape: tuple[int, ...], seed: int) -> Floats:
    random = np.random.RandomState((zlib.crc32(name.encode()) + seed) % 2**32)
    last = name.rpartition("/")[2]
    if name.endswith("variance/EMA"):
        drawn = random.uniform(0.6, 1.6, shape)
    elif last == "gamma":
        drawn = random.uniform(0.6, 1.4, shape)
    elif last == "beta":
        drawn = np.where(random.uniform(size=shape) < 0.7, 1, -1) * random.uniform(1.5, 2.5, shape)
    elif last == "W":
        fan = np.prod(shape[:-1]) if "deconv" not in name else shape[-1]
        drawn = random.normal(0, _gain(name.removesuffix("/W")) / np.sqrt(fan), shape)
    elif _RECTIFIED.search(name):
        drawn = np.where(random.uniform(size=shape) < 0.7, 1, -1) * random.uniform(8, 12, shape)
    else:
        drawn = random.normal(0, 0.1, shape)
    return drawn.astype(np.float32)


def _gain(layer: str) -> float:
    """How much larger than its input a layer's output is, so that offsets and scores are of a trained model's size."""
    return _GAIN.get(layer.rpartition("outputs/")[2], 0.5 if _RECTIFIED.search(layer + "/b") else 1.0)


_GAIN = {"rpn/class": 0.1, "rpn/box": 0.02, "class": 0.3, "box": 0.3, "maskrcnn/conv": 0.15}
_RECTIFIED = re.compile(r"(rpn|fastrcnn|head|maskrcnn)/(conv\d|fcn\d|fc\d?|deconv)/b$")
"""Biases of the heads' layers that a ReLU follows."""


def told(tensor: NDArray[Any]) -> Floats:
    """Norm, maximum of the absolute values, and `ELEMENTS` fixed elements of a tensor."""
    flat = np.asarray(tensor, np.float64).ravel()
    if not flat.size:
        return np.zeros(2 + ELEMENTS, np.float32)
    chosen = np.random.RandomState(flat.size % 2**32).randint(0, flat.size, ELEMENTS)
    return np.concatenate([[np.linalg.norm(flat), np.abs(flat).max()], flat[chosen]]).astype(np.float32)

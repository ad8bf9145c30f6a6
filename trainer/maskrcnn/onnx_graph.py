"""Writer of a trained Mask R-CNN with a pyramid as an ONNX file, for images of one size.

`image` [height, width, 3] uint8, red green blue, to `boxes` [K, 4] (x1 y1 x2 y2 in its pixels), `scores` [K], `labels`
[K] int64 (1 ..) and `masks` [K, 28, 28] over the boxes. Resizing and padding are part of it, as of the SavedModel.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from trainer.common.checkpoints import onnx_file
from trainer.common.files.errors import ConfigError
from trainer.maskrcnn import onnx_layers
from trainer.maskrcnn.boxes import anchor_shapes
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.config_network import STRIDES
from trainer.maskrcnn.onnx_layers import MASK_CELLS, Net
from trainer.maskrcnn.shapes import Shape, padded, resized
from trainer.maskrcnn.weights import BOX_CELLS

OPSET = 16
"""First version whose RoiAlign has coordinates from the middles of pixels."""


def write(path: Path, config: Config, arrays: Mapping[str, NDArray[Any]], size: Shape) -> None:
    """Write the detector of images of this height and width, atomically.

    Raises:
        ConfigError: the model has no pyramid.
        OSError: it cannot be written.
    """
    if not config.mode_fpn:
        raise ConfigError("a model without the pyramid is not written as ONNX: give a folder, for a SavedModel")
    net = Net(config=config, arrays=arrays)
    seen = resized(*size, config.preproc.test_short_edge_size, config.preproc.longest_side)
    shape = padded([seen], config.preproc)
    features = onnx_layers.features(net, _pixels(net, size, seen, shape))
    rois = _proposals(net, features, seen, shape)
    boxes, scores, index = _chosen(net, *_scored(net, features, rois, seen))
    g = net.graph
    ratio = np.array([size[1] / seen[1], size[0] / seen[0]])
    if config.reference == "tensorpack":  # one scale for both sides, as `Detector.detect`
        ratio[:] = math.sqrt(ratio.prod())
    scaled = g.op("Mul", boxes, g.floats(*np.tile(ratio, 2)))
    g.add("Min", [scaled, g.floats(size[1], size[0], size[1], size[0])], "boxes")
    g.add("Identity", [scores], "scores")
    g.add("Add", [index, g.integers(1)], "labels")
    kinds: dict[str, tuple[Any, list[str | int | None]]]
    kinds = {"boxes": (TensorProto.FLOAT, ["K", 4]), "scores": (TensorProto.FLOAT, ["K"])}
    kinds["labels"] = (TensorProto.INT64, ["K"])
    if config.mode_mask:
        g.add("Identity", [onnx_layers.mask_head(net, _pooled(net, features, boxes, MASK_CELLS), index)], "masks")
        kinds["masks"] = (TensorProto.FLOAT, ["K", 2 * MASK_CELLS, 2 * MASK_CELLS])
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, [*size, 3])
    outputs = [helper.make_tensor_value_info(name, *told) for name, told in kinds.items()]
    onnx_file.write(path, g, "maskrcnn", [image], outputs, OPSET)


def _pixels(net: Net, size: Shape, seen: Shape, shape: Shape) -> str:
    """Build the input [1, 3, H, W]: resized as the trainer does, normalised, blue green red, 0 where it is padded."""
    g, preproc = net.graph, net.config.preproc
    x = g.op("Cast", onnx_layers.resized(net, "image", size, seen), to=TensorProto.FLOAT)
    x = g.op("Unsqueeze", g.op("Transpose", x, perm=(2, 0, 1)), g.integers(0))
    mean, inverse = (
        g.constant(f"pixels/{name}", np.reshape(values, (1, 3, 1, 1)))
        for name, values in (("mean", preproc.pixel_mean), ("inverse", 1 / np.array(preproc.pixel_std)))
    )
    x = g.op("Mul", g.op("Sub", x, mean), inverse)
    x = g.op("Gather", x, g.integers(2, 1, 0), axis=1)
    return str(g.op("Pad", x, g.integers(0, 0, 0, 0, 0, 0, shape[0] - seen[0], shape[1] - seen[1])))


def _decoded(net: Net, offsets: str, centre: str, size: str, weights: tuple[float, ...] = (1.0,) * 4) -> str:
    """Decode offsets as `boxes.decode` does, from anchors' centres and sizes. All are [..., 4] or [..., 2]."""
    g = net.graph
    offsets = g.op("Div", offsets, g.floats(*weights)) if set(weights) != {1.0} else offsets
    moved, grown = g.op("Split", offsets, g.integers(2, 2), outputs=2, axis=-1)
    grown = g.op("Exp", g.op("Min", grown, g.floats(math.log(net.config.preproc.growth))))
    half = g.op("Mul", g.op("Mul", size, grown), g.floats(0.5))
    middle = g.op("Add", centre, g.op("Mul", moved, size))
    return str(g.op("Concat", g.op("Sub", middle, half), g.op("Add", middle, half), axis=-1))


def _clipped(net: Net, boxes: str, seen: Shape) -> str:
    g = net.graph
    return str(g.op("Min", g.op("Max", boxes, g.floats(0)), g.floats(seen[1], seen[0], seen[1], seen[0])))


def _proposals(net: Net, features: list[str], seen: Shape, shape: Shape) -> str:
    """Build the best regions of all levels [P, 4], as `rpn.proposals` does."""
    g, rpn = net.graph, net.config.rpn
    kept = []
    for feature, (stride, sizes) in zip(features, net.config.anchor_places, strict=True):
        hidden = net.relu(net.conv("rpn/conv0", feature))
        scores, offsets = (
            g.op("Reshape", g.op("Transpose", net.conv(f"rpn/{part}", hidden), perm=(0, 2, 3, 1)), g.integers(*to))
            for part, to in (("class", (-1,)), ("box", (-1, 4)))
        )
        anchors = _anchors(net, stride, sizes, (-(-shape[0] // stride), -(-shape[1] // stride)))
        most = min(rpn.test_per_level_pre_nms_topk, len(anchors))
        scores, index = g.op("TopK", scores, g.integers(most), outputs=2)
        centre, size = (
            g.op("Gather", g.constant(f"anchors/{stride}/{name}", array), index, axis=0)
            for name, array in (
                ("centre", (anchors[:, :2] + anchors[:, 2:]) / 2),
                ("size", anchors[:, 2:] - anchors[:, :2]),
            )
        )
        boxes = _clipped(net, _decoded(net, g.op("Gather", offsets, index, axis=0), centre, size), seen)
        first, last = g.op("Split", boxes, g.integers(2, 2), outputs=2, axis=1)
        least = g.op("ReduceMin", g.op("Sub", last, first), axes=(1,), keepdims=0)
        large = g.op("Greater", least, g.floats(rpn.min_size))
        boxes, scores = (g.op("Compress", v, large, axis=0) for v in (boxes, scores))
        limits = (g.integers(rpn.test_per_level_nms_topk), g.floats(rpn.proposal_nms_thresh))
        alone = g.op("Unsqueeze", boxes, g.integers(0)), g.op("Unsqueeze", scores, g.integers(0, 1))
        best = g.op("Gather", g.op("NonMaxSuppression", *alone, *limits), g.integers(2), axis=1)
        best = g.op("Squeeze", best, g.integers(1))
        kept.append([g.op("Gather", v, best, axis=0) for v in (boxes, scores)])
    boxes, scores = (g.op("Concat", *parts, axis=0) for parts in zip(*kept, strict=True))
    _, index = g.op("TopK", scores, _at_most(net, scores, rpn.test_image_topk), outputs=2)
    return str(g.op("Gather", boxes, index, axis=0))


def _anchors(net: Net, stride: int, sizes: tuple[int, ...], cells: Shape) -> NDArray[np.float32]:
    """Return the anchors of `boxes.anchors`, equal to the bit: their rounding decides the order where scores tie."""
    y, x = ((np.arange(n) + net.config.rpn.anchor_center) * stride for n in cells)
    centers = np.stack([*np.meshgrid(x, y)] * 2, -1)
    shapes = np.concatenate([anchor_shapes(size, net.config.rpn.anchor_ratios) for size in sizes])
    return (centers[:, :, None] + shapes).reshape(-1, 4).astype(np.float32)


def _at_most(net: Net, values: str, most: int) -> str:
    """Return the number of values to keep, [1]: `most`, or all of the [N] values if they are fewer."""
    return str(net.graph.op("Min", net.graph.op("Shape", values), net.graph.integers(most)))


def _pooled(net: Net, features: list[str], rois: str, cells: int) -> str:
    """Build [N, C, cells, cells] of each region from its level, as `roi.pyramid_roi_align` does."""
    g = net.graph
    first, last = g.op("Split", rois, g.integers(2, 2), outputs=2, axis=1)
    sides = g.op("Max", g.op("Sub", last, first), g.floats(0))
    width, height = g.op("Split", sides, g.integers(1, 1), outputs=2, axis=1)
    side = g.op("Sqrt", g.op("Max", g.op("Mul", width, height), g.floats(1e-6)))
    share = g.op("Add", g.op("Div", side, g.floats(224)), g.floats(1e-6))
    level = g.op("Floor", g.op("Add", g.op("Div", g.op("Log", share), g.floats(math.log(2))), g.floats(4)))
    level = g.op("Squeeze", g.op("Clip", level, *_scalars(net, 2, 5)), g.integers(1))
    parts, order = [], []
    for i, (feature, stride) in enumerate(zip(features[:4], STRIDES[:4], strict=True)):
        index = g.op("Squeeze", g.op("NonZero", g.op("Equal", level, g.floats(2 + i))), g.integers(0))
        zeros = g.op("Mul", index, g.integers(0))  # all on the one image
        how: dict[str, Any] = {
            "output_height": cells,
            "output_width": cells,
            "sampling_ratio": 2,
            "spatial_scale": 1 / stride,
        }
        own = g.op("Gather", rois, index, axis=0)
        parts.append(g.op("RoiAlign", feature, own, zeros, coordinate_transformation_mode="half_pixel", **how))
        order.append(index)
    where = g.op("Concat", *order, axis=0)
    _, back = g.op("TopK", where, g.op("Shape", where), outputs=2, largest=0)
    return str(g.op("Gather", g.op("Concat", *parts, axis=0), back, axis=0))


def _scalars(net: Net, *values: float) -> list[str]:
    return [net.graph.constant(f"scalar {value}", np.array(value)) for value in values]


def _scored(net: Net, features: list[str], rois: str, seen: Shape) -> tuple[str, str]:
    """Build class probabilities [P, classes] and boxes [P, classes or 1, 4] in the image, as `scored_boxes` does."""
    config, g = net.config, net.graph
    if not config.fpn.cascade:
        hidden = onnx_layers.box_head(net, "fastrcnn", _pooled(net, features, rois, BOX_CELLS))
        logits = net.dense("fastrcnn/outputs/class", hidden)
        offsets = g.op("Reshape", net.dense("fastrcnn/outputs/box", hidden), g.integers(-1, config.num_classes, 4))
        boxes = _moved(net, offsets, g.op("Unsqueeze", rois, g.integers(1)), config.frcnn.bbox_reg_weights, seen)
        return g.op("Softmax", logits, axis=1), boxes
    chances = []
    for stage, weights in enumerate(config.cascade.bbox_reg_weights, 1):
        scope = f"cascade_rcnn_stage{stage}"
        hidden = onnx_layers.box_head(net, f"{scope}/head", _pooled(net, features, rois, BOX_CELLS))
        chances.append(g.op("Softmax", net.dense(f"{scope}/outputs/class", hidden), axis=1))
        rois = _moved(net, net.dense(f"{scope}/outputs/box", hidden), rois, weights, seen)
    return g.op("Mean", *chances), g.op("Unsqueeze", rois, g.integers(1))


def _moved(net: Net, offsets: str, rois: str, weights: tuple[float, ...], seen: Shape) -> str:
    """Return the boxes that the offsets from regions describe, clipped to the image."""
    g = net.graph
    first, last = g.op("Split", rois, g.integers(2, 2), outputs=2, axis=-1)
    centre = g.op("Mul", g.op("Add", first, last), g.floats(0.5))
    return _clipped(net, _decoded(net, offsets, centre, g.op("Sub", last, first), weights), seen)


def _chosen(net: Net, chances: str, boxes: str) -> tuple[str, str, str]:
    """Build boxes [K, 4], scores [K] and categories [K] from 0: the best that suppression per category keeps."""
    g, test = net.graph, net.config.test
    categories = net.config.num_classes - 1
    of_class = g.op("Transpose", g.op("Slice", chances, g.integers(1), g.integers(categories + 1), g.integers(1)))
    if net.config.fpn.cascade:
        ones = g.constant("one per category", np.ones((categories, 1, 1)))
        by_class = g.op("Mul", g.op("Transpose", boxes, perm=(1, 0, 2)), ones)
    else:
        own = g.op("Slice", boxes, g.integers(1), g.integers(categories + 1), g.integers(1))
        by_class = g.op("Transpose", own, perm=(1, 0, 2))
    limits = (g.integers(test.results_per_im), g.floats(test.frcnn_nms_thresh), g.floats(test.result_score_thresh))
    found = g.op("NonMaxSuppression", by_class, g.op("Unsqueeze", of_class, g.integers(1)), *limits)
    category, _, place = g.op("Split", found, g.integers(1, 1, 1), outputs=3, axis=1)
    where = g.op("Concat", category, place, axis=1)
    scores = g.op("GatherND", of_class, where)
    best, index = g.op("TopK", scores, _at_most(net, scores, test.results_per_im), outputs=2)
    where = g.op("Gather", where, index, axis=0)
    category = g.op("Squeeze", g.op("Gather", where, g.integers(0), axis=1), g.integers(1))
    return g.op("GatherND", by_class, where), best, category

"""Operations on boxes: [N, 4] float32, x1 y1 x2 y2 in pixels.

A box covers x1 to x2, so its width is x2 - x1 (no plus one).

They split and unstack boxes instead of slicing them: a slice is four operations in a graph, which each step executes.
"""

import math

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from trainer.maskrcnn.config_network import GROWTH


def area(boxes: tf.Tensor) -> tf.Tensor:
    """Return the areas, [..., 4] to [...]. A box whose corners are swapped has area 0."""
    first, last = tf.split(boxes, 2, -1)
    width, height = tf.unstack(tf.maximum(last - first, 0), 2, -1)
    return width * height


def intersection(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Return the shared area of every pair: [N, 4] and [M, 4] to [N, M]."""
    left_a, top_a, right_a, bottom_a = tf.unstack(tf.expand_dims(a, 1), 4, -1)
    left_b, top_b, right_b, bottom_b = tf.unstack(tf.expand_dims(b, 0), 4, -1)
    width = tf.minimum(right_a, right_b) - tf.maximum(left_a, left_b)
    height = tf.minimum(bottom_a, bottom_b) - tf.maximum(top_a, top_b)
    return tf.maximum(width, 0) * tf.maximum(height, 0)


def iou(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Return the intersection over union of every pair: [N, 4] and [M, 4] to [N, M]; 0 where a box has no area."""
    shared = intersection(a, b)
    return tf.math.divide_no_nan(shared, area(a)[:, None] + area(b)[None, :] - shared)


def precise_iou(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Return `iou` with the operations of pycocotools, to the last bit, which decides the boxes that tie as best."""
    sides_a, sides_b = (tf.cast(v[:, 2:] - v[:, :2], tf.float64) for v in (a, b))
    first_a, first_b = (tf.cast(v[:, :2], tf.float64) for v in (a, b))
    last = tf.minimum((sides_a + first_a)[:, None], (sides_b + first_b)[None])
    width, height = tf.unstack(tf.maximum(last - tf.maximum(first_a[:, None], first_b[None]), 0), 2, axis=2)
    shared = width * height
    areas = (sides_a[:, 0] * sides_a[:, 1])[:, None] + (sides_b[:, 0] * sides_b[:, 1])[None]
    return tf.cast(tf.math.divide_no_nan(shared, areas - shared), tf.float32)


def covered(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Return the share of each box of `a` that lies in each box of `b`: [N, 4] and [M, 4] to [N, M]."""
    return tf.math.divide_no_nan(intersection(a, b), area(a)[:, None])


def encode(boxes: tf.Tensor, anchors: tf.Tensor, weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> tf.Tensor:
    """Return the offsets tx ty tw th that turn anchors into boxes; both [..., 4]. Zero sides count as 1e-3 pixel.

    Source: Faster R-CNN, arXiv:1506.01497, equation 2, each number times its weight.
    """
    size, center = _size_center(boxes)
    anchor_size, anchor_center = _size_center(anchors)
    size, anchor_size = tf.maximum(size, 1e-3), tf.maximum(anchor_size, 1e-3)
    offsets = tf.concat([(center - anchor_center) / anchor_size, tf.math.log(size / anchor_size)], -1)
    return offsets * tf.constant(weights, tf.float32)


def decode(
    offsets: tf.Tensor, anchors: tf.Tensor, weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0), growth: float = GROWTH
) -> tf.Tensor:
    """Decode offsets to boxes, the inverse of `encode`. Sides are at most `growth` times the anchor's."""
    offsets = offsets / tf.constant(weights, tf.float32)
    size, center = _size_center(anchors)
    moved, grown = tf.split(offsets, 2, -1)
    center += moved * size
    half = 0.5 * size * tf.exp(tf.minimum(grown, math.log(growth)))
    return tf.concat([center - half, center + half], -1)


def clip(boxes: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Move every corner of the boxes inside the image. NaN becomes 0, since no region can be read there.

    Args:
        boxes: [..., 4].
        size: [2] float32, height then width in pixels.
    """
    limit = tf.tile(tf.reverse(size, [0]), [2])
    return tf.minimum(tf.maximum(tf.where(tf.math.is_nan(boxes), 0.0, boxes), 0), limit)


def nms(
    boxes: tf.Tensor, scores: tf.Tensor, limit: int, threshold: float, min_score: float = float("-inf")
) -> tf.Tensor:
    """Return the indices [K <= limit] that greedy non-maximum suppression keeps, best score first.

    A box is dropped if its intersection over union with a kept one is above the threshold.
    """
    return tf.image.non_max_suppression(boxes, scores, limit, threshold, min_score)


def best_of_all(
    boxes: tf.Tensor, scores: tf.Tensor, limit: int, threshold: float, min_score: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the best boxes that `nms` keeps per category: boxes [K <= limit, 4], scores [K] and categories [K] int32.

    Of equal scores the first category's comes first, and then the first box. TensorFlow's operation for all categories
    does not define that order. So it gets ranks instead of scores.

    Args:
        boxes: [N, C, 4], or [N, 1, 4] for all categories.
        scores: [N, C], of which those above `min_score` count.
    """
    by_category = tf.transpose(scores)
    where = tf.where(by_category > min_score)
    ordered, order = tf.math.top_k(tf.gather_nd(by_category, where), tf.shape(where)[0])
    count = tf.size(ordered)
    ranks = tf.cast(tf.range(count, 0, -1), tf.float32)  # whole numbers, exact up to 2 ** 24
    places = tf.gather(where, order)[:, ::-1]
    by_rank = tf.scatter_nd(places, ranks, tf.shape(scores, tf.int64))
    kept, ranks, categories, found = tf.image.combined_non_max_suppression(
        boxes[None], by_rank[None], limit, limit, threshold, 0.0, clip_boxes=False
    )
    best = slice(found[0])
    index = count - tf.cast(ranks[0, best], tf.int32)
    return tf.reshape(kept[0, best], [-1, 4]), tf.gather(ordered, index), tf.cast(categories[0, best], tf.int32)


def anchor_shapes(size: float, ratios: tuple[float, ...]) -> NDArray[np.float64]:
    """Return [len(ratios), 4] boxes around 0 0 with area size x size and height over width = ratio."""
    widths = np.array([math.sqrt(size * size / r) for r in ratios])
    heights = widths * np.array(ratios)
    return np.stack([-widths, -heights, widths, heights], 1) / 2


def anchors(
    height: tf.Tensor,
    width: tf.Tensor,
    stride: int,
    sizes: tuple[float, ...],
    ratios: tuple[float, ...],
    center: float = 0.5,
) -> tf.Tensor:
    """Return [height x width x sizes x ratios, 4] anchors on the cells of a [height, width] feature map, row by row.

    Their centres are `center` of a cell's side to the right of its left and below its upper edge.
    """
    x = (tf.cast(tf.range(width), tf.float64) + center) * stride
    y = (tf.cast(tf.range(height), tf.float64) + center) * stride
    centers = tf.stack([*tf.meshgrid(x, y)] * 2, -1)  # [height, width, 4]
    shapes = np.concatenate([anchor_shapes(size, ratios) for size in sizes])
    return tf.cast(tf.reshape(centers[:, :, None, :] + shapes, [-1, 4]), tf.float32)


def _size_center(boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    first, last = tf.split(boxes, 2, -1)
    return last - first, 0.5 * (last + first)

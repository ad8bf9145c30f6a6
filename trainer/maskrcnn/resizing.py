"""Resizing of an image to the same bytes as cv2, the first operation of an exported detector in either format.

cv2's bilinear resize computes in whole numbers, along the rows first. A neighbour's weight is a whole number of 1/2048,
and low bits are cut off between the steps. Exact sums, rounded at the end, would differ by a grey level at every eighth
pixel. Source: HResizeLinear and VResizeLinear in modules/imgproc/src/resize.cpp of OpenCV.
"""

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

ONE = 2048
"""Integer that represents a weight of 1."""
CUT_ACROSS, CUT_DOWN, LEFT = 1 << 4, 1 << 16, 1 << 2
"""Divisors of the sums along a row, of each row's share, and of the sum of both rows. Only the last is rounded."""


def taps(length: int, wanted: int, *, is_across: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the two neighbours of each wanted pixel among a side's `length` ones, and their weights: both [2, wanted].

    Args:
        is_across: along a row, where a pixel beyond the outermost centres is all the outermost one's; a column's has
            two equal neighbours there, which is a bit less.
    """
    at = ((np.arange(wanted) + 0.5) * (1 / (wanted / length)) - 0.5).astype(np.float32)
    first = np.floor(at)
    beyond = at - first
    if is_across:
        beyond[(first < 0) | (first >= length - 1)] = 0
    weights = np.rint(np.stack([1 - beyond, beyond]) * np.float32(ONE))
    return np.clip([first, first + 1], 0, length - 1).astype(np.int32), weights.astype(np.int32)


def resized(image: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Resize [h, w, C] uint8 to [size[0], size[1], C] float32 of whole numbers 0 .. 255. Neither size need be static.

    It computes in floating point, which GPUs support and which is exact here: no product has more than 26 bits.
    """
    shape = tf.shape(image)
    (left, right), weights = _taps(shape[1], size[1], is_across=True)
    pixels = tf.cast(image, tf.float32)
    across = tf.gather(pixels, left, axis=1) * weights[0][:, None]
    across = tf.floor((across + tf.gather(pixels, right, axis=1) * weights[1][:, None]) / CUT_ACROSS)
    rows, weights = _taps(shape[0], size[0], is_across=False)
    shares = [tf.cast(weight, tf.float64)[:, None, None] / CUT_DOWN for weight in weights]
    across = tf.cast(across, tf.float64)
    above, below = (tf.floor(tf.gather(across, row) * share) for row, share in zip(rows, shares, strict=True))
    return tf.floor((tf.cast(above + below, tf.float32) + LEFT // 2) / LEFT)


def _taps(
    length: tf.Tensor, wanted: tf.Tensor, *, is_across: bool
) -> tuple[tuple[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Return the pixels and weights that `taps` returns, with the weights in float32."""
    scale = 1 / (tf.cast(wanted, tf.float64) / tf.cast(length, tf.float64))
    at = tf.cast((tf.cast(tf.range(wanted), tf.float64) + 0.5) * scale - 0.5, tf.float32)
    first = tf.floor(at)
    beyond = at - first
    first = tf.cast(first, tf.int32)
    if is_across:
        beyond = tf.where((first < 0) | (first >= length - 1), 0.0, beyond)
    low, high = (tf.clip_by_value(v, 0, length - 1) for v in (first, first + 1))
    return (low, high), (tf.round((1 - beyond) * ONE), tf.round(beyond * ONE))

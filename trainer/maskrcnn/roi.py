"""RoIAlign over the levels of a pyramid."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from trainer.maskrcnn.boxes import area


def levels(boxes: tf.Tensor) -> tf.Tensor:
    """The pyramid level 0 .. 3 (P2 .. P5) of each box: [N, 4] to [N] int32.

    Source: arXiv:1612.03144, equation 1: a box of 224 x 224 pixels goes to P4.
    """
    side = tf.sqrt(tf.maximum(area(boxes), 1e-6))
    level = tf.floor(4 + tf.math.log(side / 224 + 1e-6) / tf.math.log(2.0))
    return tf.cast(tf.clip_by_value(level, 2, 5), tf.int32) - 2


def roi_align(features: tf.Tensor, boxes: tf.Tensor, image: tf.Tensor, stride: int, bins: int) -> tf.Tensor:
    """Mean of 2 x 2 bilinear samples in each of bins x bins cells of each box.

    Args:
        features: [B, H, W, C]; cell (i, j) lies at pixel ((j + .5) stride, (i + .5) stride). Outside, the edge goes on.
        boxes: [N, 4] in pixels.
        image: [N] int32, the image of the batch each box lies on.
    Returns:
        [N, bins, bins, C] float32.
    Source: Mask R-CNN, arXiv:1703.06870, section 3, with half-pixel centres.
    """
    padded = tf.pad(tf.cast(features, tf.float32), [[0, 0], [1, 1], [1, 1], [0, 0]], mode="SYMMETRIC")
    samples = crop(padded, boxes / stride + 1, image, 2 * bins)
    return tf.nn.avg_pool2d(samples, 2, 2, "VALID")


def pyramid_roi_align(
    features: list[tf.Tensor], boxes: tf.Tensor, image: tf.Tensor, strides: tuple[int, ...], bins: int
) -> tf.Tensor:
    """`roi_align` of each box on its own level of P2 .. P5, in the order of the boxes."""
    level = levels(boxes)
    parts, order = [], []
    for i, (feature, stride) in enumerate(zip(features, strides, strict=True)):
        index = tf.reshape(tf.where(tf.equal(level, i)), [-1])
        parts.append(roi_align(feature, tf.gather(boxes, index), tf.gather(image, index), stride, bins))
        order.append(index)
    where = tf.cast(tf.concat(order, 0), tf.int32)
    return tf.gather(tf.concat(parts, 0), tf.math.invert_permutation(where))


def crop(images: tf.Tensor, boxes: tf.Tensor, image: tf.Tensor, size: int) -> tf.Tensor:
    """Bilinear samples at the centres of size x size cells of each box: [N, size, size, C] float32.

    Args:
        images: [B, H, W, C]; pixel (i, j) covers i .. i + 1, j .. j + 1 and has its value in the middle.
        boxes: [N, 4] in those pixels; samples beyond the centres of the outermost pixels are 0.
    """
    shape = tf.cast(tf.shape(images)[1:3], tf.float32)
    first, last = tf.split(boxes, 2, 1)
    cell = (last - first) / size
    first, last = first + cell / 2 - 0.5, last - cell / 2 - 0.5
    limit = tf.maximum(shape - 1, 1e-6)  # crop_and_resize counts 0 .. 1 from the first to the last pixel's centre
    corners = tf.concat([tf.reverse(first, [1]) / limit, tf.reverse(last, [1]) / limit], 1)  # y before x
    return _sampled(images, corners, image, size)


def _sampled(images: tf.Tensor, corners: tf.Tensor, image: tf.Tensor, size: int) -> tf.Tensor:
    """TensorFlow's `crop_and_resize`, with a gradient to the images of our own on a CPU; the boxes get none.

    TensorFlow's adds to the pixels that samples share from several threads without a lock there, unless
    `enable_op_determinism` is set, and loses sums: up to a third of a gradient's largest element with four threads.
    """
    if tf.config.get_visible_devices("GPU"):
        return tf.image.crop_and_resize(images, corners, image, [size, size])

    @tf.custom_gradient
    def sampled(
        images: tf.Tensor, corners: tf.Tensor, image: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, None, None]]]:
        found = tf.image.crop_and_resize(images, corners, image, [size, size])
        return found, lambda dy: (_added_up(dy, corners, image, tf.shape(images)), None, None)

    return sampled(images, corners, image)


def _added_up(dy: tf.Tensor, corners: tf.Tensor, image: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """The gradient of `crop_and_resize` to its images, [B, H, W, C] as in `shape`.

    It is the transpose of taking samples: a product by a sparse matrix of pixels by samples, whose every sum is one
    thread's.

    Args:
        dy: [N, size, size, C]; corners: [N, 4] of y1, x1, y2, x2 in 0 .. 1; image: [N] int32.
    """
    size = dy.shape[1]
    images, height, width, channels = tf.unstack(tf.cast(shape, tf.int64))
    count = tf.size(image, tf.int64) * (size * size)
    top, left, bottom, right = tf.unstack(corners, 4, 1)
    rows, row_weights = _neighbours(top, bottom, height, size)
    columns, column_weights = _neighbours(left, right, width, size)
    down, across = [-1, size, 1, 2, 1], [-1, 1, size, 1, 2]
    first = tf.reshape(tf.cast(image, tf.int64) * height, [-1, 1, 1])
    pixels = tf.reshape((first + rows) * width, down) + tf.reshape(columns, across)  # [N, size, size, 2, 2]
    weights = tf.reshape(row_weights, down) * tf.reshape(column_weights, across)
    samples = tf.broadcast_to(tf.reshape(tf.range(count), [-1, size, size, 1, 1]), tf.shape(pixels))
    matrix = tf.SparseTensor(
        tf.reshape(tf.stack([pixels, samples], -1), [-1, 2]),
        tf.reshape(weights, [-1]),
        tf.stack([images * height * width, count]),
    )
    return tf.reshape(tf.sparse.sparse_dense_matmul(matrix, tf.reshape(dy, tf.stack([-1, channels]))), shape)


def _neighbours(first: tf.Tensor, last: tf.Tensor, length: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The two pixels on either side of each of `size` samples along one side of each box, and their weights.

    Args:
        first, last: [N], where the outermost samples lie between the first pixel's centre, 0, and the last one's, 1.
        length: pixels along that side.
    Returns:
        [N, size, 2] int64 and [N, size, 2] float32; a sample beyond the pixels has the weights 0.
    """
    limit = tf.cast(length - 1, tf.float32)
    step = (last - first) * limit / max(size - 1, 1)
    at = tf.expand_dims(first * limit, 1) + np.arange(size, dtype=np.float32) * tf.expand_dims(step, 1)
    is_inside = tf.cast((at >= 0) & (at <= limit), tf.float32)
    low = tf.floor(tf.clip_by_value(at, 0.0, limit))
    beyond = at - low
    pixels = tf.cast(tf.stack([low, tf.minimum(low + 1, limit)], -1), tf.int64)
    return pixels, tf.stack([1 - beyond, beyond], -1) * tf.expand_dims(is_inside, -1)

"""RoIAlign on one feature map and over the levels of a pyramid."""

import numpy as np
import tensorflow as tf

from trainer.maskrcnn.boxes import area


def levels(boxes: tf.Tensor) -> tf.Tensor:
    """Return the pyramid level 0 .. 3 (P2 .. P5) of each box: [N, 4] to [N] int32.

    Source: arXiv:1612.03144, equation 1: a box of 224 x 224 pixels goes to P4.
    """
    side = tf.sqrt(tf.maximum(area(boxes), 1e-6))
    level = tf.floor(4 + tf.math.log(side / 224 + 1e-6) / tf.math.log(2.0))
    return tf.cast(tf.clip_by_value(level, 2, 5), tf.int32) - 2


def roi_align(features: tf.Tensor, boxes: tf.Tensor, image: tf.Tensor, stride: int, bins: int) -> tf.Tensor:
    """Return the mean of 2 x 2 bilinear samples in each of bins x bins cells of each box.

    Args:
        features: [B, H, W, C]; cell (i, j) lies at pixel ((j + .5) stride, (i + .5) stride). The edge extends outside.
        boxes: [N, 4] in pixels.
        image: [N] int32, the image of the batch each box lies on.

    Returns:
        [N, bins, bins, C] float32.

    Source: Mask R-CNN, arXiv:1703.06870, section 3, with half-pixel centres.
    """
    features = tf.cast(features, tf.float32)
    if not tf.config.get_visible_devices("GPU"):
        return _by_product(features, boxes / stride, image, bins)
    padded = tf.pad(features, [[0, 0], [1, 1], [1, 1], [0, 0]], mode="SYMMETRIC")
    samples = crop(padded, boxes / stride + 1, image, 2 * bins)
    return tf.nn.avg_pool2d(samples, 2, 2, "VALID")


def _by_product(features: tf.Tensor, boxes: tf.Tensor, image: tf.Tensor, bins: int) -> tf.Tensor:
    """Compute `roi_align` as a product by a sparse matrix of cells by pixels, and its gradient as one by the transpose.

    On CPUs this is faster than samples and their mean, which are four times as large. It also avoids an error of
    TensorFlow. There the gradient of samples adds to shared pixels from several threads without a lock, unless
    `enable_op_determinism` is set. Sums get lost: up to a third of a gradient's largest element with four threads. Here
    one thread computes every sum.

    Args:
        boxes: [N, 4] in pixels of `features`.
    """
    images, height, width, channels = tf.unstack(tf.shape(features, out_type=tf.int64))
    left, top, right, bottom = tf.unstack(boxes, 4, 1)
    rows, row_weights = _taps(top, bottom, height, bins)
    columns, column_weights = _taps(left, right, width, bins)
    count = tf.size(image, tf.int64)
    cell = np.repeat(np.arange(bins, dtype=np.int64), 4)
    pixels = ((tf.cast(image, tf.int64) * height)[:, None] + rows)[:, :, None] * width + columns[:, None]
    cells = (tf.range(count)[:, None] * bins + cell)[:, :, None] * bins + cell
    weights = row_weights[:, :, None] * column_weights[:, None]
    matrix = tf.SparseTensor(
        tf.reshape(tf.stack([cells, pixels], -1), [-1, 2]),
        tf.reshape(tf.stop_gradient(weights), [-1]),
        tf.stack([count * (bins * bins), images * height * width]),
    )
    found = tf.sparse.sparse_dense_matmul(matrix, tf.reshape(features, tf.stack([-1, channels])))
    return tf.reshape(found, tf.stack([count, bins, bins, channels]))


def _taps(first: tf.Tensor, last: tf.Tensor, length: tf.Tensor, bins: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the pixels that two samples in each of `bins` cells along one side of each box read, and their weights.

    Args:
        first, last: [N], the box's sides in pixels.
        length: pixels along that side; a sample beyond the outermost ones' centres reads them.

    Returns:
        [N, 4 bins] int64 and float32, four of each cell, whose weights have the sum 1.
    """
    limit = tf.cast(length - 1, tf.float32)
    middles = np.arange(0.5, 2 * bins, dtype=np.float32)
    step = (last - first) / (2 * bins)
    at = tf.clip_by_value(first[:, None] + middles * step[:, None] - 0.5, 0.0, limit)
    low = tf.floor(at)
    beyond = (at - low) / 2
    pixels = tf.cast(tf.stack([low, tf.minimum(low + 1, limit)], -1), tf.int64)
    weights = tf.stack([0.5 - beyond, beyond], -1)
    return tf.reshape(pixels, [-1, 4 * bins]), tf.reshape(weights, [-1, 4 * bins])


def pyramid_roi_align(
    features: list[tf.Tensor], boxes: tf.Tensor, image: tf.Tensor, strides: tuple[int, ...], bins: int
) -> tf.Tensor:
    """Apply `roi_align` to each box on its own level of P2 .. P5, in the order of the boxes."""
    level = levels(boxes)
    parts, order = [], []
    for i, (feature, stride) in enumerate(zip(features, strides, strict=True)):
        index = tf.reshape(tf.where(tf.equal(level, i)), [-1])
        parts.append(roi_align(feature, tf.gather(boxes, index), tf.gather(image, index), stride, bins))
        order.append(index)
    where = tf.cast(tf.concat(order, 0), tf.int32)
    return tf.gather(tf.concat(parts, 0), tf.math.invert_permutation(where))


def crop(images: tf.Tensor, boxes: tf.Tensor, image: tf.Tensor, size: int) -> tf.Tensor:
    """Return bilinear samples at the centres of size x size cells of each box: [N, size, size, C] float32.

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
    return tf.image.crop_and_resize(images, corners, image, [size, size])

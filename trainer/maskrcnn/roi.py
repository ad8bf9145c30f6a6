"""RoIAlign over the levels of a pyramid."""

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
    cell = (boxes[:, 2:] - boxes[:, :2]) / size
    first = boxes[:, :2] + cell / 2 - 0.5
    last = boxes[:, 2:] - cell / 2 - 0.5
    limit = tf.maximum(shape - 1, 1e-6)  # crop_and_resize counts 0 .. 1 from the first to the last pixel's centre
    corners = tf.concat([first[:, ::-1] / limit, last[:, ::-1] / limit], 1)  # y before x
    return tf.image.crop_and_resize(images, corners, image, [size, size])

"""Augmentation of images on the device: flips, colours, normalisation, mixup. Each image's seeds decide its draws."""

import math
from dataclasses import dataclass

import tensorflow as tf

from trainer.resnet50.network import OWN, TO_YIQ, VARIANTS, Pixels

FLIP, BRIGHTNESS, HUE, SATURATION, CONTRAST = range(5)  # streams of random numbers


@dataclass(frozen=True)
class Colours:
    """Largest changes of the colours, from the flags."""

    brightness: float
    hue: float
    saturation: float
    contrast: float


def uniform(seeds: tf.Tensor, stream: int) -> tf.Tensor:
    """Return [N] float32 in [0, 1), a hash of each image's seeds. Source: splitmix64's finaliser (Steele et al., 2014).

    Args:
        seeds: [N, 2] int64.
        stream: which number of the image; different streams do not resemble each other.
    """
    x = tf.bitcast(seeds, tf.uint64)
    mixed = _mix(_mix(x[:, 0] + _u64(0x9E3779B97F4A7C15 * (stream + 1))) + x[:, 1])
    return tf.cast(tf.bitwise.right_shift(mixed, _u64(40)), tf.float32) / 2**24


def _u64(value: int) -> tf.Tensor:
    return tf.constant(value & 0xFFFFFFFFFFFFFFFF, tf.uint64)


def _mix(x: tf.Tensor) -> tf.Tensor:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u64(shift))) * _u64(factor)
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u64(31)))


def flip_half(images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """Mirror about half of the images, at random."""
    # CPUs reverse whole pixels of rank 3, else byte by byte, which takes 4 times as long, and a slice [::-1] 20 times.
    rows = tf.reshape(images, [-1, *images.shape[2:]])
    mirrored = tf.reshape(tf.reverse(rows, [1]), tf.shape(images))
    return tf.compat.v1.where(uniform(seeds, FLIP) < 0.5, mirrored, images)  # copies images; v2 compares each byte


def normalise(images: tf.Tensor, dtype: tf.DType, pixels: Pixels = VARIANTS[OWN].pixels) -> tf.Tensor:
    """Normalise pixels of 0 to 255 to the computing type, by default to about zero mean and unit deviation."""
    width = images.shape[-2] or 1  # a row at once, where its length is known: a pixel at once takes 4 times as long
    mean, inverse = (
        tf.constant(tuple(values) * width, dtype) for values in (pixels.mean, [1 / d for d in pixels.deviation])
    )
    x = tf.cast(images, dtype)
    rows = x if width == 1 else tf.reshape(x, tf.concat([tf.shape(x)[:-2], [3 * width]], 0))
    return tf.reshape((rows - mean) * inverse, tf.shape(x))


def vary_colours(images: tf.Tensor, seeds: tf.Tensor, largest: Colours) -> tf.Tensor:
    """Change brightness, then hue and saturation in YIQ, then contrast, each at random.

    The result is [N, H, W, 3] float32 in 0 to 255.
    """

    def drawn(stream: int, middle: float, reach: float) -> tf.Tensor:
        return middle + reach * (2 * uniform(seeds, stream) - 1)

    x = tf.cast(images, tf.float32)
    x += 255 * drawn(BRIGHTNESS, 0, largest.brightness)[:, None, None, None]
    turn = colour_matrix(drawn(HUE, 0, largest.hue * math.pi), drawn(SATURATION, 1, largest.saturation))
    x = tf.einsum("nhwc,ndc->nhwd", x, turn)
    mean = tf.reduce_mean(x, axis=(1, 2), keepdims=True)
    x = mean + (x - mean) * drawn(CONTRAST, 1, largest.contrast)[:, None, None, None]
    return tf.clip_by_value(x, 0, 255)


def colour_matrix(angle: tf.Tensor, saturation: tf.Tensor) -> tf.Tensor:
    """Return [N, 3, 3], which rotates RGB's colour by the angle (radians) in the plane of I and Q and scales it."""
    to_yiq = tf.constant(TO_YIQ)
    zero, one = tf.zeros_like(angle), tf.ones_like(angle)
    cos, sin = saturation * tf.cos(angle), saturation * tf.sin(angle)
    inside = tf.stack([tf.stack(row, 1) for row in ((one, zero, zero), (zero, cos, -sin), (zero, sin, cos))], 1)
    return tf.linalg.inv(to_yiq) @ inside @ to_yiq


def targets(labels: tf.Tensor, classes: int, smoothing: float) -> tf.Tensor:
    """Return [N, classes] float32 of sum 1: `smoothing` spread evenly, the rest on the label.

    Source: Szegedy et al., arXiv:1512.00567, section 7.
    """
    return tf.one_hot(labels, classes) * (1 - smoothing) + smoothing / classes


def mixup_share(seeds: tf.Tensor, alpha: float) -> tf.Tensor:
    """Draw [] float32 in [0, 1] from Beta(alpha, alpha), by the first image's seeds. XLA cannot draw it."""
    a, b = (tf.random.stateless_gamma([], seeds[0] + stream, alpha) + 1e-30 for stream in (0, 1))
    return a / (a + b)


def mixup(x: tf.Tensor, wanted: tf.Tensor, share: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Mix each image and its target with those of its mirror place in the batch, by one share for all.

    Source: Zhang et al., arXiv:1710.09412.
    """
    in_x = tf.cast(share, x.dtype)
    return x * in_x + x[::-1] * (1 - in_x), wanted * share + wanted[::-1] * (1 - share)

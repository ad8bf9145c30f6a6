"""Checks on reduced gradients, and their consequences: the learning rate and the next loss scale."""

from collections.abc import Iterable

import tensorflow as tf

from trainer.common.ranks.precision import GROWS_AFTER, LARGEST_SCALE


def are_finite(tensors: Iterable[tf.Tensor]) -> tf.Tensor:
    """Return True if no tensor contains an infinity or a NaN."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(t)) for t in tensors])


def larc_factor(weight: tf.Tensor, gradient: tf.Tensor, lr: tf.Tensor, eta: float) -> tf.Tensor:
    """Return LARC's factor min(eta |w| / |g| / lr, 1); 1 where a norm is zero.

    Args:
        gradient: with the weight decay in it.

    Source: You et al., arXiv:1708.03888, in the clipping form of the reference.
    """
    w, g = tf.norm(weight), tf.norm(gradient)
    return tf.where((w > 0) & (g > 0), tf.minimum(eta * w / tf.maximum(g, 1e-30) / lr, 1.0), 1.0)


def next_scale(scale: tf.Tensor, good: tf.Tensor, is_finite: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the dynamic loss scale after a step, and the number of finite steps in a row since it last changed."""
    good = tf.where(is_finite, good + 1, 0)
    grows = good >= GROWS_AFTER
    larger = tf.where(grows, tf.minimum(scale * 2, LARGEST_SCALE), scale)
    return tf.where(is_finite, larger, tf.maximum(scale / 2, 1.0)), tf.where(grows, 0, good)

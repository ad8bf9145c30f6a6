"""What is done with reduced gradients: unscaled, LARC, Nesterov momentum; and the loss scale that follows them."""

from collections.abc import Iterable

import tensorflow as tf

FIRST_SCALE = 2.0**15
GROWS_AFTER = 2000  # good steps in a row
LARGEST_SCALE = 2.0**24


def are_finite(tensors: Iterable[tf.Tensor]) -> tf.Tensor:
    """Whether there is no infinity and no NaN in any of them."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(t)) for t in tensors])


def larc_factor(weight: tf.Tensor, gradient: tf.Tensor, lr: tf.Tensor, eta: float) -> tf.Tensor:
    """min(eta |w| / |g| / lr, 1); 1 where a norm is zero.

    Args:
        gradient: with the weight decay in it.
    Source: You et al., arXiv:1708.03888, in the clipping form of the reference.
    """
    w, g = tf.norm(weight), tf.norm(gradient)
    return tf.where((w > 0) & (g > 0), tf.minimum(eta * w / tf.maximum(g, 1e-30) / lr, 1.0), 1.0)


def apply_momentum(
    weight: tf.Variable, velocity: tf.Variable, gradient: tf.Tensor, lr: tf.Tensor, momentum: float
) -> None:
    """Nesterov: v = momentum x v + g; w -= lr x (g + momentum x v)."""
    tf.raw_ops.ResourceApplyMomentum(
        var=weight.handle, accum=velocity.handle, lr=lr, grad=gradient, momentum=momentum, use_nesterov=True
    )


class LossScale:
    """The factor of the loss, as variables that a checkpoint holds.

    Dynamic: halved by an overflow, doubled after `GROWS_AFTER` steps without one. Given as a number it stays.
    All ranks see the same reduced gradients, so all change it alike.
    """

    def __init__(self, fixed: float | None) -> None:
        self._is_dynamic = fixed is None
        self.value = tf.Variable(
            FIRST_SCALE if fixed is None else fixed, dtype=tf.float32, trainable=False, name="loss_scale"
        )
        self.good_steps = tf.Variable(0, dtype=tf.int32, trainable=False, name="loss_scale/good_steps")

    def variables(self) -> list[tf.Variable]:
        """What a checkpoint must hold."""
        return [self.value, self.good_steps]

    def update(self, is_finite: tf.Tensor) -> None:
        """Takes note of a step."""
        if not self._is_dynamic:
            return
        good = tf.where(is_finite, self.good_steps + 1, 0)
        grows = good >= GROWS_AFTER
        larger = tf.minimum(self.value * 2, LARGEST_SCALE)
        self.value.assign(tf.where(is_finite, tf.where(grows, larger, self.value), tf.maximum(self.value / 2, 1.0)))
        self.good_steps.assign(tf.where(grows, 0, good))

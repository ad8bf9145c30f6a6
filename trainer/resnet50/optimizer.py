"""Nesterov's momentum, and the loss scale that follows the gradients."""

import tensorflow as tf

from trainer.gradients import next_scale
from trainer.precision import FIRST_SCALE


def apply_momentum(
    weight: tf.Variable, velocity: tf.Variable, gradient: tf.Tensor, lr: tf.Tensor, momentum: float
) -> None:
    """Nesterov: v = momentum x v + g; w -= lr x (g + momentum x v)."""
    tf.raw_ops.ResourceApplyMomentum(
        var=weight.handle, accum=velocity.handle, lr=lr, grad=gradient, momentum=momentum, use_nesterov=True
    )


class LossScale:
    """The factor of the loss, as variables that a checkpoint holds.

    Dynamic, it follows `next_scale`; given as a number it stays.
    All ranks see the same reduced gradients, so all change it alike.
    """

    def __init__(self, fixed: float | None) -> None:
        self._is_dynamic = fixed is None
        self.value = tf.Variable(
            FIRST_SCALE if fixed is None else fixed, dtype=tf.float32, trainable=False, name="loss_scale"
        )
        self.good_steps = tf.Variable(0, dtype=tf.int32, trainable=False, name="loss_scale/good_steps")

    def variables(self) -> list[tf.Variable]:
        """Return the variables that a checkpoint must contain."""
        return [self.value, self.good_steps]

    def update(self, is_finite: tf.Tensor) -> None:
        """Takes note of a step."""
        if not self._is_dynamic:
            return
        scale, good = next_scale(self.value, self.good_steps, is_finite)
        self.value.assign(scale)
        self.good_steps.assign(good)

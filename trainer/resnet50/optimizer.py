"""Optimizer: Nesterov's momentum, and the loss scale that follows the gradients."""

import tensorflow as tf

from trainer.common.ranks.gradients import next_scale
from trainer.common.ranks.precision import FIRST_SCALE


def apply_momentum(
    weight: tf.Variable, velocity: tf.Variable, gradient: tf.Tensor, lr: tf.Tensor, momentum: float
) -> None:
    """Apply Nesterov's momentum: v = momentum x v + g; w -= lr x (g + momentum x v)."""
    tf.raw_ops.ResourceApplyMomentum(
        var=weight.handle, accum=velocity.handle, lr=lr, grad=gradient, momentum=momentum, use_nesterov=True
    )


class LossScale:
    """Loss scale, as variables that a checkpoint holds.

    A dynamic scale follows `next_scale`; a given number stays. All ranks have the same reduced gradients, so all change
    it alike.
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
        """Update the scale after a step."""
        if not self._is_dynamic:
            return
        scale, good = next_scale(self.value, self.good_steps, is_finite)
        self.value.assign(scale)
        self.good_steps.assign(good)

"""Loss scale for Mask R-CNN in float16, which skips steps that overflow."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from trainer.common.ranks.gradients import are_finite, next_scale
from trainer.common.ranks.precision import DYNAMIC, first_scale
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.layers import tf1


class LossScale:
    """Loss scale in variables that a checkpoint holds. All ranks have the same gradients, so all change it alike."""

    def __init__(self, told: str) -> None:
        self._is_dynamic = told == DYNAMIC
        with tf1.variable_scope("loss_scale", reuse=tf1.AUTO_REUSE):
            first = tf1.constant_initializer(first_scale(told))
            self._variable = tf1.get_variable("value", [], tf.float32, first, trainable=False)
            self._good = tf1.get_variable("good_steps", [], tf.int32, tf1.zeros_initializer(), trainable=False)
        self.value = tf.identity(self._variable)
        """Loss scale of this step."""

    def guarded(self, gradients: Sequence[tf.Tensor], apply: Callable[[], tf.Operation]) -> tf.Operation:
        """Run `apply` unless a gradient is infinite or NaN. Then update the loss scale."""
        is_finite = are_finite(gradients)
        applied = tf1.cond(is_finite, apply, tf.no_op)
        if not self._is_dynamic:
            return applied
        with tf.control_dependencies([applied]):
            scale, good = next_scale(self.value, self._good, is_finite)
            with tf.control_dependencies([scale, good]):
                return tf.group(tf1.assign(self._variable, scale), tf1.assign(self._good, good))


def make_loss_scale(config: Config) -> LossScale | None:
    """Return the loss scale of a training in float16; None for other types."""
    return LossScale(config.train.loss_scale) if config.train.precision == "float16" else None

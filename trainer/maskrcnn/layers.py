"""Convolution, dense and normalisation layers on NHWC tensors, with the variable names of tensorpack's weights."""

from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from trainer.common.ranks.horovod_rank import mean_over_ranks
from trainer.maskrcnn.config_network import NORM_EPSILON as EPSILON

tf1 = tf.compat.v1
MOVING_AVERAGE = 0.9


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Layer builder, shared by a whole tower.

    Variables are float32 whatever the compute type. A layer's output has the compute type.
    """

    training: bool
    dtype: tf.DType = tf.float32
    norm: str = "None"
    freeze_affine: bool = False
    trainable: bool = True
    ranks: int = 1
    region_step: int = 16
    """The mask head works on a multiple of this many regions: each new number is a new shape."""

    def but(self, **changes: Any) -> "Layers":
        """Return the same layers with other settings."""
        return replace(self, **changes)

    def conv(
        self,
        name: str,
        x: tf.Tensor,
        filters: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: str = "SAME",
        bias: bool = True,
        relu: bool = False,
        stddev: float | None = None,
    ) -> tf.Tensor:
        """Convolve [B, H, W, C] to [B, H', W', filters].

        Uses He's initialisation over the fan-out unless `stddev` is given.
        """
        with tf1.variable_scope(name):
            shape = [kernel, kernel, int(x.shape[-1]), filters]
            w = self._weight(shape, stddev, fan=kernel * kernel * filters)
            y = tf.nn.conv2d(tf.cast(x, self.dtype), tf.cast(w, self.dtype), stride, padding)
            y = self._bias(y, filters) if bias else y
            return tf.nn.relu(y) if relu else y

    def conv_at(
        self, name: str, patches: tf.Tensor, filters: int, *, relu: bool = False, stddev: float | None = None
    ) -> tf.Tensor:
        """Compute `conv` at single cells, with the same weights: from [D, K, K, C] around each cell to [D, filters].

        It is a matrix product, since oneDNN's convolution fails to compute the gradient if there are no cells at all.
        """
        with tf1.variable_scope(name):
            shape = [*map(int, patches.shape[1:]), filters]
            w = self._weight(shape, stddev, fan=shape[0] * shape[1] * filters)
            wide = shape[0] * shape[1] * shape[2]
            flat = tf.reshape(tf.cast(patches, self.dtype), [-1, wide])
            y = self._bias(tf.matmul(flat, tf.reshape(tf.cast(w, self.dtype), [wide, filters])), filters)
            return tf.nn.relu(y) if relu else y

    def conv_norm(
        self,
        name: str,
        x: tf.Tensor,
        filters: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: str = "SAME",
        relu: bool = True,
    ) -> tf.Tensor:
        """Convolve, apply this object's normalisation, or a bias without one, and ReLU if requested."""
        if self.norm == "None":
            return self.conv(name, x, filters, kernel, stride=stride, padding=padding, relu=relu)
        with tf1.variable_scope(name):
            w = self._weight([kernel, kernel, int(x.shape[-1]), filters], None, fan=kernel * kernel * filters)
            x = tf.cast(x, self.dtype)
            if self.norm == "FreezeBN":
                scale, shift = self._frozen_affine(filters)
                y = tf.nn.conv2d(x, tf.cast(w * scale, self.dtype), stride, padding)  # one pass less over the output
                y = tf.nn.bias_add(y, tf.cast(shift, self.dtype))
            else:
                y = tf.nn.conv2d(x, tf.cast(w, self.dtype), stride, padding)
                y = self.group_norm("gn", y) if self.norm == "GN" else self._sync_bn(y)
            return tf.nn.relu(y) if relu else y

    def deconv(self, name: str, x: tf.Tensor, filters: int) -> tf.Tensor:
        """Double height and width by a 2x2 transposed convolution of stride 2, then ReLU.

        Args:
            x: [B, H, W, C].

        Returns:
            [B, 2H, 2W, filters].
        """
        return tf.nn.depth_to_space(self.deconv_cells(name, x, filters), 2)

    def deconv_cells(self, name: str, x: tf.Tensor, filters: int) -> tf.Tensor:
        """Compute `deconv` without rearranging its pixels: [B, H, W, 4 x filters], each cell's four pixels row by row.

        Kernel and stride are equal, so each output pixel has one input pixel: a dense layer and a reordering.
        """
        with tf1.variable_scope(name):
            channels = int(x.shape[-1])
            w = self._weight([2, 2, filters, channels], None, fan=4 * filters)
            b = tf1.get_variable("b", [filters], initializer=tf1.zeros_initializer(), trainable=self.trainable)
            flat = tf.reshape(tf.transpose(w, [3, 0, 1, 2]), [1, 1, channels, 4 * filters])
            y = tf.nn.conv2d(tf.cast(x, self.dtype), tf.cast(flat, self.dtype), 1, "VALID")
            return tf.nn.relu(tf.nn.bias_add(y, tf.cast(tf.tile(b, [4]), self.dtype)))

    def dense(
        self, name: str, x: tf.Tensor, units: int, *, relu: bool = False, stddev: float | None = None
    ) -> tf.Tensor:
        """Apply a dense layer, [N, C] to [N, units]."""
        with tf1.variable_scope(name):
            w = self._weight([int(x.shape[-1]), units], stddev, fan=int(x.shape[-1]))
            y = tf.matmul(tf.cast(x, self.dtype), tf.cast(w, self.dtype))
            y = self._bias(y, units)
            return tf.nn.relu(y) if relu else y

    def group_norm(self, name: str, x: tf.Tensor, groups: int = 32) -> tf.Tensor:
        """Normalise [B, H, W, C] over space and over groups of channels. Source: arXiv:1803.08494."""
        channels = int(x.shape[-1])
        groups = min(groups, channels)
        with tf1.variable_scope(name):
            gamma, beta = self._affine(channels)
            if x.dtype == tf.float16:  # its sums of squares would overflow
                return tf.cast(group_norm(tf.cast(x, tf.float32), gamma, beta, groups), tf.float16)
            return group_norm(x, gamma, beta, groups)

    def _weight(self, shape: list[int], stddev: float | None, fan: int) -> tf.Variable:
        initial = (
            tf1.random_normal_initializer(stddev=stddev)
            if stddev
            else tf1.random_normal_initializer(stddev=(2.0 / fan) ** 0.5)
        )
        return tf1.get_variable("W", shape, initializer=initial, trainable=self.trainable)

    def _bias(self, y: tf.Tensor, units: int) -> tf.Tensor:
        b = tf1.get_variable("b", [units], initializer=tf1.zeros_initializer(), trainable=self.trainable)
        return tf.nn.bias_add(y, tf.cast(b, self.dtype))

    def _affine(self, channels: int) -> tuple[tf.Variable, tf.Variable]:
        trainable = self.trainable and not self.freeze_affine
        return (
            tf1.get_variable("gamma", [channels], initializer=tf1.ones_initializer(), trainable=trainable),
            tf1.get_variable("beta", [channels], initializer=tf1.zeros_initializer(), trainable=trainable),
        )

    def _moving(self, channels: int) -> tuple[tf.Variable, tf.Variable]:
        return (
            tf1.get_variable("mean/EMA", [channels], initializer=tf1.zeros_initializer(), trainable=False),
            tf1.get_variable("variance/EMA", [channels], initializer=tf1.ones_initializer(), trainable=False),
        )

    def _frozen_affine(self, channels: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the scale and shift that are equal to a batch norm with fixed statistics."""
        with tf1.variable_scope("bn"):
            gamma, beta = self._affine(channels)
            mean, variance = self._moving(channels)
            scale = gamma * tf.math.rsqrt(variance + EPSILON)
            return scale, beta - mean * scale

    def _sync_bn(self, x: tf.Tensor) -> tf.Tensor:
        """Apply batch norm with the statistics of all ranks' images, or of the moving averages outside of training."""
        with tf1.variable_scope("bn"):
            channels = int(x.shape[-1])
            gamma, beta = self._affine(channels)
            moving = self._moving(channels)
            x32 = tf.cast(x, tf.float32)
            if not self.training or not self.trainable:
                mean, variance = moving[0], moving[1]
            else:
                sums = tf.concat([tf.reduce_mean(x32, [0, 1, 2]), tf.reduce_mean(x32 * x32, [0, 1, 2])], 0)
                # Horovod: the same statistics on every rank
                sums = mean_over_ranks(sums, tf1.get_variable_scope().name.replace("/", "_"), ranks=self.ranks)
                mean, square = sums[:channels], sums[channels:]
                variance = tf.maximum(square - mean * mean, 0)
                for average, value in zip(moving, (mean, variance), strict=True):
                    if self.dtype == tf.float16:  # a step that is skipped for an overflow must not change the averages
                        value = tf.where(tf.math.is_finite(value), value, average)
                    tf1.add_to_collection(
                        tf1.GraphKeys.UPDATE_OPS, tf1.assign_sub(average, (1 - MOVING_AVERAGE) * (average - value))
                    )
            scale = gamma * tf.math.rsqrt(variance + EPSILON)
            return tf.cast(x32 * scale + (beta - mean * scale), self.dtype)


def group_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, groups: int) -> tf.Tensor:
    """Apply group norm as one scale and one shift per image and channel, with the gradient written out.

    It makes two passes over `x` forward and three backward. TensorFlow's own moments and their gradient make more than
    ten.

    Args:
        x: [B, H, W, C] of any float type; the statistics are float32.
        gamma, beta: [C] float32.

    Source: Group Normalization, arXiv:1803.08494, equations 2 and 3; the gradient is the batch norm's per group.
    """
    channels = int(x.shape[-1])
    size = channels // groups

    def per_group(v: tf.Tensor) -> tf.Tensor:  # [B, C] -> [B, C], each channel the sum of its group
        sums = tf.reduce_sum(tf.reshape(v, [-1, groups, size]), 2, keepdims=True)
        return tf.reshape(tf.tile(sums, [1, 1, size]), [-1, channels])

    def spread(v: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        return tf.cast(tf.reshape(v, [-1, 1, 1, channels]), dtype)

    @tf.custom_gradient
    def norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tuple[tf.Tensor, Any]:
        # Each slice of a shape would be five operations, and a model has up to a hundred of these norms.
        images, height, width, _ = tf.unstack(tf.shape(x))
        cells = height * width
        flat = tf.stack([images, cells, channels])
        ones = tf.ones(tf.stack([images, 1, cells]), x.dtype)

        def channel_sums(x: tf.Tensor) -> tf.Tensor:  # [B, H, W, C] to [B, C] float32
            # A product with ones, because that is the fastest reduction on CPUs.
            return tf.cast(tf.squeeze(tf.matmul(ones, tf.reshape(x, flat)), 1), tf.float32)

        count = tf.cast(cells * size, tf.float32)
        mean = per_group(channel_sums(x)) / count
        # Not the mean of squares less the mean's: that loses digits where a bias is large.
        variance = per_group(channel_sums(tf.math.squared_difference(x, spread(mean, x.dtype)))) / count
        rstd = tf.math.rsqrt(variance + EPSILON)
        scale = rstd * gamma
        y = x * spread(scale, x.dtype) + spread(beta - mean * scale, x.dtype)

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            d_beta = channel_sums(dy)
            d_gamma = rstd * (channel_sums(dy * x) - mean * d_beta)
            s1 = per_group(gamma * d_beta) / count
            s2 = per_group(gamma * d_gamma) / count
            dx = (
                dy * spread(scale, x.dtype)
                - x * spread(rstd * rstd * s2, x.dtype)
                + spread(rstd * (mean * rstd * s2 - s1), x.dtype)
            )
            return dx, tf.reduce_sum(d_gamma, 0), tf.reduce_sum(d_beta, 0)

        return y, gradient

    return norm(x, tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta))

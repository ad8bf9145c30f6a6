"""ResNet v1 as TensorFlow operations on [N, H, W, C] tensors, by default with the stride in the 3x3 convolution.

Source: He et al., arXiv:1512.03385; stride and zero gamma as in the reference and Goyal et al., arXiv:1706.02677.
"""

from collections.abc import Iterator

import tensorflow as tf

from trainer.resnet50.network import OWN, STEM, VARIANTS, BlockPlan, Convolution, Init, Variant, blocks


class Conv:
    """Convolution without bias. Its output is as large as its input except for the stride.

    The kernel is stored in float32 and cast to the input's type.
    """

    def __init__(self, plan: Convolution, rng: Init, *, pads_alike: bool) -> None:
        self.kernel = tf.Variable(rng.kernel(plan.shape), name=f"{plan.name}/kernel")
        self.stride = plan.stride
        around = plan.size // 2
        self._padding = [[0, 0], [around] * 2, [around] * 2, [0, 0]] if pads_alike and plan.stride > 1 else "SAME"

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(x, tf.cast(self.kernel, x.dtype), self.stride, self._padding)


class BatchNorm:
    """Batch normalisation. In training it returns the batch's mean and variance for the moving averages."""

    def __init__(self, name: str, channels: int, *, epsilon: float, gamma: float = 1.0) -> None:
        self._epsilon = epsilon
        self.gamma = tf.Variable(tf.fill([channels], gamma), name=f"{name}/gamma")
        self.beta = tf.Variable(tf.zeros([channels]), name=f"{name}/beta")
        self.mean = tf.Variable(tf.zeros([channels]), trainable=False, name=f"{name}/moving_mean")
        self.variance = tf.Variable(tf.ones([channels]), trainable=False, name=f"{name}/moving_variance")

    def __call__(self, x: tf.Tensor, statistics: list[tf.Tensor] | None) -> tf.Tensor:
        """Normalise by the batch, and append its mean and variance to `statistics`.

        Without that, normalise by the averages.
        """
        if statistics is None:
            return tf.compat.v1.nn.fused_batch_norm(
                x, self.gamma, self.beta, self.mean, self.variance, self._epsilon, is_training=False
            )[0]
        y, mean, variance = tf.compat.v1.nn.fused_batch_norm(x, self.gamma, self.beta, epsilon=self._epsilon)
        statistics.extend((mean, variance))
        return y


class Block:
    """Residual block: convolutions with their norms, added to the input or to its shortcut."""

    def __init__(self, plan: BlockPlan, rng: Init, variant: Variant) -> None:
        self.convs = [Conv(one, rng, pads_alike=variant.pads_alike) for one in plan.convolutions]
        *first, last = plan.convolutions
        self.norms = [BatchNorm(one.norm, one.channels, epsilon=variant.epsilon) for one in first]
        self.norms.append(BatchNorm(last.norm, last.channels, epsilon=variant.epsilon, gamma=rng.last_gamma))
        self.shortcut: tuple[Conv, BatchNorm] | None = None
        if plan.shortcut:
            self.shortcut = (
                Conv(plan.shortcut, rng, pads_alike=variant.pads_alike),
                BatchNorm(plan.shortcut.norm, plan.shortcut.channels, epsilon=variant.epsilon),
            )

    def __call__(self, x: tf.Tensor, statistics: list[tf.Tensor] | None) -> tf.Tensor:
        y = x
        if self.shortcut:
            conv, norm = self.shortcut
            x = norm(conv(x), statistics)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(tf.nn.relu(y) if i else y), statistics)
        return tf.nn.relu(x + y)

    def norms_in_order(self) -> Iterator[BatchNorm]:
        """Yield the batch normalisations in the order in which `__call__` applies them."""
        if self.shortcut:
            yield self.shortcut[1]
        yield from self.norms


class ResNet:
    """Network from images to logits, with its variables.

    Args:
        name: one of `BLOCKS`.
        classes: width of the last layer.
        seed: of the initial weights; equal seeds give equal weights.
        zero_gamma: each block begins as the identity, its last gamma being zero.
        he_init: convolutions by He's rule on the inputs, truncated normal; otherwise by Glorot's, uniform.
        variant: implementation of this name.
    """

    def __init__(
        self,
        name: str,
        classes: int,
        seed: int = 1,
        *,
        zero_gamma: bool = True,
        he_init: bool = True,
        variant: Variant = VARIANTS[OWN],
    ) -> None:
        rng = Init.of(seed, zero_gamma=zero_gamma, he_init=he_init)
        self.variant = variant
        self.stem = Conv(STEM, rng, pads_alike=variant.pads_alike)
        self.stem_norm = BatchNorm(STEM.norm, STEM.channels, epsilon=variant.epsilon)
        plans = blocks(name, strides_first=variant.strides_first)
        self.blocks = [Block(plan, rng, variant) for plan in plans]
        channels = plans[-1].convolutions[-1].channels
        self.dense = tf.Variable(rng.dense(channels, classes), name="dense/kernel")
        self.bias = tf.Variable(tf.zeros([classes]), name="dense/bias")

    def __call__(self, images: tf.Tensor, statistics: list[tf.Tensor] | None = None) -> tf.Tensor:
        """Compute the logits, [N, classes] float32.

        Args:
            images: [N, H, W, 3] in the type to compute in, normalised.
            statistics: in training a list that receives each layer's batch mean and variance, in the order of `norms`.
        """
        x = tf.nn.relu(self.stem_norm(self.stem(images), statistics))
        if self.variant.pads_alike:  # after ReLU no value is below 0, so padding with 0 is safe
            x = tf.nn.max_pool2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, "VALID")
        else:
            x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        for block in self.blocks:
            x = block(x, statistics)
        x = tf.cast(tf.reduce_mean(x, axis=(1, 2)), tf.float32)
        return x @ self.dense + self.bias

    def norms(self) -> list[BatchNorm]:
        """Return all batch normalisations in the order in which they compute."""
        return [self.stem_norm, *(norm for block in self.blocks for norm in block.norms_in_order())]

    def kernels(self) -> list[tf.Variable]:
        """Return the weights of convolutions and of the last layer, which have weight decay."""
        convs = [self.stem]
        for block in self.blocks:
            convs += ([block.shortcut[0]] if block.shortcut else []) + block.convs
        return [conv.kernel for conv in convs] + [self.dense]

    def trainable(self) -> list[tf.Variable]:
        """Return all variables that are learned by gradient."""
        return self.kernels() + [v for norm in self.norms() for v in (norm.gamma, norm.beta)] + [self.bias]

    def averages(self) -> list[tf.Variable]:
        """Return the moving means and variances, in the order in which training appends the batch's."""
        return [v for norm in self.norms() for v in (norm.mean, norm.variance)]

"""ResNet v1 with the stride in the 3x3 convolution, as TensorFlow operations on [N, H, W, C] tensors.

Source: He et al., arXiv:1512.03385; stride and zero gamma as in the reference and Goyal et al., arXiv:1706.02677.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

BLOCKS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
BOTTLENECK = {"resnet18": False, "resnet34": False, "resnet50": True, "resnet101": True, "resnet152": True}
CUT_DEVIATION = 0.8796256610342398  # of a normal cut at two deviations
BN_EPSILON = 1e-4  # the reference's
BN_DECAY = 0.9  # the reference's


@dataclass(frozen=True)
class Init:
    """How variables begin."""

    numbers: np.random.Generator
    last_gamma: float  # of each block
    he: bool

    def kernel(self, shape: tuple[int, ...]) -> np.ndarray:
        """A convolution's, [height, width, in, out]; variance 1 / inputs as TensorFlow's variance scaling."""
        area = shape[0] * shape[1]
        if self.he:
            return _cut_normal(self.numbers, shape, deviation=(area * shape[2]) ** -0.5)
        reach = (6 / (area * (shape[2] + shape[3]))) ** 0.5
        return self.numbers.uniform(-reach, reach, shape).astype(np.float32)


class Conv:
    """A convolution without bias, SAME padding; the kernel is kept in float32 and cast to the input's type."""

    def __init__(self, name: str, rng: "Init", size: int, channels_in: int, channels: int, stride: int = 1) -> None:
        values = rng.kernel((size, size, channels_in, channels))
        self.kernel = tf.Variable(values, name=f"{name}/kernel")
        self.stride = stride

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(x, tf.cast(self.kernel, x.dtype), self.stride, "SAME")


class BatchNorm:
    """Batch normalisation; in training it leaves the batch's mean and variance for the moving averages."""

    def __init__(self, name: str, channels: int, gamma: float = 1.0) -> None:
        self.gamma = tf.Variable(tf.fill([channels], gamma), name=f"{name}/gamma")
        self.beta = tf.Variable(tf.zeros([channels]), name=f"{name}/beta")
        self.mean = tf.Variable(tf.zeros([channels]), trainable=False, name=f"{name}/moving_mean")
        self.variance = tf.Variable(tf.ones([channels]), trainable=False, name=f"{name}/moving_variance")

    def __call__(self, x: tf.Tensor, statistics: list[tf.Tensor] | None) -> tf.Tensor:
        """Normalised by the batch, whose mean and variance `statistics` receives; without it, by the averages."""
        if statistics is None:
            return tf.compat.v1.nn.fused_batch_norm(
                x, self.gamma, self.beta, self.mean, self.variance, BN_EPSILON, is_training=False
            )[0]
        y, mean, variance = tf.compat.v1.nn.fused_batch_norm(x, self.gamma, self.beta, epsilon=BN_EPSILON)
        statistics.extend((mean, variance))
        return y


class Block:
    """Two 3x3 convolutions (18, 34 layers) or 1x1, 3x3, 1x1 (50 and more), added to the input."""

    def __init__(
        self,
        name: str,
        rng: "Init",
        channels_in: int,
        width: int,
        stride: int,
        *,
        bottleneck: bool,
        strides_first: bool,
    ) -> None:
        sizes = (1, 3, 1) if bottleneck else (3, 3)
        self.channels = width * 4 if bottleneck else width
        outputs = (width,) * (len(sizes) - 1) + (self.channels,)
        strides = [1] * len(sizes)
        strides[1 if bottleneck and not strides_first else 0] = stride
        inputs = (channels_in, *outputs[:-1])
        specs = zip(sizes, inputs, outputs, strides, strict=True)
        self.convs = [Conv(f"{name}/conv{i}", rng, *spec) for i, spec in enumerate(specs)]
        last = len(sizes) - 1
        self.norms = [
            BatchNorm(f"{name}/bn{i}", n, gamma=rng.last_gamma if i == last else 1.0) for i, n in enumerate(outputs)
        ]
        self.shortcut: tuple[Conv, BatchNorm] | None = None
        if stride != 1 or channels_in != self.channels:
            self.shortcut = (
                Conv(f"{name}/shortcut", rng, 1, channels_in, self.channels, stride),
                BatchNorm(f"{name}/shortcut_bn", self.channels),
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
        """As `__call__` visits them."""
        if self.shortcut:
            yield self.shortcut[1]
        yield from self.norms


class ResNet:
    """Images to logits; owns its variables.

    Args:
        name: one of `BLOCKS`.
        classes: width of the last layer.
        seed: of the initial weights; equal seeds give equal weights.
        zero_gamma: each block begins as the identity, its last gamma being zero.
        he_init: convolutions by He's rule on the inputs, cut normal; else by Glorot's, uniform.
        strides_first: blocks of 50 layers and more shrink in their first 1x1, as in the paper, which computes less.
    """

    def __init__(
        self,
        name: str,
        classes: int,
        seed: int = 1,
        *,
        zero_gamma: bool = True,
        he_init: bool = True,
        strides_first: bool = False,
    ) -> None:
        rng = Init(np.random.default_rng(seed), last_gamma=float(not zero_gamma), he=he_init)
        self.stem, self.stem_norm = Conv("stem", rng, 7, 3, 64, 2), BatchNorm("stem_bn", 64)
        self.blocks: list[Block] = []
        channels = 64
        for stage, count in enumerate(BLOCKS[name]):
            for i in range(count):
                stride = 2 if stage and not i else 1
                block = Block(
                    f"stage{stage}/block{i}",
                    rng,
                    channels,
                    64 << stage,
                    stride,
                    bottleneck=BOTTLENECK[name],
                    strides_first=strides_first,
                )
                self.blocks.append(block)
                channels = block.channels
        dense = rng.numbers.normal(0, 0.01, (channels, classes)).astype(np.float32)
        self.dense = tf.Variable(dense, name="dense/kernel")
        self.bias = tf.Variable(tf.zeros([classes]), name="dense/bias")

    def __call__(self, images: tf.Tensor, statistics: list[tf.Tensor] | None = None) -> tf.Tensor:
        """Logits, [N, classes] float32.

        Args:
            images: [N, H, W, 3] in the type to compute in, normalised.
            statistics: in training a list that receives each layer's batch mean and variance, in the order of `norms`.
        """
        x = tf.nn.relu(self.stem_norm(self.stem(images), statistics))
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        for block in self.blocks:
            x = block(x, statistics)
        x = tf.cast(tf.reduce_mean(x, axis=(1, 2)), tf.float32)
        return x @ self.dense + self.bias

    def norms(self) -> list[BatchNorm]:
        """All batch normalisations in the order in which they compute."""
        return [self.stem_norm, *(norm for block in self.blocks for norm in block.norms_in_order())]

    def kernels(self) -> list[tf.Variable]:
        """Weights of convolutions and of the last layer: those that decay."""
        convs = [self.stem]
        for block in self.blocks:
            convs += ([block.shortcut[0]] if block.shortcut else []) + block.convs
        return [conv.kernel for conv in convs] + [self.dense]

    def trainable(self) -> list[tf.Variable]:
        """All that is learned by gradient."""
        return self.kernels() + [v for norm in self.norms() for v in (norm.gamma, norm.beta)] + [self.bias]

    def averages(self) -> list[tf.Variable]:
        """Moving means and variances, in the order in which training appends the batch's."""
        return [v for norm in self.norms() for v in (norm.mean, norm.variance)]


def _cut_normal(rng: np.random.Generator, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    """Normal values of this deviation, drawn again where they lie far out."""
    values = rng.standard_normal(shape, np.float32)
    while (outside := np.abs(values) > 2).any():
        values[outside] = rng.standard_normal(int(outside.sum()), np.float32)
    return values * np.float32(deviation / CUT_DEVIATION)

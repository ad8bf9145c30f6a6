"""Definition of the ResNets for any framework: blocks, constants, pixel normalisation, initial weights."""

from dataclasses import dataclass

import numpy as np

BLOCKS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
BOTTLENECK = {"resnet18": False, "resnet34": False, "resnet50": True, "resnet101": True, "resnet152": True}
CUT_DEVIATION = 0.8796256610342398  # standard deviation of a normal distribution cut at two deviations
BN_EPSILON = 1e-4  # the reference's
BN_DECAY = 0.9  # the reference's
MEAN = (121.0, 115.0, 100.0)  # red, green, blue; the reference's
DEVIATION = (70.0, 68.0, 71.0)
STEM_CHANNELS = 64
TO_YIQ = ((0.299, 0.587, 0.114), (0.59590059, -0.27455667, -0.32134392), (0.21153661, -0.52273617, 0.31119955))


@dataclass(frozen=True)
class Pixels:
    """Normalisation of red, green and blue of 0 to 255: the mean is subtracted, then the deviation divides."""

    mean: tuple[float, float, float] = MEAN
    deviation: tuple[float, float, float] = DEVIATION


@dataclass(frozen=True)
class Variant:
    """Differences between implementations of ResNets with the same blocks."""

    epsilon: float = BN_EPSILON  # of batch normalisation
    pads_alike: bool = False  # equal padding on both sides at stride 2; TensorFlow's SAME pads less left
    strides_first: bool = False  # of a bottleneck, in its first 1x1 as in the paper (v1); else in its 3x3 (v1.5)
    pixels: Pixels = Pixels()


OWN, TORCHVISION, KERAS = "own", "torchvision", "keras"
VARIANTS = {
    OWN: Variant(),
    TORCHVISION: Variant(1e-5, pads_alike=True, pixels=Pixels((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))),
    KERAS: Variant(
        1.001e-5, pads_alike=True, strides_first=True, pixels=Pixels((123.68, 116.779, 103.939), (1.0, 1.0, 1.0))
    ),
}


def prefix(variant: str) -> str:
    """Return the prefix of a variant's array names in files, which keeps variants from being confused."""
    return "" if variant == OWN else f"{variant}/"


@dataclass(frozen=True)
class Convolution:
    """Convolution without bias, and the batch normalisation after it."""

    name: str
    norm: str
    size: int
    channels_in: int
    channels: int
    stride: int = 1

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return the kernel's shape: height, width, in, out."""
        return self.size, self.size, self.channels_in, self.channels


@dataclass(frozen=True)
class BlockPlan:
    """Plan of a block: two 3x3 convolutions (18, 34 layers) or 1x1, 3x3, 1x1 (50 and more), added to the input."""

    convolutions: tuple[Convolution, ...]
    shortcut: Convolution | None  # applied to the input before the sum; None: identity

    @property
    def all(self) -> tuple[Convolution, ...]:
        """Return all convolutions in the order in which their norms compute."""
        return (*((self.shortcut,) if self.shortcut else ()), *self.convolutions)


STEM = Convolution("stem", "stem_bn", 7, 3, STEM_CHANNELS, 2)


def blocks(model: str, *, strides_first: bool = False) -> list[BlockPlan]:
    """Return the blocks of one of `BLOCKS`, in order.

    Args:
        strides_first: bottlenecks have their stride in the first 1x1.
    """
    plans, channels = [], STEM_CHANNELS
    for stage, count in enumerate(BLOCKS[model]):
        for i in range(count):
            stride = 2 if stage and not i else 1
            plans.append(
                _block(f"stage{stage}/block{i}", channels, 64 << stage, stride, BOTTLENECK[model], strides_first)
            )
            channels = plans[-1].convolutions[-1].channels
    return plans


def _block(name: str, channels: int, width: int, stride: int, bottleneck: bool, strides_first: bool) -> BlockPlan:
    sizes = (1, 3, 1) if bottleneck else (3, 3)
    outputs = (*(width,) * (len(sizes) - 1), width * 4 if bottleneck else width)
    strides = [1] * len(sizes)
    strides[1 if bottleneck and not strides_first else 0] = stride
    specs = zip(sizes, (channels, *outputs[:-1]), outputs, strides, strict=True)
    convolutions = tuple(Convolution(f"{name}/conv{i}", f"{name}/bn{i}", *spec) for i, spec in enumerate(specs))
    if stride == 1 and channels == outputs[-1]:
        return BlockPlan(convolutions, None)
    return BlockPlan(
        convolutions, Convolution(f"{name}/shortcut", f"{name}/shortcut_bn", 1, channels, outputs[-1], stride)
    )


@dataclass(frozen=True)
class Init:
    """Initial values of variables.

    Equal seeds give equal weights in any framework that draws them in the same order.
    """

    numbers: np.random.Generator
    last_gamma: float  # of each block
    he: bool

    @classmethod
    def of(cls, seed: int, *, zero_gamma: bool, he_init: bool) -> "Init":
        """Return the initial values that these flags select.

        Args:
            zero_gamma: each block begins as the identity, its last gamma being zero.
            he_init: convolutions by He's rule on the inputs, truncated normal; otherwise by Glorot's, uniform.
        """
        return cls(np.random.default_rng(seed), last_gamma=float(not zero_gamma), he=he_init)

    def kernel(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw a convolution's kernel, [height, width, in, out], of variance 1 / inputs as by TensorFlow's scaling."""
        area = shape[0] * shape[1]
        if self.he:
            return _cut_normal(self.numbers, shape, deviation=(area * shape[2]) ** -0.5)
        reach = (6 / (area * (shape[2] + shape[3]))) ** 0.5
        return self.numbers.uniform(-reach, reach, shape).astype(np.float32)

    def dense(self, channels: int, classes: int) -> np.ndarray:
        """Draw the last layer's weights, [in, out]."""
        return self.numbers.normal(0, 0.01, (channels, classes)).astype(np.float32)


def _cut_normal(rng: np.random.Generator, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    """Draw from a truncated normal distribution of this deviation: values far out are drawn again."""
    values = rng.standard_normal(shape, np.float32)
    while (outside := np.abs(values) > 2).any():
        values[outside] = rng.standard_normal(int(outside.sum()), np.float32)
    return values * np.float32(deviation / CUT_DEVIATION)

"""Networks as lists of layers, with each layer's arithmetic, memory traffic and number of weights."""

from collections.abc import Iterator
from dataclasses import dataclass

PASSES = 3.0  # a backward pass computes twice what the forward one does: gradients of the input and of the weights

# Elements that a step moves through memory, forward and back, for each there is: a convolution reads its input, writes
# its output, and reads the input once and the output's gradient twice to write the input's; batch normalisation and
# its ReLU read twice and write forward, read four times and write back; a sum of two branches is two reads and a write.
_INPUT, _OUTPUT, _NORMALISED, _SUMMED = 3.0, 3.0, 8.0, 3.0


@dataclass(frozen=True)
class Layer:
    """Cost of one layer for one image."""

    flop: float
    """Floating-point operations of the forward pass; a multiply and an add are two."""
    moved: float
    """Elements read and written by both passes."""
    weights: int

    @property
    def flop_of_step(self) -> float:
        """Return the floating-point operations of both passes."""
        return PASSES * self.flop


def network(name: str, pixels: int) -> tuple[Layer, ...]:
    """Return the layers of a network by name, for square images of `pixels` a side.

    Raises KeyError if it is unknown.
    """
    if name == "vgg16":
        return tuple(_vgg16(pixels))
    return tuple(_resnet(name, pixels))


def parameters(layers: tuple[Layer, ...]) -> int:
    """Return the number of trained weights."""
    return sum(layer.weights for layer in layers)


# Number of blocks in each of the four stages, and True if they are bottlenecks (He et al., 2015, table 1).
_STAGES = {
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
    "resnet101": ((3, 4, 23, 3), True),
    "resnet152": ((3, 8, 36, 3), True),
}
NETWORKS = (*_STAGES, "vgg16")


def _convolution(size: int, kernel: int, inputs: int, outputs: int, stride: int = 1, normalised: bool = True) -> Layer:
    """Return a convolution layer whose input is a square of `size` pixels a side."""
    after = size // stride
    written = after * after * outputs
    return Layer(
        flop=2.0 * written * kernel * kernel * inputs,
        moved=_INPUT * size * size * inputs + (_OUTPUT + (_NORMALISED if normalised else 0.0)) * written,
        weights=kernel * kernel * inputs * outputs + (2 if normalised else 1) * outputs,
    )


def _dense(inputs: int, outputs: int) -> Layer:
    return Layer(2.0 * inputs * outputs, _INPUT * inputs + _OUTPUT * outputs, inputs * outputs + outputs)


def _resnet(name: str, pixels: int) -> Iterator[Layer]:
    """Yield the layers of a ResNet v1.5, where a bottleneck's stride is that of its middle convolution."""
    blocks, bottleneck = _STAGES[name]
    yield _convolution(pixels, 7, 3, 64, 2)
    size, inputs = pixels // 4, 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        outputs = width * 4 if bottleneck else width
        for block in range(count):
            stride = 2 if stage and not block else 1
            if bottleneck:
                yield _convolution(size, 1, inputs, width)
                yield _convolution(size, 3, width, width, stride)
                yield _convolution(size // stride, 1, width, outputs)
            else:
                yield _convolution(size, 3, inputs, width, stride)
                yield _convolution(size // stride, 3, width, width)
            if inputs != outputs or stride > 1:
                yield _convolution(size, 1, inputs, outputs, stride)
            size //= stride
            yield Layer(0.0, _SUMMED * size * size * outputs, 0)
            inputs = outputs
    yield _dense(inputs, 1000)


def _vgg16(pixels: int) -> Iterator[Layer]:
    """Yield the layers of VGG-16: Simonyan and Zisserman, 2014, configuration D.

    It has no batch normalisation, and a ReLU after each layer.
    """
    size, inputs = pixels, 3
    for count, outputs in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(count):
            yield _convolution(size, 3, inputs, outputs, normalised=False)
            inputs = outputs
        size //= 2
    yield _dense(size * size * inputs, 4096)
    yield _dense(4096, 4096)
    yield _dense(4096, 1000)

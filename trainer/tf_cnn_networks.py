"""Networks by tf_cnn_benchmarks' names, except its ResNets: its chains of layers, or Keras' networks.

Source: tensorflow/benchmarks, scripts/tf_cnn_benchmarks/models, at commit 8fb7907.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ConvLayer:
    """Convolution with a bias and a ReLU."""

    channels: int
    kernel: int
    stride: int = 1
    padding: str = "same"


@dataclass(frozen=True)
class Pool:
    """Max pooling of squares, without padding."""

    kernel: int
    stride: int = 2


@dataclass(frozen=True, kw_only=True)
class CnnNetwork:
    """Network of tf_cnn_benchmarks: either `layers` and `dense`, or a class of Keras."""

    size: int = 224  # pixels of the square input
    batch: int = 64  # default images per rank and step
    layers: tuple[ConvLayer | Pool, ...] = ()
    dense: tuple[int, ...] = (4096, 4096)  # widths before the last layer, each with a ReLU and half dropped
    keras: str = ""  # in tf_keras.applications


def _vgg(*counts: int) -> CnnNetwork:
    layers: list[ConvLayer | Pool] = []
    for channels, count in zip((64, 128, 256, 512, 512), counts, strict=True):
        layers += [ConvLayer(channels, 3)] * count + [Pool(2)]
    return CnnNetwork(layers=tuple(layers))


_ALEXNET = (
    ConvLayer(64, 11, 4, "valid"),
    Pool(3),
    ConvLayer(192, 5),
    Pool(3),
    ConvLayer(384, 3),
    ConvLayer(384, 3),
    ConvLayer(256, 3),
    Pool(3),
)
_OVERFEAT = (
    *(ConvLayer(96, 11, 4, "valid"), Pool(2), ConvLayer(256, 5, padding="valid"), Pool(2)),
    *(ConvLayer(512, 3), ConvLayer(1024, 3), ConvLayer(1024, 3), Pool(2)),
)
NETWORKS = {
    "alexnet": CnnNetwork(size=227, batch=512, layers=_ALEXNET),
    "overfeat": CnnNetwork(size=231, batch=32, layers=_OVERFEAT, dense=(3072, 4096)),
    "vgg11": _vgg(1, 1, 2, 2, 2),
    "vgg16": _vgg(2, 2, 3, 3, 3),
    "vgg19": _vgg(2, 2, 4, 4, 4),
    "inception3": CnnNetwork(size=299, batch=32, keras="InceptionV3"),
    "xception": CnnNetwork(size=299, keras="Xception"),
    "densenet121": CnnNetwork(keras="DenseNet121"),
    "mobilenet": CnnNetwork(keras="MobileNet"),
    "mobilenet_v2": CnnNetwork(keras="MobileNetV2"),
    "nasnet": CnnNetwork(keras="NASNetMobile"),
}


def build(name: str, classes: int, size: int) -> Any:
    """Build a Keras model, from pixels about zero to logits.

    Args:
        name: one of `NETWORKS`.
        size: pixels of the square input.
    """
    import tf_keras as keras

    network, shape = NETWORKS[name], (size, size, 3)
    if network.keras:
        made = getattr(keras.applications, network.keras)
        return made(weights=None, classes=classes, input_shape=shape, classifier_activation=None)
    model = keras.Sequential([keras.Input(shape)])
    for layer in network.layers:
        if isinstance(layer, Pool):
            model.add(keras.layers.MaxPool2D(layer.kernel, layer.stride))
        else:
            model.add(
                keras.layers.Conv2D(
                    *(layer.channels, layer.kernel, layer.stride, layer.padding),
                    activation="relu",
                    kernel_initializer="he_normal",
                )
            )
    model.add(keras.layers.Flatten())
    for width in network.dense:
        model.add(keras.layers.Dense(width, activation="relu", kernel_initializer="he_normal"))
        model.add(keras.layers.Dropout(0.5))
    model.add(keras.layers.Dense(classes))
    return model

"""Networks of tf_cnn_benchmarks are those that it builds."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainer.benchmark import BenchmarkConfig
from trainer.resnet50.model import ResNet
from trainer.resnet50.network import Variant
from trainer.tf_cnn_networks import NETWORKS, build

# Side of the input, images per step, learnt numbers and multiplications of a forward pass with 1000 classes, counted in
# the graphs that its own sources build (commit 8fb7907). Its ResNets, VGGs and Inception are as large as published:
# torchvision's table of models has 4.09, 15.47 and 5.71 GFLOPS for resnet50, vgg16 and inception_v3.
COUNTED = {
    "alexnet": (227, 512, 61_838_248, 838_788_800),
    "overfeat": (231, 32, 145_920_872, 2_801_403_904),
    "vgg11": (224, 64, 132_863_336, 7_609_090_048),
    "vgg16": (224, 64, 138_357_544, 15_470_264_320),
    "vgg19": (224, 64, 143_667_240, 19_632_062_464),
    "inception3": (299, 32, 23_817_352, 5_713_216_096),
    "resnet50": (224, 64, 25_557_032, 3_857_973_248),
    "resnet50_v1.5": (224, 64, 25_557_032, 4_089_184_256),
    "resnet101": (224, 32, 44_549_160, 7_570_194_432),
    "resnet152": (224, 32, 60_192_808, 11_282_415_616),
}


def multiplications(graph: Any) -> int:
    """Of all convolutions and matrix products for one image."""
    count = 0
    for operation in graph.get_operations():
        if operation.type == "Conv2D":
            height, width, channels_in, channels = operation.inputs[1].shape
            count += int(np.prod(operation.outputs[0].shape[1:3])) * height * width * channels_in * channels
        elif operation.type == "MatMul":
            count += int(np.prod(operation.inputs[1].shape))
    return count


def learnt(variables: Any) -> int:
    """Numbers in them."""
    return sum(int(np.prod(v.shape)) for v in variables)


@pytest.mark.parametrize("name", COUNTED)
def test_networks_are_as_large_as_tf_cnn_benchmarks_builds_them(name: str) -> None:
    """In a graph, where nothing is computed; its ResNets with the strides where it has them."""
    config = BenchmarkConfig(model=name)
    if name in NETWORKS:
        with tf.Graph().as_default() as graph:
            model = build(name, 1000, config.size)
        weights = model.trainable_variables
    else:
        resnet = ResNet(config.training().model, 1000, variant=Variant(strides_first=config.strides_first))
        shape = tf.TensorSpec([1, config.size, config.size, 3])
        graph, weights = tf.function(resnet).get_concrete_function(shape).graph, resnet.trainable()

    assert COUNTED[name] == (config.size, config.batch, learnt(weights), multiplications(graph))


def test_a_chain_computes_what_its_description_says() -> None:
    """vgg11 on tiny images against the operations one by one; nothing is dropped but in training."""
    model = build("vgg11", 3, 32)
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
    x, weights = tf.constant(images), iter(model.trainable_variables)
    for count in (1, 1, 2, 2, 2):
        for _ in range(count):
            x = tf.nn.relu(tf.nn.conv2d(x, next(weights), 1, "SAME") + next(weights))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.reshape(x, [2, -1])
    for _ in range(2):
        x = tf.nn.relu(x @ next(weights) + next(weights))
    x = x @ next(weights) + next(weights)

    np.testing.assert_allclose(model(images), x, atol=1e-4 * np.abs(x).max())
    assert np.abs(model(images, training=True) - x).max() > 1e-3 * np.abs(x).max()

"""Backbone of the detector: ResNet-50 and deeper, and the feature pyramid on it."""

from collections.abc import Callable

import tensorflow as tf

from trainer.maskrcnn.config_network import BackboneConfig, FpnConfig
from trainer.maskrcnn.layers import Layers, tf1


def resnet(images: tf.Tensor, config: BackboneConfig, layers: Layers, groups: int = 4) -> list[tf.Tensor]:
    """Build C2 .. C5 of normalised images, or the first `groups` of them.

    Args:
        images: [B, H, W, 3] float, blue green red as the published weights need; H and W multiples of 32.

    Returns:
        Tensors [B, H/s, W/s, 4 c 2^i] for s in 4, 8, 16, 32, with c = config.channels.

    Source: arXiv:1512.03385, table 1; stride in the 3x3 convolution unless `stride_1x1`.
    """
    base = layers.but(norm=config.norm, freeze_affine=config.freeze_affine)
    stem, first = (base.but(trainable=base.trainable and config.freeze_at < part) for part in (1, 2))
    x = _strided(stem, "conv0", images, config.channels, 7, config)
    x = tf.nn.max_pool2d(_pad(x, 1, 0), 3, 2, "VALID") if not config.tf_pad_mode else tf.nn.max_pool2d(x, 3, 2, "SAME")
    outputs = []
    for group in range(groups):
        x = _group(first if group == 0 else base, x, group, config)
        if group == 0 and config.freeze_at == 2:
            x = tf.stop_gradient(x)
        outputs.append(x)
    return outputs


def conv5(regions: tf.Tensor, config: BackboneConfig, layers: Layers) -> tf.Tensor:
    """Apply the backbone's last group to each region: [N, 14, 14, C] to [N, 7, 7, 2 C]. All calls share the weights."""
    layers = layers.but(norm=config.norm, freeze_affine=config.freeze_affine)
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
        return _group(layers, regions, 3, config)


def pyramid(features: list[tf.Tensor], config: FpnConfig, layers: Layers) -> list[tf.Tensor]:
    """Build P2 .. P6 from C2 .. C5: five tensors [B, H/s, W/s, config.num_channel], s in `STRIDES`.

    Source: arXiv:1612.03144, section 3; P6 takes every second cell of P5.
    """
    layers = layers.but(norm="None", trainable=True)
    channels = config.num_channel

    def norm(name: str, x: tf.Tensor) -> tf.Tensor:
        return layers.group_norm(name, x) if config.norm == "GN" else x

    with tf1.variable_scope("fpn"):
        sides = [
            norm(f"gn_c{i + 2}", layers.conv(f"lateral_1x1_c{i + 2}", c, channels, 1)) for i, c in enumerate(features)
        ]
        merged = [sides[-1]]
        for side in sides[-2::-1]:
            merged.insert(0, side + _twice(merged[0]))
        outputs = [
            norm(f"gn_p{i + 2}", layers.conv(f"posthoc_3x3_p{i + 2}", m, channels, 3)) for i, m in enumerate(merged)
        ]
        return [*outputs, tf.nn.max_pool2d(outputs[-1], 1, 2, "VALID")]


def _group(layers: Layers, x: tf.Tensor, group: int, config: BackboneConfig) -> tf.Tensor:
    with tf1.variable_scope(f"group{group}"):
        for block in range(config.resnet_num_blocks[group]):
            stride = 2 if block == 0 and group > 0 else 1
            with tf1.variable_scope(f"block{block}"):
                x = _bottleneck(layers, x, config.channels * 2**group, stride, config)
    return x


def _bottleneck(layers: Layers, x: tf.Tensor, channels: int, stride: int, config: BackboneConfig) -> tf.Tensor:
    shortcut = x
    if int(x.shape[-1]) != 4 * channels:
        inner = x[:, ::stride, ::stride] if stride > 1 else x  # a strided 1x1 convolution reads only these cells
        shortcut = layers.conv_norm("convshortcut", inner, 4 * channels, 1, relu=False)
    if config.stride_1x1 and stride > 1:
        x = x[:, ::stride, ::stride]
    x = layers.conv_norm("conv1", x, channels, 1)
    x = (
        layers.conv_norm("conv2", x, channels, 3)
        if stride == 1 or config.stride_1x1
        else _strided(layers, "conv2", x, channels, 3, config)
    )
    x = layers.conv_norm("conv3", x, 4 * channels, 1, relu=False)
    return tf.nn.relu(x + shortcut)


def _strided(layers: Layers, name: str, x: tf.Tensor, filters: int, kernel: int, config: BackboneConfig) -> tf.Tensor:
    """Build a convolution of stride 2, padded as the weights were trained."""
    if config.tf_pad_mode:
        return layers.conv_norm(name, x, filters, kernel, stride=2)
    before = kernel // 2
    return layers.conv_norm(name, _pad(x, before, before - 1), filters, kernel, stride=2, padding="VALID")


def _pad(x: tf.Tensor, before: int, after: int) -> tf.Tensor:
    return tf.pad(x, [[0, 0], [before, after], [before, after], [0, 0]])


def _twice(x: tf.Tensor) -> tf.Tensor:
    """Repeat every cell four times: [B, H, W, C] to [B, 2H, 2W, C]."""

    @tf.custom_gradient
    def twice(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        shape = tf.shape(x)
        b, h, w, c = shape[0], shape[1], shape[2], int(x.shape[-1])
        spread = tf.broadcast_to(x[:, :, None, :, None, :], [b, h, 2, w, 2, c])
        # TensorFlow's own gradient is a sum over two of six dimensions: at 100 x 168 x 256 forty times as slow.
        return tf.reshape(spread, [b, 2 * h, 2 * w, c]), lambda dy: 4 * tf.nn.avg_pool2d(dy, 2, 2, "VALID")

    return twice(x)

"""Heads on each region, which predict its class, box and mask."""

import tensorflow as tf

from trainer.maskrcnn.config import Config
from trainer.maskrcnn.config_network import FpnConfig
from trainer.maskrcnn.layers import Layers, tf1
from trainer.maskrcnn.roi import crop
from trainer.maskrcnn.rpn import huber


def box_head(x: tf.Tensor, config: FpnConfig, layers: Layers) -> tf.Tensor:
    """Build the box head, [N, 7, 7, C] to [N, FRCNN_FC_HEAD_DIM]: two dense layers, or four convolutions and one."""
    layers = layers.but(norm="None", trainable=True)
    if config.frcnn_head_func == "fastrcnn_2fc_head":
        hidden = layers.dense("fc6", _flat(x), config.frcnn_fc_head_dim, relu=True)
        return layers.dense("fc7", hidden, config.frcnn_fc_head_dim, relu=True)
    order = config.gn_head_order if config.frcnn_head_func.endswith("_gn_head") else "relu"
    x = _convs(x, "conv", config.frcnn_conv_head_dim, order, layers)
    return layers.dense("fc", _flat(x), config.frcnn_fc_head_dim, relu=True)


def box_outputs(
    x: tf.Tensor, num_classes: int, agnostic: bool, layers: Layers, scope: str = "outputs"
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return class logits [N, num_classes] and box offsets [N, num_classes or 1, 4], float32."""
    layers = layers.but(norm="None", trainable=True, dtype=tf.float32)
    shown = 1 if agnostic else num_classes
    x = tf.cast(x, tf.float32)
    with tf1.variable_scope(scope):
        logits = layers.dense("class", x, num_classes, stddev=0.01)
        offsets = layers.dense("box", x, 4 * shown, stddev=0.001)
    return logits, tf.reshape(offsets, [-1, shown, 4])


def box_losses(
    logits: tf.Tensor, offsets: tf.Tensor, wanted: tf.Tensor, classes: tf.Tensor, weights: tf.Tensor, kind: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return class and box loss, both sums over the regions with their weights.

    Args:
        logits: [N, num_classes]; offsets: [N, num_classes or 1, 4].
        wanted: [N, 4] offsets to the matched object.
        classes: [N] int32, 0 is background, which has no box loss.
        weights: [N] float32, 0 for regions that are not used.
        kind: of the box loss, one of `BOX_LOSSES`.
    """
    label_loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=classes, logits=logits)
    shown = offsets[:, 0] if offsets.shape[1] == 1 else tf.gather(offsets, classes, batch_dims=1)
    errors = huber(shown - wanted, 1.0) if kind == "huber" else tf.abs(shown - wanted)
    box_loss = tf.reduce_sum(errors, 1) * tf.cast(classes > 0, tf.float32)
    return tf.reduce_sum(label_loss * weights), tf.reduce_sum(box_loss * weights)


def mask_head(x: tf.Tensor, labels: tf.Tensor, config: Config, layers: Layers) -> tf.Tensor:
    """Return mask logits [N, 2S, 2S] float32 of each region's own class.

    Only the filter of that class is applied to a region. The result is the same as with all classes' filters, at 1/80
    of the last layer's work. The filter reads one pixel at a time, so pixels are rearranged after it, when they are one
    number each.

    Args:
        x: [N, S, S, C]; without a pyramid it comes from `conv5` and needs no more convolutions.
        labels: [N] int32, 1 .. number of categories; 0 is taken as 1.
    """
    layers = layers.but(norm="None", trainable=True)
    order = config.fpn.gn_head_order if config.fpn.mrcnn_head_func.endswith("_gn_head") else "relu"
    if config.mode_fpn:
        x = _convs(x, "fcn", config.mrcnn.head_dim, order, layers)
    side = int(x.shape[1])
    channels, categories = config.mrcnn.head_dim, config.num_classes - 1
    x = layers.deconv_cells("deconv", x, channels)
    with tf1.variable_scope("conv"):
        w = tf1.get_variable("W", [1, 1, channels, categories], initializer=tf1.random_normal_initializer(stddev=0.001))
        b = tf1.get_variable("b", [categories], initializer=tf1.zeros_initializer())
    index = tf.maximum(labels - 1, 0)
    filters = tf.cast(tf.gather(tf.transpose(w[0, 0]), index), x.dtype)  # [N, C]
    flat = tf.reshape(x, [-1, 4 * side * side, channels])
    logits = tf.cast(tf.matmul(flat, filters[:, :, None])[..., 0], tf.float32) + tf.gather(b, index)[:, None]
    cells = tf.reshape(logits, [-1, side, side, 4])
    return tf.nn.depth_to_space(cells, 2)[..., 0]


def mask_targets(
    masks: tf.Tensor, rois: tf.Tensor, match: tf.Tensor, size: int = 28, *, soft: bool = False, edged: bool = True
) -> tf.Tensor:
    """Return the mask head's targets: [N, size, size] float32 of 0 and 1, or fractions if `soft`.

    Args:
        masks: [G, W, H] uint8 of 0 and 1, column by column.
        rois: [N, 4] in the masks' pixels; x1 > x2 reads the mask mirrored.
        match: [N] int32, the mask each region is on.
        edged: masks extend beyond the centres of their outermost pixels; otherwise they are 0 there, as in tensorpack.
    """
    if edged:
        for axis in (1, 2):  # repeats the outermost pixels: `crop` returns 0 beyond their centres
            edge = [tf.gather(masks, [at], axis=axis) for at in (0, tf.shape(masks)[axis] - 1)]
            masks = tf.concat([edge[0], masks, edge[1]], axis)
        rois += 1
    samples = crop(masks[..., None], tf.gather(rois, [1, 0, 3, 2], axis=1), match, size)[..., 0]
    samples = tf.transpose(samples, [0, 2, 1])
    return samples if soft else tf.cast(samples >= 0.5, tf.float32)


def mask_loss(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return the mean cross entropy of each mask's cells, summed over the regions with their weights [N]."""
    entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
    return tf.reduce_sum(tf.reduce_mean(entropy, [1, 2]) * weights)


def _convs(x: tf.Tensor, name: str, channels: int, order: str, layers: Layers) -> tf.Tensor:
    """Build four 3x3 convolutions, each followed by relu, norm-relu or relu-norm."""
    for k in range(4):
        x = layers.conv(f"{name}{k}", x, channels, 3, relu=order.startswith("relu"))
        x = layers.group_norm(f"gn{k}", x) if "norm" in order else x
        x = tf.nn.relu(x) if order == "norm-relu" else x
    return x


def _flat(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, int(x.shape[1]) * int(x.shape[2]) * int(x.shape[3])])

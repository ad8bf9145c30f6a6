"""The region proposal network: its head, its losses and its proposals."""

import tensorflow as tf

from trainer.maskrcnn import boxes
from trainer.maskrcnn.config_network import STRIDES, RpnConfig
from trainer.maskrcnn.layers import Layers, tf1
from trainer.maskrcnn.sampling import draw, label_anchors

HUBER_DELTA = 1 / 9


def rpn_head(features: list[tf.Tensor], config: RpnConfig, layers: Layers) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Per level the objectness logits [B, A_l] and box offsets [B, A_l, 4], both float32, one head for all levels."""
    layers = layers.but(norm="None", trainable=True)
    per_cell = len(config.anchor_ratios)
    logits, offsets = [], []
    for feature in features:
        with tf1.variable_scope("rpn", reuse=tf1.AUTO_REUSE):
            hidden = layers.conv("conv0", feature, int(feature.shape[-1]), 3, relu=True, stddev=0.01)
            both = (
                layers.conv("class", hidden, per_cell, 1, stddev=0.01),
                layers.conv("box", hidden, 4 * per_cell, 1, stddev=0.01),
            )
        batch = tf.shape(feature)[0]
        logits.append(tf.reshape(tf.cast(both[0], tf.float32), [batch, -1]))
        offsets.append(tf.reshape(tf.cast(both[1], tf.float32), [batch, -1, 4]))
    return logits, offsets


def pyramid_anchors(features: list[tf.Tensor], config: RpnConfig) -> list[tf.Tensor]:
    """The anchors [A_l, 4] of each level, in the order of the head's answers."""
    return [
        boxes.anchors(tf.shape(f)[1], tf.shape(f)[2], stride, size, config.anchor_ratios)
        for f, stride, size in zip(features, STRIDES, config.anchor_sizes, strict=True)
    ]


def rpn_losses(
    logits: tf.Tensor,
    offsets: tf.Tensor,
    anchors: tf.Tensor,
    objects: tf.Tensor,
    labels: tf.Tensor,
    crowds: tf.Tensor,
    size: tf.Tensor,
    seed: tf.Tensor,
    config: RpnConfig,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Objectness and box loss of one image, each a sum over the drawn anchors divided by BATCH_PER_IM.

    Args:
        logits, offsets, anchors: [A], [A, 4], [A, 4], all levels.
        objects, labels, crowds, size: as in `label_anchors`; class 0 is padding.
    """
    target, match = label_anchors(
        anchors,
        objects,
        labels > 0,
        crowds,
        size,
        positive=config.positive_anchor_thresh,
        negative=config.negative_anchor_thresh,
        crowd_overlap=config.crowd_overlap_thresh,
    )
    total, fg_limit = config.batch_per_im, int(config.batch_per_im * config.fg_ratio)
    fg = draw(tf.equal(target, 1), fg_limit, fg_limit, seed)
    bg = draw(tf.equal(target, 0), total - tf.shape(fg)[0], total, seed + 1)
    entropy = tf.nn.sigmoid_cross_entropy_with_logits
    fg_logits, bg_logits = tf.gather(logits, fg), tf.gather(logits, bg)
    label_loss = tf.reduce_sum(entropy(labels=tf.ones_like(fg_logits), logits=fg_logits)) + tf.reduce_sum(
        entropy(labels=tf.zeros_like(bg_logits), logits=bg_logits)
    )
    wanted = boxes.encode(tf.gather(objects, tf.gather(match, fg)), tf.gather(anchors, fg))
    box_loss = tf.reduce_sum(huber(tf.gather(offsets, fg) - wanted, HUBER_DELTA))
    return label_loss / total, box_loss / total


def huber(error: tf.Tensor, delta: float) -> tf.Tensor:
    """|error| with a rounded tip: quadratic below delta, slope 1 above. Source: arXiv:1504.08083, equation 3."""
    size = tf.abs(error)
    return tf.where(size < delta, 0.5 * error * error / delta, size - 0.5 * delta)


def proposals(
    logits: list[tf.Tensor],
    offsets: list[tf.Tensor],
    anchors: list[tf.Tensor],
    size: tf.Tensor,
    config: RpnConfig,
    training: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The best regions of one image: boxes [P, 4] inside it and their logits [P], best first, P at most IMAGE_TOPK.

    Args:
        logits, offsets, anchors: per level [A_l], [A_l, 4], [A_l, 4].
        size: [2] float32, height and width of the image in pixels.
    """
    before, after, per_image = (
        (config.train_per_level_pre_nms_topk, config.train_per_level_nms_topk, config.train_image_topk)
        if training
        else (config.test_per_level_pre_nms_topk, config.test_per_level_nms_topk, config.test_image_topk)
    )
    all_boxes, all_scores = [], []
    for level_logits, level_offsets, level_anchors in zip(logits, offsets, anchors, strict=True):
        scores, index = tf.math.top_k(level_logits, tf.minimum(before, tf.shape(level_logits)[0]))
        found = boxes.decode(tf.gather(level_offsets, index), tf.gather(level_anchors, index))
        found = boxes.clip(found, size)
        large = tf.reduce_all(found[:, 2:] - found[:, :2] > config.min_size, 1)
        found, scores = tf.boolean_mask(found, large), tf.boolean_mask(scores, large)
        keep = boxes.nms(found, scores, after, config.proposal_nms_thresh)
        all_boxes.append(tf.gather(found, keep))
        all_scores.append(tf.gather(scores, keep))
    found, scores = tf.concat(all_boxes, 0), tf.concat(all_scores, 0)
    scores, index = tf.math.top_k(scores, tf.minimum(per_image, tf.shape(scores)[0]))
    return tf.stop_gradient(tf.gather(found, index)), tf.stop_gradient(scores)

"""The region proposal network: its head, its losses and its proposals."""

import tensorflow as tf

from trainer.maskrcnn import boxes
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.config_network import GROWTH, RpnConfig
from trainer.maskrcnn.layers import Layers, tf1
from trainer.maskrcnn.sampling import draw, label_anchors

HUBER_DELTA = 1 / 9


def rpn_head(features: list[tf.Tensor], config: Config, layers: Layers) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Per level the objectness logits [B, A_l] and box offsets [B, A_l, 4], both float32, one head for all levels."""
    layers = layers.but(norm="None", trainable=True)
    per_cell = len(config.anchor_places[0][1]) * len(config.rpn.anchor_ratios)
    channels = config.fpn.num_channel if config.mode_fpn else config.rpn.head_dim
    logits, offsets = [], []
    for feature in features:
        with tf1.variable_scope("rpn", reuse=tf1.AUTO_REUSE):
            hidden = layers.conv("conv0", feature, channels, 3, relu=True, stddev=0.01)
            both = (
                layers.conv("class", hidden, per_cell, 1, stddev=0.01),
                layers.conv("box", hidden, 4 * per_cell, 1, stddev=0.01),
            )
        batch = tf.shape(feature)[0]
        logits.append(tf.reshape(tf.cast(both[0], tf.float32), [batch, -1]))
        offsets.append(tf.reshape(tf.cast(both[1], tf.float32), [batch, -1, 4]))
    return logits, offsets


def anchors_of(features: list[tf.Tensor], config: Config) -> list[tf.Tensor]:
    """The anchors [A_l, 4] of each level, in the order of the head's answers."""
    ratios, center = config.rpn.anchor_ratios, config.rpn.anchor_center
    return [
        boxes.anchors(tf.shape(f)[1], tf.shape(f)[2], stride, sizes, ratios, center)
        for f, (stride, sizes) in zip(features, config.anchor_places, strict=True)
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
        tied=config.tied_anchors,
    )
    total, fg_limit = config.batch_per_im, int(config.batch_per_im * config.fg_ratio)
    fg = draw(tf.equal(target, 1), fg_limit, fg_limit, seed)
    bg = draw(tf.equal(target, 0), total - tf.shape(fg)[0], total, seed + 1)
    drawn = tf.concat([fg, bg], 0)
    logits, offsets = tf.gather(logits, drawn), tf.gather(offsets, drawn)
    num_fg = tf.shape(fg)[0]
    is_object = tf.cast(tf.range(tf.shape(logits)[0]) < num_fg, tf.float32)
    label_loss = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=is_object, logits=logits))
    wanted = boxes.encode(tf.gather(objects, tf.gather(match, fg)), tf.gather(anchors, fg))
    box_loss = tf.reduce_sum(huber(offsets[:num_fg] - wanted, HUBER_DELTA))
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
    growth: float = GROWTH,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The best regions of one image: boxes [P, 4] inside it and their logits [P], best first, P at most IMAGE_TOPK.

    Args:
        logits, offsets, anchors: per level [A_l], [A_l, 4], [A_l, 4].
        size: [2] float32, height and width of the image in pixels.
        growth: as in `boxes.decode`.
    """
    before, after, per_image = (
        (config.train_per_level_pre_nms_topk, config.train_per_level_nms_topk, config.train_image_topk)
        if training
        else (config.test_per_level_pre_nms_topk, config.test_per_level_nms_topk, config.test_image_topk)
    )
    all_boxes, all_scores = [], []
    for level_logits, level_offsets, level_anchors in zip(logits, offsets, anchors, strict=True):
        scores, index = tf.math.top_k(level_logits, tf.minimum(before, tf.shape(level_logits)[0]))
        found = boxes.decode(tf.gather(level_offsets, index), tf.gather(level_anchors, index), growth=growth)
        found = boxes.clip(found, size)
        first, last = tf.split(found, 2, 1)
        large = tf.reduce_all(last - first > config.min_size, 1)
        found, scores = tf.boolean_mask(found, large), tf.boolean_mask(scores, large)
        keep = boxes.nms(found, scores, after, config.proposal_nms_thresh)
        all_boxes.append(tf.gather(found, keep))
        all_scores.append(tf.gather(scores, keep))
    found, scores = tf.concat(all_boxes, 0), tf.concat(all_scores, 0)
    scores, index = tf.math.top_k(scores, tf.minimum(per_image, tf.shape(scores)[0]))
    return tf.stop_gradient(tf.gather(found, index)), tf.stop_gradient(scores)

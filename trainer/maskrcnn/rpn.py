"""Region proposal network: its head, its losses and its proposals."""

from dataclasses import dataclass
from functools import partial

import tensorflow as tf

from trainer.maskrcnn import boxes
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.config_network import GROWTH, RpnConfig
from trainer.maskrcnn.layers import Layers, tf1
from trainer.maskrcnn.sampling import draw, label_anchors

HUBER_DELTA = 1 / 9


def rpn_head(features: list[tf.Tensor], config: Config, layers: Layers) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Return objectness logits [B, A_l] and box offsets [B, A_l, 4] of each level, float32.

    All levels share one head.
    """
    logits, offsets = [], []
    for feature in features:
        both = _answers(feature, config, layers)
        batch = tf.shape(feature)[0]
        logits.append(tf.reshape(both[0], [batch, -1]))
        offsets.append(tf.reshape(both[1], [batch, -1, 4]))
    return logits, offsets


def rpn_head_at(
    features: list[tf.Tensor], image: tf.Tensor, index: tf.Tensor, config: Config, layers: Layers
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute `rpn_head` for some anchors only: logits [D] and offsets [D, 4], float32.

    A step learns from 256 anchors of an image. Their gradient through the whole maps would be a convolution of zeros,
    twice over: at 800 x 1333 that costs as much as the backbone's forward pass. Computing the head again for these
    anchors alone costs next to nothing.

    Args:
        image: [D] int32, the image of the batch each lies on.
        index: [D] int32, their numbers among its anchors of all levels.
    """
    per_cell = _per_cell(config)
    patches = _patches(features, image, index // per_cell)
    logits, offsets = _answers(patches, config, layers, alone=True)
    which = index % per_cell
    logits = tf.reshape(logits, [-1, per_cell])
    offsets = tf.reshape(offsets, [-1, per_cell, 4])
    return tf.gather(logits, which, batch_dims=1), tf.gather(offsets, which, batch_dims=1)


def _answers(x: tf.Tensor, config: Config, layers: Layers, *, alone: bool = False) -> tuple[tf.Tensor, tf.Tensor]:
    """Return logits [.., K] and offsets [.., 4 K], float32, of the K anchors of each cell.

    Args:
        x: [B, H, W, C], and .. is B, H, W; or cells `alone` as patches [D, 3, 3, C], and .. is D.
    """
    layers = layers.but(norm="None", trainable=True)
    channels = config.fpn.num_channel if config.mode_fpn else config.rpn.head_dim
    with tf1.variable_scope("rpn", reuse=tf1.AUTO_REUSE):
        if alone:
            hidden = layers.conv_at("conv0", x, channels, relu=True, stddev=0.01)[:, None, None]
            of_cell = layers.conv_at
        else:
            hidden = layers.conv("conv0", x, channels, 3, relu=True, stddev=0.01)
            of_cell = partial(layers.conv, kernel=1)
        logits = of_cell("class", hidden, _per_cell(config), stddev=0.01)
        offsets = of_cell("box", hidden, 4 * _per_cell(config), stddev=0.01)
    return tf.cast(logits, tf.float32), tf.cast(offsets, tf.float32)


def _per_cell(config: Config) -> int:
    return len(config.anchor_places[0][1]) * len(config.rpn.anchor_ratios)


def _patches(features: list[tf.Tensor], image: tf.Tensor, cell: tf.Tensor) -> tf.Tensor:
    """Return [D, 3, 3, C] around each cell, zeros beyond its level's map.

    Args:
        image, cell: [D] int32; cells are counted through all levels, row by row.
    """
    heights, widths = (tf.stack([tf.shape(f)[axis] for f in features]) for axis in (1, 2))
    ends = tf.cumsum(heights * widths)
    level = tf.reduce_sum(tf.cast(cell[:, None] >= ends, tf.int32), 1)
    height, width = (tf.gather(v, level)[:, None, None] for v in (heights, widths))
    first = tf.gather(ends - heights * widths, level)
    row, column = (cell - first) // width[:, 0, 0], (cell - first) % width[:, 0, 0]
    rows = row[:, None, None] + [[-1], [0], [1]]  # [D, 3, 1]
    columns = column[:, None, None] + [-1, 0, 1]  # [D, 1, 3]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    at = (image * ends[-1] + first)[:, None, None] + rows * width + columns
    batch, channels = tf.shape(features[0])[0], int(features[0].shape[-1])
    flat = tf.concat([tf.reshape(f, [batch, -1, channels]) for f in features], 1)
    found = tf.gather(tf.reshape(flat, [-1, channels]), tf.where(inside, at, 0))
    return tf.where(inside[..., None], found, tf.zeros([], found.dtype))


def anchors_of(features: list[tf.Tensor], config: Config) -> list[tf.Tensor]:
    """Return the anchors [A_l, 4] of each level, in the order of the head's outputs."""
    ratios, center = config.rpn.anchor_ratios, config.rpn.anchor_center
    return [
        boxes.anchors(tf.shape(f)[1], tf.shape(f)[2], stride, sizes, ratios, center)
        for f, (stride, sizes) in zip(features, config.anchor_places, strict=True)
    ]


@dataclass(frozen=True)
class SampledAnchors:
    """Anchors of one image that a step learns from.

    index: [D] int32, their numbers among the anchors of all levels, those on objects first.
    wanted: [F, 4] float32, offsets from the F first ones to their objects.
    """

    index: tf.Tensor
    wanted: tf.Tensor


def draw_anchors(
    anchors: tf.Tensor,
    objects: tf.Tensor,
    labels: tf.Tensor,
    crowds: tf.Tensor,
    size: tf.Tensor,
    seed: tf.Tensor,
    config: RpnConfig,
) -> SampledAnchors:
    """Draw at most BATCH_PER_IM of one image's anchors, of which at most FG_RATIO are on objects.

    Args:
        anchors: [A, 4], all levels.
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
    wanted = boxes.encode(tf.gather(objects, tf.gather(match, fg)), tf.gather(anchors, fg))
    return SampledAnchors(tf.concat([fg, bg], 0), wanted)


def rpn_losses(
    logits: tf.Tensor, offsets: tf.Tensor, wanted: tf.Tensor, config: RpnConfig
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return objectness and box loss of one image, each a sum over the drawn anchors divided by BATCH_PER_IM.

    Args:
        logits, offsets: [D], [D, 4], the head's output for the drawn anchors; wanted: as in `SampledAnchors`.
    """
    num_fg = tf.shape(wanted)[0]
    is_object = tf.cast(tf.range(tf.shape(logits)[0]) < num_fg, tf.float32)
    label_loss = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=is_object, logits=logits))
    box_loss = tf.reduce_sum(huber(offsets[:num_fg] - wanted, HUBER_DELTA))
    return label_loss / config.batch_per_im, box_loss / config.batch_per_im


def huber(error: tf.Tensor, delta: float) -> tf.Tensor:
    """Return |error| with a rounded tip: quadratic below delta, slope 1 above. Source: arXiv:1504.08083, equation 3."""
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
    """Return the best regions of one image: boxes [P, 4] inside it and their logits [P], best first.

    P is at most IMAGE_TOPK.

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

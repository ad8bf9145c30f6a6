"""Losses and predictions of a batch's regions: classes, boxes and masks, with a pyramid, a cascade, or on C4."""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from trainer.maskrcnn import boxes
from trainer.maskrcnn.backbone import conv5
from trainer.maskrcnn.batch import Batch
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.config_network import C4_STRIDE, STRIDES
from trainer.maskrcnn.heads import box_head, box_losses, box_outputs, mask_head, mask_loss, mask_targets
from trainer.maskrcnn.layers import Layers, tf1
from trainer.maskrcnn.roi import pyramid_roi_align, roi_align
from trainer.maskrcnn.sampling import match_refined


@dataclass(frozen=True)
class Regions:
    """Regions drawn from each image: rois [B, R, 4], classes, match (both int32), is_used (bool) [B, R]."""

    rois: tf.Tensor
    classes: tf.Tensor
    match: tf.Tensor
    is_used: tf.Tensor

    def image(self) -> tf.Tensor:
        """Return [B x R] int32, the image of each region."""
        shape = tf.shape(self.classes)
        return tf.repeat(tf.range(shape[0]), shape[1])

    def weights(self, image_weights: tf.Tensor) -> tf.Tensor:
        """Return [B x R] float32: the image's weight divided among its used regions."""
        used = tf.cast(self.is_used, tf.float32)
        share = tf.math.divide_no_nan(image_weights, tf.reduce_sum(used, 1))
        return tf.reshape(used * share[:, None], [-1])


def box_losses_of(
    result: dict[str, tf.Tensor],
    features: list[tf.Tensor],
    regions: Regions,
    batch: Batch,
    config: Config,
    layers: Layers,
) -> tf.Tensor | None:
    """Add both losses to `result`. Returns the features that the mask head shares, as `_one_box_head` does."""
    rois = tf.reshape(regions.rois, [-1, 4])
    logits, offsets, shared = _one_box_head(features, rois, regions.image(), config, layers)
    wanted = _wanted(regions, batch, config.frcnn.bbox_reg_weights)
    result["frcnn_label"], result["frcnn_box"] = box_losses(
        logits,
        offsets,
        wanted,
        tf.reshape(regions.classes, [-1]),
        regions.weights(batch.weights),
        config.frcnn.box_loss,
    )
    return shared


def _one_box_head(
    features: list[tf.Tensor], rois: tf.Tensor, image: tf.Tensor, config: Config, layers: Layers
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Return class logits and box offsets of regions, and without a pyramid their `conv5` for the mask head."""
    if config.mode_fpn:
        pooled = _pooled(features, rois, image, config, 7)
        with tf1.variable_scope("fastrcnn"):
            hidden = box_head(pooled, config.fpn, layers)
            return *box_outputs(hidden, config.num_classes, False, layers), None
    shared = conv5(_pooled(features, rois, image, config, 14), config.backbone, layers)
    mean = tf.reduce_mean(tf.cast(shared, tf.float32), [1, 2])
    return *box_outputs(mean, config.num_classes, False, layers, "fastrcnn"), shared


def cascade_losses(
    result: dict[str, tf.Tensor],
    features: list[tf.Tensor],
    regions: Regions,
    batch: Batch,
    config: Config,
    layers: Layers,
) -> None:
    """Add class and box loss of each of three stages to `result`. Each stage uses the previous stage's boxes."""
    for stage, (threshold, reg_weights) in enumerate(
        zip(config.cascade.ious, config.cascade.bbox_reg_weights, strict=True)
    ):
        if stage > 0:
            regions = _rematched(regions, batch, threshold)
        flat = tf.reshape(regions.rois, [-1, 4])
        pooled = _scale_gradient(_pooled(features, flat, regions.image(), config, 7), 1 / len(config.cascade.ious))
        with tf1.variable_scope(f"cascade_rcnn_stage{stage + 1}"), tf1.variable_scope("head"):
            hidden = box_head(pooled, config.fpn, layers)
        with tf1.variable_scope(f"cascade_rcnn_stage{stage + 1}"):
            logits, offsets = box_outputs(hidden, config.num_classes, True, layers)
        result[f"frcnn{stage + 1}_label"], result[f"frcnn{stage + 1}_box"] = box_losses(
            logits,
            offsets,
            _wanted(regions, batch, reg_weights),
            tf.reshape(regions.classes, [-1]),
            regions.weights(batch.weights),
            config.frcnn.box_loss,
        )
        moved = tf.reshape(
            boxes.decode(offsets[:, 0], flat, reg_weights, config.preproc.growth), tf.shape(regions.rois)
        )
        moved = _per_image(lambda args: boxes.clip(args[0], args[1]), (moved, batch.sizes))
        moved = tf.stop_gradient(moved)
        regions = Regions(moved, regions.classes, regions.match, regions.is_used & (boxes.area(moved) > 0))


def _rematched(regions: Regions, batch: Batch, threshold: float) -> Regions:
    parts = [
        match_refined(regions.rois[b], batch.boxes[b], batch.labels[b], regions.is_used[b], threshold)
        for b in range(batch.images.shape[0])
    ]
    classes, match = (tf.stack(p) for p in zip(*parts, strict=True))
    return Regions(regions.rois, classes, match, regions.is_used)


def mask_loss_of(
    features: list[tf.Tensor],
    shared: tf.Tensor | None,
    regions: Regions,
    num_fg: tf.Tensor,
    batch: Batch,
    config: Config,
    layers: Layers,
) -> tf.Tensor:
    """Return the mask loss of the regions on objects, `num_fg` [B] of them.

    Args:
        shared: what `box_losses_of` returned.
    """
    count = batch.images.shape[0]
    bucket = _bucket(tf.reduce_max(num_fg), layers.region_step)
    rois = regions.rois[:, :bucket]
    image = tf.repeat(tf.range(count), bucket)
    if shared is None:
        pooled = _pooled(features, tf.reshape(rois, [-1, 4]), image, config, 14)
    else:
        cells = [int(side) for side in shared.shape[1:]]
        pooled = tf.reshape(tf.reshape(shared, [count, -1, *cells])[:, :bucket], [-1, *cells])
    with tf1.variable_scope("maskrcnn"):
        logits = mask_head(pooled, tf.reshape(regions.classes[:, :bucket], [-1]), config, layers)
    shape = tf.shape(batch.masks)
    in_file = rois * tf.tile(batch.mask_map[:, :2], [1, 2])[:, None] + tf.tile(batch.mask_map[:, 2:], [1, 2])[:, None]
    match = regions.match[:, :bucket] + (tf.range(count) * shape[1])[:, None]
    targets = mask_targets(
        tf.reshape(batch.masks, [-1, shape[2], shape[3]]),
        tf.reshape(in_file, [-1, 4]),
        tf.reshape(match, [-1]),
        int(logits.shape[1]),
        soft=config.mrcnn.soft_targets,
        edged=not config.mrcnn.resized_masks,
    )
    share = tf.math.divide_no_nan(batch.weights, tf.cast(num_fg, tf.float32))
    weights = tf.where(tf.range(bucket)[None] < num_fg[:, None], share[:, None], 0.0)
    return mask_loss(logits, tf.stop_gradient(targets), tf.reshape(weights, [-1]))


def scored_boxes(
    features: list[tf.Tensor], rois: tf.Tensor, size: tf.Tensor, config: Config, layers: Layers
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return class probabilities [P, num_classes] and the boxes [P, num_classes or 1, 4] inside the image."""
    image = tf.zeros([tf.shape(rois)[0]], tf.int32)
    if not config.fpn.cascade:
        logits, offsets, _ = _one_box_head(features, rois, image, config, layers)
        found = boxes.decode(offsets, rois[:, None], config.frcnn.bbox_reg_weights, config.preproc.growth)
        return tf.nn.softmax(logits), boxes.clip(found, size)
    chances = []
    for stage, reg_weights in enumerate(config.cascade.bbox_reg_weights):
        with tf1.variable_scope(f"cascade_rcnn_stage{stage + 1}"), tf1.variable_scope("head"):
            hidden = box_head(_pooled(features, rois, image, config, 7), config.fpn, layers)
        with tf1.variable_scope(f"cascade_rcnn_stage{stage + 1}"):
            logits, offsets = box_outputs(hidden, config.num_classes, True, layers)
        chances.append(tf.nn.softmax(logits))
        rois = boxes.clip(boxes.decode(offsets[:, 0], rois, reg_weights, config.preproc.growth), size)
    return tf.add_n(chances) / len(chances), rois[:, None]


def _pooled(features: list[tf.Tensor], rois: tf.Tensor, image: tf.Tensor, config: Config, cells: int) -> tf.Tensor:
    """Return [N, cells, cells, C] of each region, from its level of the pyramid or from C4."""
    if config.mode_fpn:
        pooled = pyramid_roi_align(features[:4], rois, image, STRIDES[:4], cells)
    else:
        pooled = roi_align(features[0], rois, image, C4_STRIDE, cells)
    return tf.ensure_shape(pooled, [None, cells, cells, int(features[0].shape[-1])])


def _wanted(regions: Regions, batch: Batch, reg_weights: tuple[float, ...]) -> tf.Tensor:
    """Return [B x R, 4] offsets from each region to its object."""
    targets = boxes.encode(tf.gather(batch.boxes, regions.match, batch_dims=1), regions.rois, reg_weights)
    return tf.stop_gradient(tf.reshape(targets, [-1, 4]))


def _bucket(count: tf.Tensor, step: int) -> tf.Tensor:
    """Return `count` rounded up to a multiple of `step`, at least one."""
    return tf.maximum(-(-count // step), 1) * step


def _per_image(body: Callable[[tuple[tf.Tensor, ...]], tf.Tensor], args: tuple[tf.Tensor, ...]) -> tf.Tensor:
    return tf.stack([body(tuple(a[b] for a in args)) for b in range(args[1].shape[0])])


@tf.custom_gradient
def _scale_gradient(x: tf.Tensor, factor: float) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, None]]]:
    return tf.identity(x), lambda dy: (dy * factor, None)


def mask_logits_of(
    features: list[tf.Tensor], found: tf.Tensor, labels: tf.Tensor, config: Config, layers: Layers
) -> tf.Tensor:
    """Return the mask head's logits [K, cells, cells] float32 for boxes [K, 4] and labels [K] found on one image."""
    count = tf.shape(found)[0]
    more = _bucket(count, layers.region_step) - count
    padded = tf.pad(found, [[0, more], [0, 0]])
    pooled = _pooled(features, padded, tf.zeros([count + more], tf.int32), config, 14)
    pooled = pooled if config.mode_fpn else conv5(pooled, config.backbone, layers)
    with tf1.variable_scope("maskrcnn"):
        return mask_head(pooled, tf.pad(labels, [[0, more]]), config, layers)[:count]

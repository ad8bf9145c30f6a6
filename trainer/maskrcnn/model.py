"""Mask R-CNN put together: the losses of a batch, and the detections of an image."""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from trainer.maskrcnn import boxes
from trainer.maskrcnn.backbone import pyramid, resnet
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.config_network import STRIDES
from trainer.maskrcnn.heads import box_head, box_losses, box_outputs, mask_head, mask_loss, mask_targets
from trainer.maskrcnn.layers import Layers, tf1
from trainer.maskrcnn.roi import pyramid_roi_align
from trainer.maskrcnn.rpn import proposals, pyramid_anchors, rpn_head, rpn_losses
from trainer.maskrcnn.sampling import match_refined, sample_proposals

MASK_BUCKET = 16
"""The mask head runs on a multiple of this many regions, so that few shapes occur."""


@dataclass(frozen=True)
class Batch:
    """The tensors of one training step on one rank; B images padded to one size, G objects padded with class 0."""

    images: tf.Tensor
    """[B, H, W, 3] uint8, blue green red; H and W multiples of 32."""
    sizes: tf.Tensor
    """[B, 2] float32, height and width of the image without its padding."""
    boxes: tf.Tensor
    """[B, G, 4] float32 in pixels of `images`."""
    labels: tf.Tensor
    """[B, G] int32."""
    crowds: tf.Tensor
    """[B, C, 4] float32 boxes of crowd regions, padded with zeros."""
    masks: tf.Tensor
    """[B, G, N, M] uint8, column by column, in pixels of the file: they need not be resized to be sampled."""
    mask_map: tf.Tensor
    """[B, 4] float32: pixel x, y of `images` is x * [0] + [2], y * [1] + [3] of `masks`; [0] < 0 where mirrored."""
    weights: tf.Tensor
    """[B] float32; the loss is the sum of the images' losses times these."""
    seeds: tf.Tensor
    """[B, 2] int32; what is drawn depends on these only."""

    SIGNATURE = (
        ("images", (None, None, None, 3), tf.uint8),
        ("sizes", (None, 2), tf.float32),
        ("boxes", (None, None, 4), tf.float32),
        ("labels", (None, None), tf.int32),
        ("crowds", (None, None, 4), tf.float32),
        ("masks", (None, None, None, None), tf.uint8),
        ("mask_map", (None, 4), tf.float32),
        ("weights", (None,), tf.float32),
        ("seeds", (None, 2), tf.int32),
    )

    @classmethod
    def specs(cls, batch_size: int) -> list[tf.TensorSpec]:
        """Shapes and types of the fields in order."""
        return [tf.TensorSpec((batch_size, *shape[1:]), dtype, name) for name, shape, dtype in cls.SIGNATURE]


def make_layers(config: Config, *, training: bool, ranks: int = 1) -> Layers:
    """The layers the configuration asks for."""
    return Layers(training=training, dtype=tf.as_dtype(config.train.precision), ranks=ranks)


def losses(batch: Batch, config: Config, layers: Layers) -> dict[str, tf.Tensor]:
    """The weighted sum over the images of each loss, by name; their sum is what to minimise.

    Also holds `fg_rois`, the mean number of regions on objects, which is no loss.
    """
    features = _features(batch.images, config, layers)
    logits, offsets = rpn_head(features, config.rpn, layers)
    anchors = pyramid_anchors(features, config.rpn)
    count = batch.images.shape[0]
    result: dict[str, tf.Tensor] = {}
    sampled = []
    for b in range(count):
        found, _ = proposals([v[b] for v in logits], [v[b] for v in offsets], anchors, batch.sizes[b], config.rpn, True)
        label_loss, box_loss = rpn_losses(
            tf.concat([v[b] for v in logits], 0),
            tf.concat([v[b] for v in offsets], 0),
            tf.concat(anchors, 0),
            batch.boxes[b],
            batch.labels[b],
            batch.crowds[b],
            batch.sizes[b],
            batch.seeds[b],
            config.rpn,
        )
        _add(result, "rpn_label", label_loss * batch.weights[b])
        _add(result, "rpn_box", box_loss * batch.weights[b])
        sampled.append(
            sample_proposals(
                found,
                batch.boxes[b],
                batch.labels[b],
                batch.seeds[b] + 2,
                total=config.frcnn.batch_per_im,
                fg_limit=int(config.frcnn.batch_per_im * config.frcnn.fg_ratio),
                threshold=config.frcnn.fg_thresh,
            )
        )
    rois, classes, match, is_used, num_fg = (tf.stack(parts) for parts in zip(*sampled, strict=True))
    regions = Regions(tf.stop_gradient(rois), classes, match, is_used)
    if config.fpn.cascade:
        _cascade_losses(result, features, regions, batch, config, layers)
    else:
        _box_losses(result, features, regions, batch, config, layers)
    if config.mode_mask:
        result["mask"] = _mask_loss(features, regions, num_fg, batch, config, layers)
    result["fg_rois"] = tf.reduce_mean(tf.cast(num_fg, tf.float32))
    return result


@dataclass(frozen=True)
class Regions:
    """The regions drawn from each image: rois [B, R, 4], classes, match (both int32) and is_used (bool) [B, R]."""

    rois: tf.Tensor
    classes: tf.Tensor
    match: tf.Tensor
    is_used: tf.Tensor

    def image(self) -> tf.Tensor:
        """[B x R] int32, the image of each region."""
        shape = tf.shape(self.classes)
        return tf.repeat(tf.range(shape[0]), shape[1])

    def weights(self, image_weights: tf.Tensor) -> tf.Tensor:
        """[B x R] float32: the image's weight shared by its used regions."""
        used = tf.cast(self.is_used, tf.float32)
        share = tf.math.divide_no_nan(image_weights, tf.reduce_sum(used, 1))
        return tf.reshape(used * share[:, None], [-1])


def detections(images: tf.Tensor, sizes: tf.Tensor, config: Config, layers: Layers) -> dict[str, tf.Tensor]:
    """What is seen on one image.

    Args:
        images: [1, H, W, 3] uint8, blue green red, padded to multiples of 32.
        sizes: [1, 2] float32, height and width without the padding.
    Returns:
        boxes [K, 4] float32 in pixels of `images`, scores [K], labels [K] int32 (1 ..), best first, and, with masks,
        masks [K, 28, 28] float32 probabilities over the box. K is at most TEST.RESULTS_PER_IM.
    """
    features = _features(images, config, layers)
    logits, offsets = rpn_head(features, config.rpn, layers)
    rois, _ = proposals(
        [v[0] for v in logits],
        [v[0] for v in offsets],
        pyramid_anchors(features, config.rpn),
        sizes[0],
        config.rpn,
        False,
    )
    chances, found = _scored_boxes(features, rois, sizes[0], config, layers)
    kept, scores, labels, count = tf.image.combined_non_max_suppression(
        found[None, :, 1:] if found.shape[1] > 1 else found[None],
        chances[None, :, 1:],
        config.test.results_per_im,
        config.test.results_per_im,
        config.test.frcnn_nms_thresh,
        config.test.result_score_thresh,
        clip_boxes=False,
    )
    count = count[0]
    result = {
        "boxes": tf.reshape(kept[0, :count], [-1, 4]),
        "scores": scores[0, :count],
        "labels": tf.cast(labels[0, :count], tf.int32) + 1,
    }
    if config.mode_mask:
        bucket = _bucket(count)
        padded = tf.pad(result["boxes"], [[0, bucket - count], [0, 0]])
        pooled = pyramid_roi_align(features[:4], padded, tf.zeros([bucket], tf.int32), STRIDES[:4], 14)
        with tf1.variable_scope("maskrcnn"):
            mask_logits = mask_head(pooled, tf.pad(result["labels"], [[0, bucket - count]]), config, layers)
        result["masks"] = tf.sigmoid(mask_logits[:count])
    return result


def _features(images: tf.Tensor, config: Config, layers: Layers) -> list[tf.Tensor]:
    mean = tf.constant(config.preproc.pixel_mean[::-1], tf.float32)
    inverse = tf.constant([1 / s for s in config.preproc.pixel_std[::-1]], tf.float32)
    x = tf.cast((tf.cast(images, tf.float32) - mean) * inverse, layers.dtype)
    return pyramid(resnet(x, config.backbone, layers), config.fpn, layers)


def _box_losses(
    result: dict[str, tf.Tensor],
    features: list[tf.Tensor],
    regions: Regions,
    batch: Batch,
    config: Config,
    layers: Layers,
) -> None:
    rois = tf.reshape(regions.rois, [-1, 4])
    pooled = _pooled(features, rois, regions.image(), config)
    with tf1.variable_scope("fastrcnn"):
        logits, offsets = box_outputs(box_head(pooled, config.fpn, layers), config.num_classes, False, layers)
    wanted = _wanted(regions, batch, config.frcnn.bbox_reg_weights)
    result["frcnn_label"], result["frcnn_box"] = box_losses(
        logits, offsets, wanted, tf.reshape(regions.classes, [-1]), regions.weights(batch.weights)
    )


def _cascade_losses(
    result: dict[str, tf.Tensor],
    features: list[tf.Tensor],
    regions: Regions,
    batch: Batch,
    config: Config,
    layers: Layers,
) -> None:
    for stage, (threshold, reg_weights) in enumerate(
        zip(config.cascade.ious, config.cascade.bbox_reg_weights, strict=True)
    ):
        if stage > 0:
            regions = _rematched(regions, batch, threshold)
        flat = tf.reshape(regions.rois, [-1, 4])
        pooled = _scale_gradient(_pooled(features, flat, regions.image(), config), 1 / len(config.cascade.ious))
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
        )
        moved = tf.reshape(boxes.decode(offsets[:, 0], flat, reg_weights), tf.shape(regions.rois))
        moved = _per_image(lambda args: boxes.clip(args[0], args[1]), (moved, batch.sizes))
        regions = Regions(tf.stop_gradient(moved), regions.classes, regions.match, regions.is_used)


def _rematched(regions: Regions, batch: Batch, threshold: float) -> Regions:
    parts = [
        match_refined(regions.rois[b], batch.boxes[b], batch.labels[b], regions.is_used[b], threshold)
        for b in range(batch.images.shape[0])
    ]
    classes, match = (tf.stack(p) for p in zip(*parts, strict=True))
    return Regions(regions.rois, classes, match, regions.is_used)


def _mask_loss(
    features: list[tf.Tensor], regions: Regions, num_fg: tf.Tensor, batch: Batch, config: Config, layers: Layers
) -> tf.Tensor:
    count = batch.images.shape[0]
    bucket = _bucket(tf.reduce_max(num_fg))
    rois = regions.rois[:, :bucket]
    image = tf.repeat(tf.range(count), bucket)
    pooled = pyramid_roi_align(features[:4], tf.reshape(rois, [-1, 4]), image, STRIDES[:4], 14)
    with tf1.variable_scope("maskrcnn"):
        logits = mask_head(pooled, tf.reshape(regions.classes[:, :bucket], [-1]), config, layers)
    shape = tf.shape(batch.masks)
    in_file = rois * tf.tile(batch.mask_map[:, :2], [1, 2])[:, None] + tf.tile(batch.mask_map[:, 2:], [1, 2])[:, None]
    match = regions.match[:, :bucket] + (tf.range(count) * shape[1])[:, None]
    targets = mask_targets(
        tf.reshape(batch.masks, [-1, shape[2], shape[3]]), tf.reshape(in_file, [-1, 4]), tf.reshape(match, [-1])
    )
    share = tf.math.divide_no_nan(batch.weights, tf.cast(num_fg, tf.float32))
    weights = tf.where(tf.range(bucket)[None] < num_fg[:, None], share[:, None], 0.0)
    return mask_loss(logits, tf.stop_gradient(targets), tf.reshape(weights, [-1]))


def _scored_boxes(
    features: list[tf.Tensor], rois: tf.Tensor, size: tf.Tensor, config: Config, layers: Layers
) -> tuple[tf.Tensor, tf.Tensor]:
    """Class probabilities [P, num_classes] and the boxes [P, num_classes or 1, 4] inside the image."""
    image = tf.zeros([tf.shape(rois)[0]], tf.int32)
    if not config.fpn.cascade:
        with tf1.variable_scope("fastrcnn"):
            hidden = box_head(_pooled(features, rois, image, config), config.fpn, layers)
            logits, offsets = box_outputs(hidden, config.num_classes, False, layers)
        found = boxes.decode(offsets, rois[:, None], config.frcnn.bbox_reg_weights)
        return tf.nn.softmax(logits), boxes.clip(found, size)
    chances = []
    for stage, reg_weights in enumerate(config.cascade.bbox_reg_weights):
        with tf1.variable_scope(f"cascade_rcnn_stage{stage + 1}"), tf1.variable_scope("head"):
            hidden = box_head(_pooled(features, rois, image, config), config.fpn, layers)
        with tf1.variable_scope(f"cascade_rcnn_stage{stage + 1}"):
            logits, offsets = box_outputs(hidden, config.num_classes, True, layers)
        chances.append(tf.nn.softmax(logits))
        rois = boxes.clip(boxes.decode(offsets[:, 0], rois, reg_weights), size)
    return tf.add_n(chances) / len(chances), rois[:, None]


def _pooled(features: list[tf.Tensor], rois: tf.Tensor, image: tf.Tensor, config: Config) -> tf.Tensor:
    return tf.ensure_shape(
        pyramid_roi_align(features[:4], rois, image, STRIDES[:4], 7), [None, 7, 7, config.fpn.num_channel]
    )


def _wanted(regions: Regions, batch: Batch, reg_weights: tuple[float, ...]) -> tf.Tensor:
    """[B x R, 4] offsets from each region to its object."""
    targets = boxes.encode(tf.gather(batch.boxes, regions.match, batch_dims=1), regions.rois, reg_weights)
    return tf.stop_gradient(tf.reshape(targets, [-1, 4]))


def _bucket(count: tf.Tensor) -> tf.Tensor:
    """`count` rounded up to a multiple of `MASK_BUCKET`, at least one."""
    return tf.maximum(-(-count // MASK_BUCKET), 1) * MASK_BUCKET


def _per_image(body: Callable[[tuple[tf.Tensor, ...]], tf.Tensor], args: tuple[tf.Tensor, ...]) -> tf.Tensor:
    return tf.stack([body(tuple(a[b] for a in args)) for b in range(args[1].shape[0])])


@tf.custom_gradient
def _scale_gradient(x: tf.Tensor, factor: float) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, None]]]:
    return tf.identity(x), lambda dy: (dy * factor, None)


def _add(result: dict[str, tf.Tensor], name: str, value: tf.Tensor) -> None:
    result[name] = result[name] + value if name in result else value

"""Mask R-CNN, assembled from its parts: the losses of a batch, and the detections of an image."""

import tensorflow as tf

from trainer.maskrcnn import boxes
from trainer.maskrcnn.backbone import pyramid, resnet
from trainer.maskrcnn.batch import Batch
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.layers import Layers
from trainer.maskrcnn.roi_heads import (
    Regions,
    box_losses_of,
    cascade_losses,
    mask_logits_of,
    mask_loss_of,
    scored_boxes,
)
from trainer.maskrcnn.rpn import SampledAnchors, anchors_of, draw_anchors, proposals, rpn_head, rpn_head_at, rpn_losses
from trainer.maskrcnn.sampling import sample_proposals

REGION_STEP = {"GPU": 16, "CPU": 4}
"""The mask head runs on a multiple of this many regions. cuDNN prepares each new shape, so there should be few. For
oneDNN a new shape costs next to nothing, but a padding region as much as a real one."""


def make_layers(config: Config, *, training: bool, ranks: int = 1, device: str = "GPU") -> Layers:
    """Return the layer builder of the configuration, to run on a "GPU" (or anywhere) or on a "CPU"."""
    return Layers(
        training=training,
        dtype=tf.as_dtype(config.train.precision),
        ranks=ranks,
        region_step=REGION_STEP[device],
    )


def losses(batch: Batch, config: Config, layers: Layers) -> dict[str, tf.Tensor]:
    """Return each loss by name, as the weighted sum over the images. Their sum is to be minimised.

    Also contains `fg_rois`, the mean number of regions on objects, which is not a loss.
    """
    features = _features(batch.images, batch.sizes, config, layers)
    logits, offsets = rpn_head(features, config, layers)
    anchors = anchors_of(features, config)
    count = batch.images.shape[0]
    result: dict[str, tf.Tensor] = {}
    sampled, drawn = [], []
    for b in range(count):
        found, _ = proposals(
            [v[b] for v in logits],
            [v[b] for v in offsets],
            anchors,
            batch.sizes[b],
            config.rpn,
            True,
            config.preproc.growth,
        )
        drawn.append(
            draw_anchors(
                tf.concat(anchors, 0),
                batch.boxes[b],
                batch.labels[b],
                batch.crowds[b],
                batch.sizes[b],
                batch.seeds[b],
                config.rpn,
            )
        )
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
    _add_anchor_losses(result, features, drawn, batch, config, layers)
    rois, classes, match, is_used, num_fg = (tf.stack(parts) for parts in zip(*sampled, strict=True))
    regions = Regions(tf.stop_gradient(rois), classes, match, is_used)
    shared = None
    if config.fpn.cascade:
        cascade_losses(result, features, regions, batch, config, layers)
    else:
        shared = box_losses_of(result, features, regions, batch, config, layers)
    if config.mode_mask:
        result["mask"] = mask_loss_of(features, shared, regions, num_fg, batch, config, layers)
    result["fg_rois"] = tf.reduce_mean(tf.cast(num_fg, tf.float32))
    return result


def detections(images: tf.Tensor, sizes: tf.Tensor, config: Config, layers: Layers) -> dict[str, tf.Tensor]:
    """Build the graph that detects the objects on one image.

    Args:
        images: [1, H, W, 3] uint8, blue green red, padded to multiples of 32.
        sizes: [1, 2] float32, height and width without the padding.

    Returns:
        boxes [K, 4] float32 in pixels of `images`, scores [K], labels [K] int32 (1 ..), best first, and, with masks,
        masks [K, 28, 28], or 14 cells a side without a pyramid, float32 probabilities over the box. K is at most
        TEST.RESULTS_PER_IM.
    """
    features = _features(images, sizes, config, layers)
    logits, offsets = rpn_head(features, config, layers)
    rois, _ = proposals(
        [v[0] for v in logits],
        [v[0] for v in offsets],
        anchors_of(features, config),
        sizes[0],
        config.rpn,
        False,
        config.preproc.growth,
    )
    chances, found = scored_boxes(features, rois, sizes[0], config, layers)
    kept, scores, categories = boxes.best_of_all(
        found[:, 1:] if found.shape[1] > 1 else found,
        chances[:, 1:],
        config.test.results_per_im,
        config.test.frcnn_nms_thresh,
        config.test.result_score_thresh,
    )
    result = {"boxes": kept, "scores": scores, "labels": categories + 1}
    if config.mode_mask:
        mask_logits = mask_logits_of(features, result["boxes"], result["labels"], config, layers)
        result["masks"] = tf.sigmoid(mask_logits)
    return result


def _features(images: tf.Tensor, sizes: tf.Tensor, config: Config, layers: Layers) -> list[tf.Tensor]:
    """Return P2 .. P6, or C4 alone. The normalised images are exactly 0 beyond their sizes."""
    mean = tf.constant(config.preproc.pixel_mean[::-1], tf.float32)
    inverse = tf.constant([1 / s for s in config.preproc.pixel_std[::-1]], tf.float32)
    rows, columns = (tf.sequence_mask(sizes[:, i], tf.shape(images)[i + 1], layers.dtype) for i in (0, 1))
    x = tf.cast((tf.cast(images, tf.float32) - mean) * inverse, layers.dtype)
    x *= (rows[:, :, None] * columns[:, None])[..., None]
    if not config.mode_fpn:
        return resnet(x, config.backbone, layers, 3)[-1:]
    return pyramid(resnet(x, config.backbone, layers), config.fpn, layers)


def _add_anchor_losses(
    result: dict[str, tf.Tensor],
    features: list[tf.Tensor],
    drawn: list[SampledAnchors],
    batch: Batch,
    config: Config,
    layers: Layers,
) -> None:
    counts = tf.stack([tf.shape(d.index)[0] for d in drawn])
    image, index = tf.repeat(tf.range(len(drawn)), counts), tf.concat([d.index for d in drawn], 0)
    answers = (tf.split(v, counts, num=len(drawn)) for v in rpn_head_at(features, image, index, config, layers))
    for b, (logits, offsets) in enumerate(zip(*answers, strict=True)):
        label_loss, box_loss = rpn_losses(logits, offsets, drawn[b].wanted, config.rpn)
        _add(result, "rpn_label", label_loss * batch.weights[b])
        _add(result, "rpn_box", box_loss * batch.weights[b])


def _add(result: dict[str, tf.Tensor], name: str, value: tf.Tensor) -> None:
    result[name] = result[name] + value if name in result else value

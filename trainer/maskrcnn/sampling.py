"""Sampling of the anchors and proposals that a step learns from, independent of the rank that holds the image."""

import tensorflow as tf

from trainer.maskrcnn.boxes import covered, iou, precise_iou


def draw(candidates: tf.Tensor, limit: tf.Tensor | int, most: int, seed: tf.Tensor) -> tf.Tensor:
    """Draw the indices [K] int32 of `min(limit, candidates)` different candidates, uniformly.

    Args:
        candidates: [N] bool.
        limit: how many at most; `most` is a bound of it that is known when the graph is built.
        seed: [2] int32; equal seeds draw equal indices.
    """
    noise = tf.random.stateless_uniform(tf.shape(candidates), seed)
    ranked = tf.where(candidates, noise, -1.0)
    _, order = tf.math.top_k(ranked, tf.minimum(most, tf.shape(candidates)[0]))
    count = tf.minimum(tf.reduce_sum(tf.cast(candidates, tf.int32)), limit)
    return order[:count]


def label_anchors(
    anchors: tf.Tensor,
    objects: tf.Tensor,
    is_object: tf.Tensor,
    crowds: tf.Tensor,
    size: tf.Tensor,
    *,
    positive: float,
    negative: float,
    crowd_overlap: float,
    tied: bool = True,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return each anchor's label, and the object it is matched with.

    Args:
        anchors: [A, 4]; those that reach outside the image are not used.
        objects: [G, 4] boxes, of which the rows with `is_object` [G] bool count.
        crowds: [C, 4] boxes of crowd regions, padded with rows of zeros.
        size: [2] float32, height and width of the image in pixels.
        positive, negative: thresholds of the intersection over union.
        crowd_overlap: anchors with more than this share inside a crowd region are not used.
        tied: the best anchors of an object are positive below `negative`, too; otherwise labels are tensorpack's.

    Returns:
        labels: [A] int32, 1 object, 0 background, -1 not used; and the matched object [A] int32.
    """
    overlap = iou(anchors, objects) if tied else precise_iou(anchors, objects)  # [A, G]
    overlap *= tf.cast(is_object, tf.float32)
    inside = tf.reduce_all(tf.concat([anchors[:, :2] >= 0, anchors[:, 2:] <= size[::-1]], 1), 1)
    overlap = tf.where(inside[:, None], overlap, -1.0)
    best = tf.reduce_max(overlap, 1)
    best_of_object = tf.reduce_max(overlap, 0)
    in_crowd = tf.reduce_max(covered(anchors, crowds), 1) > crowd_overlap
    if tied:
        is_best = tf.reduce_any((overlap >= best_of_object - 1e-6) & (overlap > 0), 1)  # ties are all best
        in_crowd &= ~is_best & (best < negative)
    else:  # tensorpack: all anchors tie at 0 for an object that none touches
        is_best = tf.reduce_any(tf.equal(overlap, best_of_object) & is_object, 1) & (best >= negative)
    labels = tf.where((best >= positive) | is_best, 1, tf.where(best < negative, 0, -1))
    labels = tf.where(inside & ~in_crowd, labels, -1)
    return labels, tf.argmax(overlap, 1, tf.int32)


def sample_proposals(
    proposals: tf.Tensor,
    objects: tf.Tensor,
    labels: tf.Tensor,
    seed: tf.Tensor,
    *,
    total: int,
    fg_limit: int,
    threshold: float,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sample the regions that the heads learn from: some on objects, the rest background.

    The objects' own boxes are among the candidates.

    Args:
        proposals: [P, 4].
        objects: [G, 4] boxes with class numbers `labels` [G] int32; rows with class 0 are padding.
        seed: [2] int32.

    Returns:
        rois [total, 4], their classes [total] int32 (0 background), the matched object [total] int32,
        is_used [total] bool, and the number of rois on objects (int32, at most fg_limit), which come first.
        Where there are too few proposals the last rows are not used.
    """
    is_object = labels > 0
    boxes = tf.concat([proposals, objects], 0)
    usable = tf.concat([tf.ones([tf.shape(proposals)[0]], tf.bool), is_object], 0)
    own = tf.eye(tf.shape(objects)[0])  # of two equal objects each is on its own box
    overlap = tf.concat([iou(proposals, objects), own], 0) * tf.cast(is_object, tf.float32)
    best, match = tf.reduce_max(overlap, 1), tf.argmax(overlap, 1, tf.int32)
    fg = draw(usable & (best >= threshold), fg_limit, fg_limit, seed)
    num_fg = tf.shape(fg)[0]
    bg = draw(usable & (best < threshold), total - num_fg, total, seed + 1)
    index = tf.concat([fg, bg], 0)
    used = tf.shape(index)[0]
    index = tf.pad(index, [[0, total - used]])
    is_used = tf.range(total) < used
    rois = tf.ensure_shape(tf.gather(boxes, index), [total, 4])
    match = tf.gather(match, index)
    classes = tf.where(tf.range(total) < num_fg, tf.gather(labels, match), 0)
    return rois, classes, match, is_used, num_fg


def match_refined(
    rois: tf.Tensor, objects: tf.Tensor, labels: tf.Tensor, is_used: tf.Tensor, threshold: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return classes and matched objects of boxes that a cascade stage has moved: [N] int32 each. Draws no new sample.

    Source: Cascade R-CNN, arXiv:1712.00726, section 4.2.
    """
    overlap = iou(rois, objects) * tf.cast(labels > 0, tf.float32)
    match = tf.argmax(overlap, 1, tf.int32)
    on_object = (tf.reduce_max(overlap, 1) >= threshold) & is_used
    return tf.where(on_object, tf.gather(labels, match), 0), match

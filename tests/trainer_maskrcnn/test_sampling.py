"""Anchor labels and sampled proposals against loops in NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer_maskrcnn.helpers import REDUCED, ROOT, evaluate, random_boxes
from tests.trainer_maskrcnn.overlaps import one_iou
from trainer.maskrcnn.batch import Batch
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.config_network import RpnConfig
from trainer.maskrcnn.keys import apply_settings
from trainer.maskrcnn.layers import Layers, tf1
from trainer.maskrcnn.roi_heads import Regions, mask_loss_of
from trainer.maskrcnn.rpn import HUBER_DELTA, draw_anchors, rpn_losses
from trainer.maskrcnn.sampling import draw, label_anchors, match_refined, sample_proposals

SEED = np.int32([5, 6])


def labelled(
    anchors: np.ndarray,
    objects: np.ndarray,
    is_object: np.ndarray,
    crowds: np.ndarray,
    size: np.ndarray,
    crowd_overlap: float = 0.5,
    tied: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    found: tuple[np.ndarray, np.ndarray] = evaluate(
        lambda *a: label_anchors(*a, positive=0.7, negative=0.3, crowd_overlap=crowd_overlap, tied=tied),
        anchors,
        objects,
        is_object,
        crowds,
        size,
    )
    return found


def expected_labels(anchors: np.ndarray, objects: np.ndarray, crowds: np.ndarray, size: np.ndarray) -> np.ndarray:
    inside = [(a[:2] >= 0).all() and a[2] <= size[1] and a[3] <= size[0] for a in anchors]
    overlap = np.array([[one_iou(a, o) if ok else -1 for o in objects] for a, ok in zip(anchors, inside, strict=True)])
    labels = np.full(len(anchors), -1)
    for i, a in enumerate(anchors):
        if not inside[i]:
            continue
        best = overlap[i].max() if len(objects) else 0.0
        if best >= 0.7 or any(
            overlap[i, g] > 0 and overlap[i, g] >= overlap[:, g].max() - 1e-6 for g in range(len(objects))
        ):
            labels[i] = 1
        elif best < 0.3:
            share = max((_covered(a, c) for c in crowds), default=0)
            labels[i] = -1 if share > 0.5 else 0
    return labels


def _covered(a: np.ndarray, c: np.ndarray) -> float:
    area = (a[2] - a[0]) * (a[3] - a[1])
    shared = max(min(a[2], c[2]) - max(a[0], c[0]), 0) * max(min(a[3], c[3]) - max(a[1], c[1]), 0)
    return shared / area if area > 0 else 0.0


def test_anchor_labels_are_those_of_the_paper() -> None:
    """Positive from 0.7 or best of an object, negative below 0.3, not used between, outside, or in a crowd."""
    rng = np.random.default_rng(0)
    anchors = random_boxes(rng, 400) + rng.normal(0, 3, (400, 1)).astype(np.float32)
    objects, size = random_boxes(rng, 6)[1:], np.float32([100, 120])
    anchors[:5] = objects + 0.5
    crowds = np.float32([[0, 0, 60, 50], [0, 0, 0, 0]])
    labels, match = labelled(anchors, objects, np.ones(5, bool), crowds, size)
    expected = expected_labels(anchors, objects, crowds, size)

    np.testing.assert_array_equal(labels, expected)
    assert {-1, 0, 1} == set(labels)
    for i in np.flatnonzero(labels == 1):
        assert one_iou(anchors[i], objects[match[i]]) == max(one_iou(anchors[i], o) for o in objects)


def test_every_anchor_that_ties_for_an_objects_best_is_positive() -> None:
    """Also far below the thresholds, as in Detectron2; docs/maskrcnn.md names it as a departure from tensorpack."""
    tied = np.float32([[0, 20, 40, 60], [40, 20, 80, 60], [0, 24, 40, 64]])
    labels, match = labelled(
        tied, np.float32([[36, 30, 44, 50]]), np.ones(1, bool), np.zeros((1, 4), np.float32), np.float32([100, 100])
    )
    assert one_iou(tied[0], np.float32([36, 30, 44, 50])) < 0.3
    assert [1, 1, 1] == labels.tolist()
    assert [0, 0, 0] == match.tolist()
    above = np.float32([[0, 70, 20, 98]])  # best of the second object, between the thresholds
    far_and_near = np.concatenate([tied, above]), np.float32([[36, 30, 44, 50], [0, 70, 20, 86]])
    labels, _ = labelled(
        *far_and_near, np.ones(2, bool), np.zeros((1, 4), np.float32), np.float32([100, 100]), tied=False
    )
    assert 0.3 < one_iou(above[0], far_and_near[1][1]) < 0.7
    assert [0, 0, 0, 1] == labels.tolist()  # as tensorpack
    page = (ROOT / "docs/maskrcnn.md").read_text()
    assert "every anchor inside the image that ties for an object's best is positive" in page


def test_an_image_without_objects_has_only_background() -> None:
    """Padding rows and objects that no anchor touches make nothing positive."""
    anchors = np.float32([[0, 0, 10, 10], [20, 20, 30, 30]])
    labels, _ = labelled(
        anchors, np.zeros((2, 4), np.float32), np.zeros(2, bool), np.zeros((1, 4), np.float32), np.float32([50, 50])
    )
    assert labels.tolist() == [0, 0]
    labels, _ = labelled(
        anchors, np.float32([[40, 40, 45, 45]]), np.ones(1, bool), np.zeros((1, 4), np.float32), np.float32([50, 50])
    )
    assert labels.tolist() == [0, 0]


def test_drawing_takes_different_candidates_uniformly_and_repeats_with_its_seed() -> None:
    candidates = np.arange(40) % 2 == 0

    def drawn(c: tf.Tensor, *seeds: tf.Tensor) -> list[tf.Tensor]:
        return [draw(c, tf.constant(8), 10, s) for s in seeds]

    all_found = evaluate(drawn, candidates, *(np.int32([seed, 0]) for seed in [*range(60), 1]))
    assert all_found[1].tolist() == all_found[60].tolist()
    counts = np.zeros(40)
    for found in all_found[:60]:
        assert len(set(found)) == 8
        counts[found] += 1
    assert (counts[1::2] == 0).all()
    assert counts[::2].min() >= 8  # 24 expected of each; 5 standard deviations are 19
    assert counts[::2].max() <= 43


def test_proposals_are_objects_then_background_then_padding() -> None:
    rng = np.random.default_rng(4)
    objects, labels = random_boxes(rng, 5)[1:4], np.int32([3, 7, 0])
    proposals = np.concatenate([random_boxes(rng, 40), objects[:1] + 1, objects[1:2] - 1]).astype(np.float32)
    rois, classes, match, is_used, num_fg = evaluate(
        lambda p, o, c, s: sample_proposals(p, o, c, s, total=64, fg_limit=16, threshold=0.5),
        proposals,
        objects,
        labels,
        SEED,
    )
    overlaps = np.array([[one_iou(r, o) for o in objects[:2]] for r in rois])

    assert is_used.sum() == 42 + 2  # the third object is padding
    assert num_fg == sum(max(one_iou(p, o) for o in objects[:2]) >= 0.5 for p in [*proposals, *objects[:2]])
    assert (overlaps[:num_fg].max(1) >= 0.5).all()
    assert (overlaps[num_fg:44].max(1) < 0.5).all()
    assert classes[:num_fg].tolist() == [labels[i] for i in overlaps[:num_fg].argmax(1)]
    assert match[:num_fg].tolist() == overlaps[:num_fg].argmax(1).tolist()
    assert not classes[num_fg:].any()


def test_no_more_objects_than_their_share_and_none_on_an_empty_image() -> None:
    box = np.float32([[10, 10, 50, 50]])
    many = np.concatenate([box + d for d in np.linspace(0, 3, 30)] + [box + 60] * 30).astype(np.float32)
    _, classes, _, is_used, num_fg = evaluate(
        lambda p, o, c, s: sample_proposals(p, o, c, s, total=20, fg_limit=5, threshold=0.5),
        many,
        box,
        np.int32([2]),
        SEED,
    )
    assert num_fg == 5
    assert (classes > 0).sum() == 5
    assert is_used.sum() == 20
    _, classes, _, is_used, num_fg = evaluate(
        lambda p, o, c, s: sample_proposals(p, o, c, s, total=20, fg_limit=5, threshold=0.5),
        many,
        np.zeros((1, 4), np.float32),
        np.int32([0]),
        SEED,
    )
    assert num_fg == 0
    assert not classes.any()
    assert is_used.sum() == 20


def test_a_cascade_stage_keeps_what_still_overlaps_enough() -> None:
    objects = np.float32([[0, 0, 10, 10], [50, 50, 60, 60]])
    rois = np.float32([[0, 0, 10, 10], [0, 0, 10, 8], [50, 50, 60, 53], [0, 0, 10, 10]])
    classes, match = evaluate(
        lambda r, o, c, u: match_refined(r, o, c, u, 0.75),
        rois,
        objects,
        np.int32([4, 9]),
        np.array([True, True, True, False]),
    )
    assert classes.tolist() == [4, 4, 0, 0]
    assert match[:3].tolist() == [0, 0, 1]
    with_padding = np.float32([[0, 0, 10, 10], [0, 0, 10, 7.5], [0, 0, 10, 7]])
    classes, match = evaluate(
        lambda r, o, c, u: match_refined(r, o, c, u, 0.75),
        rois[:1],
        with_padding,
        np.int32([0, 9, 3]),
        np.ones(1, bool),
    )
    assert ([9], [1]) == (classes.tolist(), match.tolist())  # at the threshold is enough


def test_a_proposal_at_the_threshold_is_on_its_object_and_nothing_else() -> None:
    """It is drawn once, beside the object itself."""
    rois, classes, _, is_used, num_fg = evaluate(
        lambda p, o, c, s: sample_proposals(p, o, c, s, total=8, fg_limit=4, threshold=0.5),
        np.float32([[0, 0, 10, 5], [50, 50, 60, 60]]),
        np.float32([[0, 0, 10, 10]]),
        np.int32([2]),
        SEED,
    )
    assert (2, 3, [2, 2, 0]) == (num_fg, is_used.sum(), classes[:3].tolist())
    assert [[0, 0, 10, 5], [0, 0, 10, 10]] == sorted(rois[:2].tolist())


def test_an_image_s_weight_is_shared_by_its_used_regions() -> None:
    """Of two images with three and no regions used, the first of half a weight."""
    is_used = tf.constant([[True, True, True, False], [False] * 4])
    nothing = tf.zeros([2, 4], tf.int32)
    regions = Regions(rois=tf.zeros([2, 4, 4]), classes=nothing, match=nothing, is_used=is_used)

    weights = regions.weights(tf.constant([0.75, 1.0])).numpy()
    np.testing.assert_allclose(weights, [0.25, 0.25, 0.25, 0, 0, 0, 0, 0])


def losses_of_anchors(
    logits: tf.Tensor, offsets: tf.Tensor, *given: tf.Tensor, config: RpnConfig
) -> tuple[tf.Tensor, tf.Tensor]:
    """Of one image, from what the head says of all its anchors."""
    drawn = draw_anchors(*given, config=config)
    return rpn_losses(tf.gather(logits, drawn.index), tf.gather(offsets, drawn.index), drawn.wanted, config)


def test_the_losses_of_anchors_are_numpys() -> None:
    """Objectness of all that are drawn, offsets of those on an object alone; both over BATCH_PER_IM."""
    anchors = np.float32([[10, 10, 50, 50], [60, 60, 70, 70], [12, 12, 48, 48], [0, 80, 9, 90], [80, 0, 90, 9]])
    objects = np.float32([[10, 10, 50, 50], [0, 0, 0, 0]])
    rng = np.random.default_rng(5)
    logits, offsets = rng.normal(size=5).astype("f"), (rng.normal(size=(5, 4)) / 8).astype("f")
    config = replace(Config().rpn, batch_per_im=8, fg_ratio=0.5)

    label, box = evaluate(
        lambda *given: losses_of_anchors(*given, config=config),
        *(logits, offsets, anchors, objects, np.int32([3, 0]), np.zeros((1, 4), "f"), np.float32([100, 100]), SEED),
    )
    is_object = np.float32([1, 0, 1, 0, 0])
    assert label == pytest.approx((np.log1p(np.exp(logits)) - is_object * logits).sum() / 8, rel=1e-5)
    error = np.abs(offsets[[0, 2]] - np.float32([[0, 0, 0, 0], [0, 0, np.log(40 / 36), np.log(40 / 36)]]))
    each = np.where(error < HUBER_DELTA, error**2 / (2 * HUBER_DELTA), error - HUBER_DELTA / 2)
    assert box == pytest.approx(each.sum() / 8, rel=1e-5)


def test_no_more_anchors_are_drawn_than_there_is_room_for() -> None:
    """Of equal logits each costs the same: the share of objects at most, and background up to the whole number."""
    spots = np.arange(0, 200, 20, dtype=np.float32)
    anchors = np.stack([spots, spots, spots + 10, spots + 10], 1)
    objects, labels = anchors[:5], np.int32([1, 1, 1, 1, 1])
    nothing, size = np.zeros((1, 4), "f"), np.float32([300, 300])
    for total, share, drawn in ((8, 0.25, 2 + 5), (4, 0.5, 4), (4, 0.0, 4), (100, 0.5, 10)):
        config = replace(Config().rpn, batch_per_im=total, fg_ratio=share)
        logits, offsets = np.zeros(10, "f"), np.zeros((10, 4), "f")
        given = (logits, offsets, anchors, objects, labels, nothing, size, SEED)
        label, _ = evaluate(lambda *g, c=config: losses_of_anchors(*g, config=c), *given)
        assert label * total == pytest.approx(drawn * np.log(2), rel=1e-5), (total, share)


def test_the_mask_loss_is_that_of_the_regions_on_objects() -> None:
    """What comes after them in an image has no part in it; each image has its weight, and nothing costs nothing."""
    config = apply_settings(Config(), [*REDUCED, "DATA.NUM_CATEGORY=3"])
    rng = np.random.default_rng(6)
    rois, other = (np.stack([random_boxes(rng, 5, 60, 60)[1:] for _ in range(2)]) for _ in range(2))
    other[0, :2], other[1, :3] = rois[0, :2], rois[1, :3]
    features = [rng.normal(size=(2, n, n, config.fpn.num_channel)).astype("f") for n in (16, 8, 4, 2)]
    given = [("masks", rng.integers(0, 2, (2, 3, 64, 64)).astype(np.uint8)), ("weights", np.float32([0.75, 0.25]))]
    constant = dict(given) | {"images": np.zeros((2, 64, 64, 3), np.uint8), "mask_map": np.float32([[1, 1, 0, 0]] * 2)}
    batch = Batch(**{name: tf.zeros([]) for name, *_ in Batch.SIGNATURE})
    match, classes = np.int32([[0, 1, 2, 0], [2, 1, 0, 1]]), np.int32([[1, 3, 0, 0], [2, 2, 1, 0]])

    def losses(*levels: tf.Tensor) -> list[tf.Tensor]:
        own = replace(batch, **{name: tf.constant(array) for name, array in constant.items()})
        pyramid = [tf.ensure_shape(f, [2, None, None, config.fpn.num_channel]) for f in levels]

        def loss(rois: np.ndarray, num_fg: list[int], batch: Batch = own) -> tf.Tensor:
            regions = Regions(tf.constant(rois), tf.constant(classes), tf.constant(match), tf.ones([2, 4], tf.bool))
            with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
                return mask_loss_of(
                    pyramid, None, regions, tf.constant(num_fg), batch, config, Layers(training=True, region_step=4)
                )

        apart = [loss(rois, [2, 3], replace(own, weights=tf.constant(w))) for w in ([0.75, 0.0], [0.0, 0.25])]
        return [loss(rois, [2, 3]), loss(other, [2, 3]), *apart, loss(rois, [0, 0])]

    whole, padded, first, second, none = evaluate(losses, *features)
    assert whole == pytest.approx(padded, rel=1e-5)
    assert whole == pytest.approx(first + second, rel=1e-5)
    assert [first, second] == pytest.approx([0.75 * np.log(2), 0.25 * np.log(2)], rel=0.05)  # of weights near zero
    assert 0 == none

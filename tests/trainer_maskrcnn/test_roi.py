"""RoIAlign and mask targets against loops over samples in NumPy."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import PATIENCE_S
from tests.trainer_maskrcnn.helpers import ROOT, evaluate, random_boxes
from trainer.coco import masks as coco_masks
from trainer.coco.annotations import read_set
from trainer.maskrcnn.boxes import clip
from trainer.maskrcnn.heads import mask_targets
from trainer.maskrcnn.roi import levels, pyramid_roi_align, roi_align


def bilinear(feature: np.ndarray, y: float, x: float) -> np.ndarray:
    """The value at (y, x), counted from the first cell's centre; outside, the nearest edge."""
    height, width = feature.shape[:2]
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    y0, x0 = min(int(y), height - 2), min(int(x), width - 2)
    dy, dx = y - y0, x - x0
    return (
        feature[y0, x0] * (1 - dy) * (1 - dx)
        + feature[y0, x0 + 1] * (1 - dy) * dx
        + feature[y0 + 1, x0] * dy * (1 - dx)
        + feature[y0 + 1, x0 + 1] * dy * dx
    )


def align(feature: np.ndarray, box: np.ndarray, stride: int, bins: int) -> np.ndarray:
    x1, y1, x2, y2 = box / stride
    out = np.zeros((bins, bins, feature.shape[2]))
    for i in range(bins):
        for j in range(bins):
            for a in (0.25, 0.75):
                for b in (0.25, 0.75):
                    y, x = y1 + (i + a) * (y2 - y1) / bins - 0.5, x1 + (j + b) * (x2 - x1) / bins - 0.5
                    out[i, j] += bilinear(feature, y, x) / 4
    return out


def pool(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor, boxes: tf.Tensor) -> tf.Tensor:
    return pyramid_roi_align([a, b, c, d], boxes, tf.zeros_like(boxes[:, 0], tf.int32), (4, 8, 16, 32), 7)


@pytest.mark.parametrize("bins", [7, 14])
def test_roi_align_is_the_mean_of_four_samples_per_cell(bins: int) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(2, 10, 12, 3)).astype(np.float32)
    found_on = random_boxes(rng, 16, 80, 96)
    found_on[0] = 0, 0, 96, 80
    image = rng.integers(0, 2, 16).astype(np.int32)
    expected = np.stack([align(features[i], box, 8, bins) for box, i in zip(found_on, image, strict=True)])

    np.testing.assert_allclose(
        evaluate(lambda f, b, i: roi_align(f, b, i, 8, bins), features, found_on, image), expected, atol=1e-4
    )


def test_each_box_is_read_from_its_own_level_in_the_given_order() -> None:
    rng = np.random.default_rng(2)
    maps = [rng.normal(size=(1, 512 // s, 512 // s, 2)).astype(np.float32) for s in (4, 8, 16, 32)]
    sides = np.array([500, 20, 120, 230, 64, 449, 448, 112, 111, 1], np.float32)
    found_on = np.stack([np.zeros(10), np.zeros(10), sides, sides], 1).astype(np.float32)
    level = np.clip(np.floor(4 + np.log2(sides / 224 + 1e-6)), 2, 5).astype(int) - 2

    assert evaluate(levels, found_on).tolist() == level.tolist()
    pooled = evaluate(pool, *maps, found_on)
    expected = [align(maps[k][0], box, (4, 8, 16, 32)[k], 7) for k, box in zip(level, found_on, strict=True)]
    np.testing.assert_allclose(pooled, expected, atol=1e-4)


def gradient(features: tf.Tensor, boxes: tf.Tensor, image: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Of the sum of all cells, each weighted, to the features."""
    return tf.gradients(tf.reduce_sum(roi_align(features, boxes, image, 1, 3) * weights), features)[0]


def test_the_gradient_of_roi_align_is_the_transpose_of_taking_samples() -> None:
    """For boxes on two images, also with samples outside of them, mirrored ones and ones without a side."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(2, 9, 11, 1)).astype(np.float32)
    boxes = np.concatenate([random_boxes(rng, 12, 9, 11), np.float32([[-3, -2, 14, 12], [8, 7, 2, 1], [0, 0, 11, 9]])])
    image = rng.integers(0, 2, len(boxes)).astype(np.int32)
    weights = rng.normal(size=(len(boxes), 3, 3, 1)).astype(np.float32)
    ones = np.eye(2 * 9 * 11).reshape(2, 9, 11, -1)  # each pixel is a channel of its own
    taken = np.stack([align(ones[i], box, 1, 3) for box, i in zip(boxes, image, strict=True)])

    found = evaluate(gradient, features, boxes, image, weights)

    expected = np.einsum("nijc,nij->c", taken, weights[..., 0]).reshape(features.shape)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(expected).max() > 1


@pytest.mark.parametrize("bins", [7, 14])
def test_a_gpu_takes_samples_and_their_mean(bins: int) -> None:
    """Which is what is made where there is one; the same numbers for boxes inside the image, and gradients.

    In a process of its own, whose first session has one thread: on a processor threads race in the samples' gradient.
    """
    code = f"from tests.trainer_maskrcnn.test_roi import compare_samples; compare_samples({bins})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def compare_samples(bins: int) -> None:
    """Raise AssertionError if cells by products and cells by samples differ, or their gradients."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(2, 9, 12, 3)).astype(np.float32)
    boxes = np.concatenate([random_boxes(rng, 12, 72, 96), np.float32([[0, 0, 96, 72]])])
    given = features, boxes, rng.integers(0, 2, 13).astype(np.int32)

    def both(features: tf.Tensor, boxes: tf.Tensor, image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        cells = roi_align(features, boxes, image, 8, bins)
        return cells, tf.gradients(cells * cells, features)[0]

    product = evaluate(both, *given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.config, "get_visible_devices", lambda kind: [f"a {kind}"])
        sampled = evaluate(both, *given)

    for a, b in zip(product, sampled, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())


def test_no_thread_loses_what_another_adds_to_the_same_pixel() -> None:
    """In a process of its own, as the first session of one says how many threads all have."""
    code = """
        import numpy as np
        import tensorflow as tf
        from trainer.maskrcnn.roi import roi_align
        v1 = tf.compat.v1
        with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(intra_op_parallelism_threads=4)) as session:
            images = v1.placeholder(tf.float32, [None, None, None, 64])
            boxes = tf.tile([[4.0, 4.0, 12.0, 12.0]], [256, 1])
            cells = roi_align(images, boxes, tf.zeros([256], tf.int32), 1, 4)
            added = tf.gradients(cells, images)[0]
            for _ in range(10):
                found = session.run(added, {images: np.zeros((1, 16, 16, 64), np.float32)})
                print(np.abs(found[0, 4:12, 4:12] - 64).max() < 0.01, np.abs(found).sum() / (256 * 4 * 4 * 64))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [("True", 1.0)] * 10 == [(near, round(float(part), 4)) for near, part in lines], done.stderr[-2000:]


def test_no_box_is_no_output() -> None:
    maps = [np.ones((1, 64 // s, 64 // s, 2), np.float32) for s in (4, 8, 16, 32)]
    pooled = evaluate(pool, *maps, np.zeros((0, 4), np.float32))
    assert pooled.shape == (0, 7, 7, 2)


def test_boxes_that_are_no_number_are_read_at_the_corner() -> None:
    """A cascade's second stage gets such from weights that have diverged: the loss has to say so, not an operation."""
    maps = [np.ones((1, 64 // s, 64 // s, 2), np.float32) for s in (4, 8, 16, 32)]
    found_on = np.float32([[1, 2, 30, 40], [np.nan] * 4, [5, np.nan, np.inf, 60], [-np.inf, 0, 64, np.nan]])
    pooled = evaluate(
        lambda a, b, c, d, found: pool(a, b, c, d, clip(found, tf.constant([64.0, 64.0]))), *maps, found_on
    )

    assert (4, 7, 7, 2) == pooled.shape and np.isfinite(pooled).all()


def test_mask_targets_are_the_objects_cells(coco_mini: Path) -> None:
    """On real polygons: each of 28 x 28 cells is 1 where the mask, read at the cell's centre, is at least one half; softly, what it reads."""
    picture = read_set(coco_mini, "train2017").pictures[0]
    masks = np.stack([coco_masks.decode(o.segmentation, picture.height, picture.width) for o in picture.objects])
    rng = np.random.default_rng(3)
    rois = np.array([o.box for o in picture.objects] * 3, np.float32) + rng.normal(0, 8, (3 * len(masks), 4))
    rois = np.clip(rois, 0, [picture.width, picture.height] * 2).astype(np.float32)
    match = np.tile(np.arange(len(masks)), 3).astype(np.int32)
    columns = masks.transpose(0, 2, 1)
    found = evaluate(mask_targets, columns, rois, match)
    soft = evaluate(lambda *a: mask_targets(*a, soft=True), columns, rois, match)
    mirrored = rois * [-1, 1, -1, 1] + [picture.width, 0, picture.width, 0]
    np.testing.assert_array_equal(evaluate(mask_targets, columns[:, ::-1], mirrored.astype(np.float32), match), found)
    for target, fraction, (x1, y1, x2, y2), m in zip(found, soft, rois, match, strict=True):
        values = np.array(
            [
                [
                    bilinear(
                        masks[m].astype(float)[..., None],
                        y1 + (i + 0.5) * (y2 - y1) / 28 - 0.5,
                        x1 + (j + 0.5) * (x2 - x1) / 28 - 0.5,
                    )[0]
                    for j in range(28)
                ]
                for i in range(28)
            ]
        )
        sure = np.abs(values - 0.5) > 1e-3
        np.testing.assert_array_equal(target[sure], (values >= 0.5)[sure])
        np.testing.assert_allclose(fraction, values, atol=1e-3)
    assert set(np.unique(found)) == {0, 1}


@pytest.mark.parametrize("box", [[2, 2, 18, 18], [0, 0, 20, 20], [20, 0, 0, 20], [0, 5, 4, 20], [19.5, 19.5, 20, 20]])
def test_a_whole_mask_fills_every_box_inside_it(box: list[float]) -> None:
    """To the borders of the image, mirrored and not: an object that fills its image has no cell of 0."""
    found = evaluate(mask_targets, np.ones((1, 20, 20), np.uint8), np.float32([box]), np.int32([0]))
    assert found.min() == 1


def test_a_mask_ends_with_its_image() -> None:
    """What lies more than half a pixel outside is no object."""
    (found,) = evaluate(mask_targets, np.ones((1, 20, 20), np.uint8), np.float32([[0, 0, 40, 20]]), np.int32([0]))
    assert found[:, :14].all() and not found[:, 15:].any()


def test_tensorpacks_masks_are_empty_beyond_their_outermost_pixels() -> None:
    """Its 20 x 20 object that fills its image has 108 cells of 0, all at the border: MRCNN.RESIZED_MASKS has them, too."""
    whole = np.ones((1, 20, 20), np.uint8)
    (found,) = evaluate(
        lambda *a: mask_targets(*a, soft=True, edged=False), whole, np.float32([[0, 0, 20, 20]]), np.int32([0])
    )
    assert 108 == (found == 0).sum()
    assert found[1:-1, 1:-1].all()

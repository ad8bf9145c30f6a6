"""Box arithmetic against loops in NumPy, on random and degenerate boxes."""

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer_maskrcnn.helpers import evaluate, random_boxes
from tests.trainer_maskrcnn.overlaps import one_iou
from trainer.maskrcnn import boxes
from trainer.maskrcnn.config_network import GROWTH


def greedy(found: np.ndarray, scores: np.ndarray, limit: int, threshold: float) -> list[int]:
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        if len(kept) < limit and all(one_iou(found[i], found[k]) <= threshold for k in kept):
            kept.append(int(i))
    return kept


@pytest.mark.parametrize(("n", "m"), [(40, 25), (1, 1), (0, 3), (3, 0)])
def test_iou_is_the_shared_area_over_the_joint_area(n: int, m: int) -> None:
    rng = np.random.default_rng(n)
    a, b = random_boxes(rng, n), random_boxes(rng, m)
    expected = np.array([[one_iou(x, y) for y in b] for x in a]).reshape(n, m)

    np.testing.assert_allclose(evaluate(boxes.iou, a, b), expected, atol=1e-5)


def test_covered_is_the_share_of_the_first_box() -> None:
    a = np.float32([[0, 0, 10, 10], [5, 5, 5, 9]])
    b = np.float32([[0, 0, 10, 5], [-5, -5, 50, 50], [0, 0, 0, 0]])

    np.testing.assert_allclose(evaluate(boxes.covered, a, b), [[0.5, 1, 0], [0, 0, 0]])


def test_decoding_undoes_encoding() -> None:
    rng = np.random.default_rng(1)
    wanted, anchors = random_boxes(rng, 50), random_boxes(rng, 50)
    wanted[:, 2:] = np.maximum(wanted[:, 2:], wanted[:, :2] + 2)
    anchors[:, 2:] = np.maximum(anchors[:, 2:], anchors[:, :2] + 2)
    weights = (10.0, 10.0, 5.0, 5.0)
    offsets = evaluate(lambda b, a: boxes.encode(b, a, weights), wanted, anchors)
    w, h = anchors[:, 2] - anchors[:, 0], anchors[:, 3] - anchors[:, 1]
    expected_x = 10 * ((wanted[:, 0] + wanted[:, 2]) - (anchors[:, 0] + anchors[:, 2])) / 2 / w
    expected_h = 5 * np.log((wanted[:, 3] - wanted[:, 1]) / h)

    np.testing.assert_allclose(offsets[:, 0], expected_x, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(offsets[:, 3], expected_h, rtol=1e-3, atol=1e-3)
    fits = (offsets[:, 2:] / 5 < np.log(GROWTH)).all(1)
    assert fits.sum() > 30
    decoded = evaluate(lambda o, a: boxes.decode(o, a, weights), offsets, anchors)
    np.testing.assert_allclose(decoded[fits], wanted[fits], atol=0.02)


def test_boxes_without_area_and_wild_offsets_stay_finite() -> None:
    flat = np.float32([[5, 5, 5, 5], [1, 1, 9, 1]])
    assert np.isfinite(evaluate(lambda b: boxes.encode(b, b), flat)).all()
    assert np.isfinite(evaluate(lambda b: boxes.encode(b, tf.reverse(b, [0])), flat)).all()
    assert np.isfinite(evaluate(boxes.decode, np.full((2, 4), 1e4, np.float32), flat)).all()


def test_clip_moves_every_corner_inside() -> None:
    found = evaluate(boxes.clip, np.float32([[-5, -5, 200, 50], [130, 20, 140, 30]]), np.float32([40, 120]))
    np.testing.assert_array_equal(found, [[0, 0, 120, 40], [120, 20, 120, 30]])


@pytest.mark.parametrize(
    ("count", "limit", "threshold"), [(60, 100, 0.5), (60, 10, 0.5), (60, 100, 0.0), (1, 5, 0.7), (0, 5, 0.7)]
)
def test_nms_is_greedy_suppression(count: int, limit: int, threshold: float) -> None:
    rng = np.random.default_rng(count + limit)
    found, scores = random_boxes(rng, count, 60, 60), rng.permutation(count).astype(np.float32)

    kept = evaluate(lambda b, s: boxes.nms(b, s, limit, threshold), found, scores)
    assert kept.tolist() == greedy(found, scores, limit, threshold)


def test_anchors_lie_on_the_cells_in_the_order_of_the_head() -> None:
    """Row by row, then column, then ratio (height over width); centres at half the stride."""
    found = evaluate(lambda: boxes.anchors(tf.constant(2), tf.constant(3), 16, (32,), (0.5, 1.0, 2.0))).reshape(
        2, 3, 3, 4
    )

    centers = np.stack(np.meshgrid([8, 24, 40], [8, 24]), -1)[:, :, None]
    np.testing.assert_allclose((found[..., :2] + found[..., 2:]) / 2, np.broadcast_to(centers, (2, 3, 3, 2)))
    size = found[0, 0, :, 2:] - found[0, 0, :, :2]
    np.testing.assert_allclose(size[:, 0] * size[:, 1], 32 * 32, rtol=1e-5)
    np.testing.assert_allclose(size[:, 1] / size[:, 0], [0.5, 1, 2], rtol=1e-5)


@pytest.mark.parametrize(("agnostic", "values"), [(False, 1), (False, 4), (True, 2), (True, 10**6)])
def test_the_best_of_all_categories_are_in_one_order_where_scores_tie(agnostic: bool, values: int) -> None:
    """Of equal scores the first category's box comes first, and of one category's the first box."""
    rng = np.random.default_rng(values)
    num_boxes, categories, limit = 60, 3, 40
    grid = rng.integers(0, 50, (num_boxes, 1 if agnostic else categories, 2))
    found = np.concatenate([grid, grid + rng.integers(5, 30, grid.shape)], 2).astype(np.float32)
    scores = (rng.integers(0, values + 1, (num_boxes, categories)) / values).astype(np.float32)
    expected = []
    for c in range(categories):
        own, of_own = found[:, 0 if agnostic else c], scores[:, c]
        counting = np.flatnonzero(of_own > 0.05)
        expected += [
            (own[counting[k]], of_own[counting[k]], c) for k in greedy(own[counting], of_own[counting], limit, 0.5)
        ]
    expected = sorted(expected, key=lambda e: -float(e[1]))[:limit]

    kept, best, labels = evaluate(lambda b, s: boxes.best_of_all(b, s, limit, 0.5, 0.05), found, scores)
    np.testing.assert_array_equal(kept, [e[0] for e in expected])
    np.testing.assert_array_equal(best, [e[1] for e in expected])
    np.testing.assert_array_equal(labels, [e[2] for e in expected])


def test_there_may_be_no_best() -> None:
    """No score is above the threshold, or there is no box."""
    for n in (0, 5):
        kept, best, labels = evaluate(
            lambda b, s: boxes.best_of_all(b, s, 10, 0.5, 0.05),
            np.ones((n, 2, 4), np.float32),
            np.zeros((n, 2), np.float32),
        )
        assert [(0, 4), (0,), (0,)] == [v.shape for v in (kept, best, labels)]

"""Layers against plain NumPy or TensorFlow's own operations."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer_maskrcnn.helpers import ROOT, environment, evaluate
from trainer.maskrcnn.backbone import _twice
from trainer.maskrcnn.detector import session_config
from trainer.maskrcnn.heads import box_losses
from trainer.maskrcnn.layers import EPSILON, Layers, group_norm, tf1


def test_group_norm_and_its_gradient_are_those_of_the_definition() -> None:
    """Against TensorFlow's moments and automatic gradient, in float64-like tolerance."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(2, 5, 7, 24)) * 3 + 1).astype(np.float32)
    gamma, beta, weight = rng.normal(size=24).astype("f"), rng.normal(size=24).astype("f"), rng.normal(size=x.shape)

    def plain(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
        grouped = tf.reshape(x, [2, 5, 7, 8, 3])
        mean, variance = tf.nn.moments(grouped, [1, 2, 4], keepdims=True)
        return tf.reshape((grouped - mean) / tf.sqrt(variance + EPSILON), [2, 5, 7, 24]) * gamma + beta

    def both(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, weight: tf.Tensor) -> list[Any]:
        x, gamma, beta = tf.ensure_shape(x, [None, None, None, 24]), tf.ensure_shape(gamma, [24]), beta
        out = []
        for f in (lambda *a: group_norm(a[0], a[1], a[2], 8), plain):
            y = f(x, gamma, beta)
            out.append([y, *tf.gradients(y * weight, [x, gamma, beta])])
        return out

    ours, theirs = evaluate(both, x, gamma, beta, weight.astype("f"))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def test_a_map_twice_the_size_has_every_cell_four_times_and_their_gradients_summed() -> None:
    """Against TensorFlow's own way to say it."""
    rng = np.random.default_rng(1)
    x, weight = rng.normal(size=(2, 3, 5, 4)).astype("f"), rng.normal(size=(2, 6, 10, 4)).astype("f")

    def both(x: tf.Tensor, weight: tf.Tensor) -> list[list[tf.Tensor]]:
        x = tf.ensure_shape(x, [None, None, None, 4])
        ways = _twice(x), tf.repeat(tf.repeat(x, 2, 1), 2, 2)
        return [[y, tf.gradients(y * weight, x)[0]] for y in ways]

    ours, theirs = evaluate(both, x, weight)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_deconv_is_the_transposed_convolution() -> None:
    x = np.random.default_rng(1).normal(size=(3, 4, 5, 6)).astype(np.float32)

    def both(x: tf.Tensor) -> list[tf.Tensor]:
        x = tf.ensure_shape(x, [3, 4, 5, 6])
        ours = Layers(training=True).deconv("up", x, 8)
        w = next(v for v in tf1.global_variables() if v.op.name == "up/W")
        assert w.shape == (2, 2, 8, 6)
        return [ours, tf.nn.relu(tf.nn.conv2d_transpose(x, w, [3, 8, 10, 8], 2))]

    ours, theirs = evaluate(both, x)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_frozen_batch_norm_uses_the_stored_statistics_only() -> None:
    x = np.random.default_rng(2).normal(size=(2, 4, 4, 3)).astype(np.float32)

    def both(x: tf.Tensor) -> list[tf.Tensor]:
        x = tf.ensure_shape(x, [2, 4, 4, 3])
        with tf1.variable_scope("", initializer=None):
            ours = Layers(training=True, norm="FreezeBN").conv_norm("c", x, 5, 3, relu=False)
        v = {v.op.name: v for v in tf1.global_variables()}
        set_all = [
            v["c/bn/" + name].assign(np.float32(values))
            for name, values in (
                ("gamma", [1, 2, 3, 4, 5]),
                ("beta", [5, 4, 3, 2, 1]),
                ("mean/EMA", [0.1, 0.2, 0.3, 0.4, 0.5]),
                ("variance/EMA", [1, 2, 3, 4, 5]),
            )
        ]
        with tf.control_dependencies(set_all):
            y = tf.nn.conv2d(x, v["c/W"].read_value(), 1, "SAME")
            scale = v["c/bn/gamma"].read_value() / tf.sqrt(v["c/bn/variance/EMA"].read_value() + EPSILON)
            wanted = (y - v["c/bn/mean/EMA"].read_value()) * scale + v["c/bn/beta"].read_value()
        assert [v.op.name for v in tf1.trainable_variables()] == ["c/W", "c/bn/gamma", "c/bn/beta"]
        return [ours, wanted, *set_all]

    with tf.Graph().as_default(), tf1.Session() as session:
        holder = tf1.placeholder(tf.float32, x.shape)
        ours, wanted, *set_all = both(holder)
        session.run(tf1.global_variables_initializer())
        session.run(set_all)
        np.testing.assert_allclose(session.run(ours, {holder: x}), session.run(wanted, {holder: x}), atol=1e-4)


@pytest.mark.parametrize("deviation", [2, 0.2])
def test_synchronised_batch_norm_normalises_and_remembers(deviation: float) -> None:
    """Mean and variance, a tenth of each; what they are outside of training is what was remembered."""
    x = (np.random.default_rng(3).normal(size=(4, 6, 6, 3)) * deviation + 5).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        holder = tf1.placeholder(tf.float32, x.shape)
        y = Layers(training=True, norm="SyncBN")._sync_bn(holder)
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        moving, squares = (
            next(v for v in tf1.global_variables() if v.op.name == f"bn/{name}/EMA") for name in ("mean", "variance")
        )
        with tf1.variable_scope("", reuse=True):
            judged = Layers(training=False, norm="SyncBN")._sync_bn(holder)
        session.run(tf1.global_variables_initializer())
        normal, *_ = session.run([y, *updates], {holder: x})

        np.testing.assert_allclose(normal.mean((0, 1, 2)), 0, atol=1e-3)
        np.testing.assert_allclose(normal.std((0, 1, 2)), 1, atol=1e-3)
        mean, variance = 0.1 * x.mean((0, 1, 2)), 0.9 + 0.1 * x.var((0, 1, 2))
        np.testing.assert_allclose(session.run(moving), mean, rtol=1e-4)
        np.testing.assert_allclose(session.run(squares), variance, rtol=1e-3)
        wanted = (x - mean) / np.sqrt(variance + EPSILON)
        np.testing.assert_allclose(session.run(judged, {holder: x}), wanted, rtol=1e-3)


@pytest.mark.parametrize("kind", ["huber", "l1"])
def test_box_losses_are_numpys(kind: str) -> None:
    """Of the class that a region has, none for background, times the regions' weights."""
    rng = np.random.default_rng(0)
    logits, offsets = rng.normal(size=(5, 3)).astype("f"), rng.normal(size=(5, 3, 4)).astype("f") * 2
    wanted, weights = rng.normal(size=(5, 4)).astype("f"), rng.uniform(size=5).astype("f")
    classes = np.int32([0, 1, 2, 2, 0])

    def losses(
        logits: tf.Tensor, offsets: tf.Tensor, wanted: tf.Tensor, classes: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        return box_losses(logits, tf.ensure_shape(offsets, [None, 3, 4]), wanted, classes, weights, kind)

    error = np.abs(offsets[np.arange(5), classes] - wanted)
    each = np.where(error < 1, error**2 / 2, error - 0.5) if kind == "huber" else error
    label, box = evaluate(losses, logits, offsets, wanted, classes, weights)
    assert box == pytest.approx((each.sum(1) * weights * (classes > 0)).sum(), rel=1e-5)
    entropy = np.log(np.exp(logits).sum(1)) - logits[np.arange(5), classes]
    assert label == pytest.approx((entropy * weights).sum(), rel=1e-5)


SESSIONS = """
import os
import numpy as np
import tensorflow as tf
from trainer.maskrcnn.detector import session_config
from trainer.common.ranks.tf_notices import aside as config_aside

def ticks():
    return {t: int(open(f"/proc/self/task/{t}/stat").read().rpartition(")")[2].split()[11]) for t in os.listdir("/proc/self/task")}

tf1 = tf.compat.v1
tf1.disable_eager_execution()
aside = tf1.Session(config=config_aside(1))
with tf1.Session(config=session_config(1)) as session:
    x = tf1.placeholder(tf.float32, [None, None])
    product = tf.reduce_sum(tf.matmul(x, x))
    before = ticks()
    for _ in range(4):
        session.run(product, {x: np.ones((2500, 2500), np.float32)})
    print(*sorted(n - before.get(t, 0) for t, n in ticks().items()))
"""


def test_what_wants_a_gpu_that_is_not_there_runs_all_the_same() -> None:
    with tf.Graph().as_default(), tf.device("/GPU:31"), tf1.Session(config=session_config(1)) as session:
        assert 3.0 == session.run(tf.constant(1.0) + tf1.placeholder_with_default(2.0, []))


def test_a_session_aside_leaves_the_training_its_own_number_of_threads() -> None:
    """The first session of a process sizes the pool of all; with one thread asked for, one computes a product."""
    done = subprocess.run(
        [sys.executable, "-c", SESSIONS], env=environment(None), cwd=ROOT, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *others, busiest = map(int, done.stdout.split())
    assert busiest > 10 > sum(others)

"""The arithmetic of a step against independent computations: NumPy's, or a tf.keras model with the same weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainer.common.ranks import gradients, precision
from trainer.common.ranks.horovod_rank import Ranks
from trainer.resnet50 import augment, horovod, optimizer
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.model import BatchNorm
from trainer.resnet50.network import BN_EPSILON, Init, Pixels
from trainer.resnet50.step import TensorFlowLearner

CLASSES = 5


def learner(**flags: Any) -> Any:
    """A small network on 32 pixels; no Horovod is needed until it trains."""
    flags = {"model": "resnet18", "synthetic": True, "image_size": 32, "batch_size": 6, "num_batches": 1} | flags
    return TensorFlowLearner(ResNetConfig(**flags), CLASSES)


@pytest.fixture
def batch() -> Any:
    """Six images, their labels and seeds."""
    rng = np.random.default_rng(3)
    return (
        tf.constant(rng.integers(0, 256, (6, 32, 32, 3), np.uint8)),
        tf.constant(rng.integers(0, CLASSES, 6), tf.int32),
        tf.constant(np.stack([np.full(6, 1), np.arange(6)], 1), tf.int64),
    )


def keras_twin(ours: Any) -> Any:
    """A tf.keras ResNet-18 with the learner's weights, written from the paper; its variables in the learner's order."""
    import tf_keras as keras

    made = []

    def conv(x: Any, layer: Any) -> Any:
        keras_layer = keras.layers.Conv2D(
            layer.kernel.shape[-1], layer.kernel.shape[0], layer.stride, "same", use_bias=False
        )
        y = keras_layer(x)
        keras_layer.kernel.assign(layer.kernel)
        made.append((layer.kernel, keras_layer.kernel))
        return y

    def norm(x: Any, layer: Any) -> Any:
        keras_layer = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-4)
        y = keras_layer(x)
        for ours_v, theirs in (
            (layer.gamma, keras_layer.gamma),
            (layer.beta, keras_layer.beta),
            (layer.mean, keras_layer.moving_mean),
            (layer.variance, keras_layer.moving_variance),
        ):
            theirs.assign(ours_v)
            made.append((ours_v, theirs))
        return y

    model = ours.model
    entry = keras.Input((32, 32, 3))
    x = keras.layers.ReLU()(norm(conv(entry, model.stem), model.stem_norm))
    x = keras.layers.MaxPool2D(3, 2, "same")(x)
    for block in model.blocks:
        y = keras.layers.ReLU()(norm(conv(x, block.convs[0]), block.norms[0]))
        y = norm(conv(y, block.convs[1]), block.norms[1])
        if block.shortcut:
            x = norm(conv(x, block.shortcut[0]), block.shortcut[1])
        x = keras.layers.ReLU()(keras.layers.Add()([x, y]))
    dense = keras.layers.Dense(CLASSES)
    logits = dense(keras.layers.GlobalAveragePooling2D()(x))
    dense.kernel.assign(model.dense)
    dense.bias.assign(model.bias)
    made += [(model.dense, dense.kernel), (model.bias, dense.bias)]
    twin = {id(mine): theirs for mine, theirs in made}
    return keras.Model(entry, logits), [twin[id(w)] for w in ours.weights], [twin[id(a)] for a in ours.averages]


def test_a_whole_step_is_that_of_keras_with_numpy_momentum_and_larc(batch: Any) -> None:
    """Loss with label smoothing, gradients, L2 on kernels only, LARC, Nesterov momentum, moving averages."""
    import tf_keras as keras

    ours = learner(label_smoothing=0.1, larc=True, larc_eta=0.01, momentum=0.8, weight_decay=1e-3, adv_bn_init=False)
    model, twins, _ = keras_twin(ours)
    pixels, labels, _ = batch
    x = (tf.cast(pixels, tf.float32) - [121.0, 115.0, 100.0]) / [70.0, 68.0, 71.0]
    with tf.GradientTape() as tape:
        loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)(
            tf.one_hot(labels, CLASSES), model(x, training=True)
        )
    theirs = [g.numpy() for g in tape.gradient(loss, twins)]
    before = [w.numpy() for w in ours.weights]
    gradients, statistics, scores = ours.gradients(*batch)

    assert float(scores[0]) == pytest.approx(float(loss), rel=1e-5)
    for mine, other, weight in zip(gradients, theirs, ours.weights, strict=True):
        np.testing.assert_allclose(mine, other, atol=2e-4 * np.abs(other).max() + 1e-6, err_msg=weight.name)

    lr = tf.constant(0.3)
    for _ in range(2):  # the second time the momentum counts
        ours._apply(gradients, statistics, lr, tf.constant(0.0))
    decayed = {id(k) for k in ours.model.kernels()}
    for weight, start, g in zip(ours.weights, before, gradients, strict=True):
        w, velocity = start.astype(np.float64), 0.0
        for _ in range(2):
            total = g.numpy() + (1e-3 * w if id(weight) in decayed else 0)
            norms = np.linalg.norm(w), np.linalg.norm(total)
            total = total * (min(0.01 * norms[0] / norms[1] / 0.3, 1) if min(norms) > 0 else 1)
            velocity = 0.8 * velocity + total
            w = w - 0.3 * (total + 0.8 * velocity)
        np.testing.assert_allclose(weight.numpy(), w, rtol=2e-5, atol=2e-6, err_msg=weight.name)


def test_moving_averages_are_those_of_keras(batch: Any) -> None:
    """After one step: decay 0.9, and the variance of the batch as Keras' fused layer counts it."""
    ours = learner(adv_bn_init=False)
    model, _, averages = keras_twin(ours)
    x = augment.normalise(batch[0], tf.float32)
    gradients, statistics, _ = ours.gradients(*batch)
    ours._apply(gradients, statistics, tf.constant(0.1), tf.constant(0.0))
    model(x, training=True)

    for mine, theirs in zip(ours.averages, averages, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4, err_msg=mine.name)


def test_batch_norm_is_numpys() -> None:
    """Forward in training, by the batch's own mean and variance; in evaluation by the averages."""
    layer = BatchNorm("bn", 4, epsilon=BN_EPSILON)
    rng = np.random.default_rng(0)
    layer.gamma.assign(rng.normal(1, 0.3, 4))
    layer.beta.assign(rng.normal(0, 0.3, 4))
    layer.mean.assign(rng.normal(0, 0.3, 4))
    layer.variance.assign(rng.uniform(0.5, 2, 4))
    x = rng.normal(2, 3, (5, 6, 7, 4)).astype(np.float32)
    statistics = []
    trained, judged = layer(tf.constant(x), statistics), layer(tf.constant(x), None)

    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    np.testing.assert_allclose(
        trained, (x - mean) / np.sqrt(variance + BN_EPSILON) * layer.gamma + layer.beta, atol=1e-4
    )
    np.testing.assert_allclose(
        judged, (x - layer.mean) / np.sqrt(layer.variance + BN_EPSILON) * layer.gamma + layer.beta, atol=1e-4
    )
    np.testing.assert_allclose(statistics[0], mean, atol=1e-5)
    np.testing.assert_allclose(statistics[1], x.var((0, 1, 2), ddof=1), rtol=1e-4)


def test_label_smoothing_is_numpys() -> None:
    """0.9 on the label and 0.1 over all classes; the loss is the mean cross-entropy with that."""
    logits = np.random.default_rng(0).normal(size=(3, 4))
    wanted = np.full((3, 4), 0.1 / 4)
    wanted[np.arange(3), [2, 0, 3]] += 0.9
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))

    found = augment.targets(tf.constant([2, 0, 3]), 4, 0.1)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(
        tf.nn.softmax_cross_entropy_with_logits(tf.cast(found, tf.float64), logits), -(wanted * log_p).sum(1), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("weight", "gradient", "factor"),
    [
        ([3.0, 4.0], [0.0, 0.0], 1),
        ([0.0, 0.0], [1.0, 0.0], 1),
        ([3.0, 4.0], [0.0, 0.1], 1),
        ([3.0, 4.0], [6.0, 8.0], 0.013 * 5 / 10 / 0.1),
    ],
)
def test_larc_limits_the_step_and_never_enlarges_it(weight: Any, gradient: Any, factor: Any) -> None:
    """eta |w| / |g| / lr, at most 1; 1 where a norm is zero."""
    found = gradients.larc_factor(tf.constant(weight), tf.constant(gradient), tf.constant(0.1), 0.013)

    assert float(found) == pytest.approx(factor)


def test_an_overflow_changes_nothing_but_the_loss_scale() -> None:
    """Weights, momenta, averages and the moving average of the weights stay; the next good step goes on."""
    ours = learner(precision="float16", ema_decay=0.9)
    good = [tf.ones_like(w) for w in ours.weights]
    bad = [*good[:-1], good[-1] * float("inf")]
    statistics = tf.ones([sum(a.shape[0] for a in ours.averages)])
    before = {name: v.numpy() for name, v in ours.state().items()}

    assert float(ours._update(bad, statistics, tf.constant(0.1), tf.constant(0.5))) == 1
    for name, variable in ours.state().items():
        if name != "loss_scale":
            np.testing.assert_array_equal(before[name], variable, err_msg=name)
    assert float(ours.loss_scale.value) == precision.FIRST_SCALE / 2

    assert float(ours._update(good, statistics, tf.constant(0.1), tf.constant(0.8))) == 0
    bias = ours.model.bias.numpy()
    np.testing.assert_allclose(
        bias, before["dense/bias"] - 0.1 * 1.9 / (precision.FIRST_SCALE / 2), rtol=1e-5
    )  # unscaled
    smooth = ours.state()["dense/bias/ema"].numpy()
    np.testing.assert_allclose(smooth, 0.2 * bias + 0.8 * before["dense/bias"], rtol=1e-5)


def test_the_dynamic_loss_scale_follows_its_rule() -> None:
    """Halved by an overflow, doubled after 2000 good steps in a row, never below 1; a given one stays."""
    dynamic, fixed = optimizer.LossScale(None), optimizer.LossScale(128.0)
    update = tf.function(dynamic.update)
    wanted, good = precision.FIRST_SCALE, 0
    for step in range(4500):
        is_finite = step not in (3, 4, 2100)
        update(tf.constant(is_finite))
        good = good + 1 if is_finite else 0
        if not is_finite:
            wanted /= 2
        elif good == precision.GROWS_AFTER:
            wanted, good = wanted * 2, 0
    assert wanted == float(dynamic.value) == precision.FIRST_SCALE / 2
    for _ in range(40):
        update(tf.constant(False))
        fixed.update(tf.constant(False))
    assert (1.0, 128.0) == (float(dynamic.value), float(fixed.value))


def test_float16_gradients_are_those_of_float32_times_the_loss_scale(batch: Any) -> Any:
    """In direction to 2%, in length to 10% (two images: batch norm divides by small deviations); small values that float16 alone would lose are there."""

    def flat(ours: Any, scale: Any) -> Any:
        return np.concatenate([np.ravel(g) for g in ours.gradients(*(t[:2] for t in batch))[0]]) / scale

    half, single = flat(learner(precision="float16", loss_scale="256"), 256), flat(learner(), 1)

    assert half @ single / np.linalg.norm(half) / np.linalg.norm(single) > 0.98
    assert np.linalg.norm(half) == pytest.approx(np.linalg.norm(single), rel=0.1)


def test_xla_computes_the_same_gradients(batch: Any) -> None:
    """Of a part as training makes it: flipped, its colours varied, mixed."""
    flags = {
        "synthetic": False,
        "data_dir": Path(),
        "job_dir": Path(),
        "increased_aug": True,
        "mixup_alpha": 0.2,
        "label_smoothing": 0.1,
    }
    learners = [learner(xla=xla, **flags) for xla in (False, True)]
    (plain, averages, scores), (compiled, their_averages, their_scores) = (one.gradients(*batch) for one in learners)
    assert [None, True] == [getattr(one._part, "_jit_compile", None) for one in learners], "XLA compiles it"

    for ours, theirs in zip((*plain, averages, scores), (*compiled, their_averages, their_scores), strict=True):
        np.testing.assert_allclose(theirs, ours, atol=1e-4 * np.abs(ours).max() + 1e-7)


def test_evaluation_counts_top1_top5_and_cross_entropy_as_numpy_does() -> None:
    """Sums over the images; of twelve classes, so that top-5 is not all."""
    ours = TensorFlowLearner(
        ResNetConfig(model="resnet18", synthetic=True, image_size=32, batch_size=6, num_batches=1), 12
    )
    ours.model.dense.assign(np.random.default_rng(1).normal(0, 1, ours.model.dense.shape))
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (40, 32, 32, 3), np.uint8), rng.integers(0, 12, 40)
    logits = ours.model(augment.normalise(tf.constant(images), tf.float32)).numpy().astype(np.float64)
    place = (logits > logits[np.arange(40), labels][:, None]).sum(1)
    log_p = (
        logits
        - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        - logits.max(1, keepdims=True)
    )

    found = ours.evaluate(tf.constant(images), tf.constant(labels, tf.int32)).numpy()
    assert [40, (place < 1).sum(), (place < 5).sum()] == list(found[:3])
    assert 0 < found[1] < found[2] < 40
    assert found[3] == pytest.approx(-log_p[np.arange(40), labels].sum(), rel=1e-4)


def test_what_is_said_alike_of_all_classes_is_no_hit_for_all() -> None:
    """Of equal logits the lower class comes first, in top-1 and in top-5; what is no number hits nothing."""
    ours = TensorFlowLearner(
        ResNetConfig(model="resnet18", synthetic=True, image_size=32, batch_size=6, num_batches=1), 12
    )
    images, labels = tf.zeros([12, 32, 32, 3], tf.uint8), tf.range(12)
    ours.model.dense.assign(tf.zeros_like(ours.model.dense))
    assert [12, 1, 5] == list(ours.evaluate(images, labels).numpy()[:3])

    ours.model.bias.assign(np.where(np.arange(12) == 11, np.nan, 0))
    assert [12, 0, 0] == list(ours.evaluate(images, labels).numpy()[:3])


def test_training_flips_its_images_and_varies_their_colours(batch: Any) -> None:
    """By the images' seeds, before anything is computed from them; synthetic images stay as they are."""
    real = {"synthetic": False, "data_dir": Path(), "job_dir": Path()}
    many = tf.constant(np.stack([np.full(99, 1), np.arange(99)], 1), tf.int64)
    unflipped = tf.boolean_mask(many, augment.uniform(many, augment.FLIP) >= 0.5)[:6]
    flipped = (augment.flip_half(batch[0], batch[2]), batch[1], unflipped)  # seeds under which nothing is mirrored
    assert (flipped[0].numpy() != batch[0].numpy()).any()

    (trained, _, _), (expected, _, scores) = (learner(**real).gradients(*batch), learner().gradients(*flipped))
    for ours, theirs in zip(trained, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max() + 1e-7)
    coloured = learner(increased_aug=True).gradients(*flipped)[2]
    assert abs(float(coloured[0]) - float(scores[0])) > 1e-4


def test_colours_are_varied_as_numpy_does() -> None:
    """Brightness, then hue and saturation in YIQ, then contrast about the mean of each channel, then the range of pixels."""
    x = np.random.default_rng(0).uniform(0, 255, (5, 4, 6, 3)).astype(np.float32)
    seeds = tf.constant(np.stack([np.full(5, 3), np.arange(5)], 1), tf.int64)
    drawn = [2 * augment.uniform(seeds, stream).numpy() - 1 for stream in range(1, 5)]
    yiq = np.array(augment.TO_YIQ)
    expected = []
    for image, brightness, hue, saturation, contrast in zip(x, *drawn, strict=True):
        colour = (image + 255 * 0.2 * brightness) @ yiq.T
        turned = (colour[..., 1] + 1j * colour[..., 2]) * (1 + 0.5 * saturation) * np.exp(1j * np.pi * 0.1 * hue)
        rgb = np.stack([colour[..., 0], turned.real, turned.imag], -1) @ np.linalg.inv(yiq).T
        mean = rgb.mean((0, 1))
        expected.append(np.clip(mean + (rgb - mean) * (1 + 0.4 * contrast), 0, 255))

    found = augment.vary_colours(tf.constant(x), seeds, augment.Colours(0.2, 0.1, 0.5, 0.4)).numpy()
    np.testing.assert_allclose(found, expected, atol=0.05)
    assert np.abs(found - x).mean((1, 2, 3)).min() > 1


def test_evaluation_sees_the_averaged_weights_and_training_gets_its_own_back() -> None:
    """Inside `smoothed` only."""
    ours = learner(ema_decay=0.9)
    own = ours.model.dense.numpy()
    ours.state()["dense/kernel/ema"].assign(own + 1)
    with ours.smoothed():
        np.testing.assert_allclose(ours.model.dense, own + 1)
    np.testing.assert_array_equal(ours.model.dense, own)


def test_random_numbers_of_images_are_uniform_and_independent() -> Any:
    """Over positions, over streams, and for neighbouring seeds."""

    def of(seed: Any, stream: Any) -> Any:
        seeds = np.stack([np.full(20000, seed), np.arange(20000)], 1)
        return augment.uniform(tf.constant(seeds, tf.int64), stream).numpy()

    several = [of(1, 0), of(1, 1), of(2, 0), np.roll(of(1, 0), 1)]
    for values in several:
        assert values.min() >= 0 and values.max() < 1
        np.testing.assert_allclose(np.histogram(values, 10, (0, 1))[0] / 2000, 1, atol=0.12)
    assert np.abs(np.corrcoef(several) - np.eye(4)).max() < 0.03


def test_colours_turn_in_yiq_as_numpy_does() -> Any:
    """No change gives the image; saturation 0 its luminance; a turn of the hue keeps luminance and saturation."""
    rgb = np.random.default_rng(0).uniform(0, 255, (7, 3)).astype(np.float32)

    def changed(angle: Any, saturation: Any) -> Any:
        return rgb @ augment.colour_matrix(tf.constant([angle]), tf.constant([saturation])).numpy()[0].T

    yiq = np.array(augment.TO_YIQ)
    np.testing.assert_allclose(changed(0.0, 1.0), rgb, atol=1e-3)
    np.testing.assert_allclose(changed(0.7, 0.0), np.repeat(rgb @ yiq[:1].T, 3, 1), atol=0.1)
    turned, plain = changed(0.7, 1.5) @ yiq.T, rgb @ yiq.T
    np.testing.assert_allclose(turned[:, 0], plain[:, 0], atol=1e-2)
    np.testing.assert_allclose(
        turned[:, 1] + 1j * turned[:, 2], (plain[:, 1] + 1j * plain[:, 2]) * 1.5 * np.exp(0.7j), atol=1e-2
    )


def test_mixup_mixes_images_and_targets_alike() -> None:
    """By one share between 0 and 1 that depends on the seeds only."""
    x = tf.constant(np.arange(4, dtype=np.float32)[:, None, None, None])
    wanted = tf.one_hot([0, 1, 2, 3], 4)
    seeds = tf.constant([[1, 7]] * 4, tf.int64)
    mixed, targets = augment.mixup(x, wanted, augment.mixup_share(seeds, 0.2))
    share = float(targets[0, 0])

    assert 0 <= share <= 1
    np.testing.assert_allclose(np.sum(targets, 1), 1, rtol=1e-6)
    np.testing.assert_allclose(np.ravel(mixed), np.arange(4) * share + np.arange(4)[::-1] * (1 - share), rtol=1e-5)
    assert share == float(augment.mixup_share(seeds, 0.2)) != float(augment.mixup_share(seeds + 1, 0.2))


def test_flips_mirror_about_half_of_the_images() -> None:
    """Whole images, left to right."""
    images = np.random.default_rng(0).integers(0, 256, (400, 2, 5, 3), np.uint8)
    seeds = tf.constant(np.stack([np.ones(400), np.arange(400)], 1), tf.int64)
    flipped = augment.flip_half(tf.constant(images), seeds).numpy()
    same, mirrored = (flipped == images).all((1, 2, 3)), (flipped == images[:, :, ::-1]).all((1, 2, 3))

    assert (same | mirrored).all()
    assert 150 < mirrored.sum() < 250


@pytest.mark.parametrize("width", [1, 5, None])
def test_each_colour_is_normalised_by_its_own_mean_and_deviation(width: int | None) -> None:
    """To the last bit as pixel by pixel, whether or not the graph knows how wide images are."""
    images = np.random.default_rng(0).integers(0, 256, (2, 3, width or 4, 3), np.uint8)
    pixels = Pixels((1.0, 20.0, 125.5), (2.0, 60.0, 0.3))
    signature = [tf.TensorSpec([None, None, width, 3], tf.uint8)]
    found = tf.function(lambda x: augment.normalise(x, tf.float32, pixels), input_signature=signature)(images)

    mean, inverse = np.float32(pixels.mean), np.float32([1 / d for d in pixels.deviation])
    np.testing.assert_array_equal((images.astype(np.float32) - mean) * inverse, found)


@pytest.mark.parametrize(("he", "variance"), [(True, 1 / (3 * 5 * 40)), (False, 2 / (3 * 5 * (40 + 60)))])
def test_a_kernel_begins_with_the_variance_of_its_rule(he: bool, variance: float) -> None:
    """He's of its inputs, no value far out; Glorot's of inputs and outputs, uniform. Equal seeds give equal ones."""
    made = [Init.of(3, zero_gamma=False, he_init=he).kernel((3, 5, 40, 60)) for _ in range(2)]
    reach = 2 / 0.87962566 * variance**0.5 if he else (3 * variance) ** 0.5

    np.testing.assert_array_equal(*made)
    assert made[0].var() == pytest.approx(variance, rel=0.03)
    assert 0.97 * reach < np.abs(made[0]).max() <= 1.001 * reach
    assert abs(made[0].mean()) < 0.02 * reach
    assert (0.0, 1.0) == (
        Init.of(3, zero_gamma=True, he_init=he).last_gamma,
        Init.of(3, zero_gamma=False, he_init=he).last_gamma,
    )


@pytest.mark.parametrize(("gpu", "rewrites"), [(None, False), (0, True)])
def test_tensorflow_rewrites_the_graph_where_a_gpu_gains_by_it(
    monkeypatch: pytest.MonkeyPatch, gpu: int | None, rewrites: bool
) -> None:
    """On CPUs that takes a part of the start, and no step is quicker."""
    monkeypatch.setattr(horovod, "Gather", lambda threads: None)
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    try:
        horovod.engine(Ranks(rank=0, size=1, local_rank=0, local_size=1, threads=1, gpu=gpu))
        assert rewrites != tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    finally:
        tf.config.optimizer.set_experimental_options(
            {"disable_meta_optimizer": before.get("disable_meta_optimizer", False)}
        )

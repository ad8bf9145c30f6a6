"""The network's parts on tiny tensors: the backbone, the pyramid, the heads, and a step of the trainer."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer_maskrcnn.helpers import REDUCED, evaluate
from trainer.common.ranks.horovod_rank import Ranks
from trainer.maskrcnn import boxes, roi_heads
from trainer.maskrcnn.backbone import pyramid, resnet
from trainer.maskrcnn.batch import Batch
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.config_network import BackboneConfig, FpnConfig
from trainer.maskrcnn.heads import box_head, box_losses, box_outputs, mask_head, mask_loss
from trainer.maskrcnn.keys import apply_settings
from trainer.maskrcnn.layers import Layers, group_norm, tf1
from trainer.maskrcnn.model import losses, make_layers
from trainer.maskrcnn.rpn import proposals, rpn_head, rpn_head_at
from trainer.maskrcnn.tensorpack_trainer import Callback, FedInput, HorovodSteps, MaskRcnn, StepMeans

LAYERS = Layers(training=True)
SMALL = BackboneConfig(channels=8, norm="None", resnet_num_blocks=(1, 2, 1, 1), freeze_at=0)
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(1, 64, 64, 3)).astype("f")


def known(images: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(images, [None, None, None, 3])


def weight(name: str) -> tf.Tensor:
    return next(v for v in tf1.global_variables() if v.op.name == name)


def plain_conv(name: str, x: tf.Tensor, stride: int = 1, around: tuple[int, int] | None = None) -> tf.Tensor:
    """A convolution of the graph's weights, with so many pixels before and after, or as TensorFlow pads."""
    pads: Any = "SAME" if around is None else [[0, 0], around, around, [0, 0]]
    return tf.nn.bias_add(tf.nn.conv2d(x, weight(f"{name}/W"), stride, pads), weight(f"{name}/b"))


def plain_resnet(x: tf.Tensor, stride_1x1: bool, tf_pad_mode: bool) -> list[tf.Tensor]:
    """Table 1 of arXiv:1512.03385 with one or two blocks a group, the stride in one of two convolutions."""

    def around(before: int) -> tuple[int, int] | None:
        return None if tf_pad_mode else (before, before - 1)

    x = tf.nn.relu(plain_conv("conv0", x, 2, around(3)))
    x = tf.nn.max_pool2d(
        x if tf_pad_mode else tf.pad(x, [[0, 0], [1, 0], [1, 0], [0, 0]]), 3, 2, "SAME" if tf_pad_mode else "VALID"
    )
    found = []
    for group, blocks in enumerate((1, 2, 1, 1)):
        for block in range(blocks):
            name, stride = f"group{group}/block{block}", 2 if group and not block else 1
            shortcut = x if block else plain_conv(f"{name}/convshortcut", x, stride)
            y = tf.nn.relu(plain_conv(f"{name}/conv1", x, stride if stride_1x1 else 1))
            in_3x3 = 1 if stride_1x1 else stride
            y = tf.nn.relu(plain_conv(f"{name}/conv2", y, in_3x3, around(1) if in_3x3 > 1 else None))
            x = tf.nn.relu(plain_conv(f"{name}/conv3", y) + shortcut)
        found.append(x)
    return found


@pytest.mark.parametrize("stride_1x1", [False, True])
@pytest.mark.parametrize("tf_pad_mode", [False, True])
def test_a_backbone_is_that_of_the_paper_with_its_strides_and_pads(stride_1x1: bool, tf_pad_mode: bool) -> None:
    """Four maps, each half the side of the one before, against plain convolutions."""
    config = BackboneConfig(
        channels=8, norm="None", resnet_num_blocks=(1, 2, 1, 1), stride_1x1=stride_1x1, tf_pad_mode=tf_pad_mode
    )

    def both(images: tf.Tensor) -> list[list[tf.Tensor]]:
        return [resnet(known(images), config, LAYERS), plain_resnet(known(images), stride_1x1, tf_pad_mode)]

    ours, theirs = evaluate(both, IMAGES)
    assert [(1, s, s, c) for s, c in ((16, 32), (8, 64), (4, 128), (2, 256))] == [f.shape for f in ours]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(b).max())


@pytest.mark.parametrize(("freeze_at", "frozen"), [(0, ()), (1, ("conv0/",)), (2, ("conv0/", "group0/"))])
def test_what_is_frozen_learns_nothing(freeze_at: int, frozen: tuple[str, ...]) -> None:
    """Stem and first group, as the setting says; no gradient goes below what is frozen with the first group."""
    config = BackboneConfig(channels=8, norm="FreezeBN", resnet_num_blocks=(1, 1, 1, 1), freeze_at=freeze_at)
    with tf.Graph().as_default():
        images = tf1.placeholder(tf.float32, [1, 32, 32, 3])
        outputs = resnet(images, config, LAYERS, 3)
        assert 3 == len(outputs)
        learned = {v.op.name for v in tf1.trainable_variables()}
        every = {v.op.name for v in tf1.global_variables() if not v.op.name.endswith("EMA")}
        assert every - learned == {n for n in every if frozen and n.startswith(frozen)}
        assert (freeze_at == 2) == (tf.gradients(outputs[-1], images)[0] is None)
        fixed = BackboneConfig(
            channels=8, norm="FreezeBN", resnet_num_blocks=(1, 1, 1, 1), freeze_affine=True, freeze_at=0
        )
        with tf1.variable_scope("fixed"):
            resnet(images, fixed, LAYERS, 1)
        affine = [v.op.name for v in tf1.trainable_variables() if v.op.name.startswith("fixed")]
        assert affine and not [n for n in affine if n.endswith(("gamma", "beta"))]
        with tf1.variable_scope("still"):
            resnet(images, SMALL, LAYERS.but(trainable=False), 1)
        assert not [v for v in tf1.trainable_variables() if v.op.name.startswith("still")]


@pytest.mark.parametrize("norm", ["None", "GN"])
def test_a_pyramid_adds_what_is_coarser_to_what_is_finer(norm: str) -> None:
    """Each level twice as large, then convolved; the last takes every second cell; norms lie where they are asked for."""
    levels = [RNG.normal(size=(1, s, s, c)).astype("f") for s, c in ((16, 4), (8, 8), (4, 16), (2, 32))]

    def normed(name: str, x: tf.Tensor) -> tf.Tensor:
        return x if norm == "None" else group_norm(x, weight(f"{name}/gamma"), weight(f"{name}/beta"), 8)

    def both(*features: tf.Tensor) -> list[list[tf.Tensor]]:
        given = [tf.ensure_shape(f, [None, None, None, c]) for f, c in zip(features, (4, 8, 16, 32), strict=True)]
        ours = pyramid(given, FpnConfig(num_channel=8, norm=norm), LAYERS.but(trainable=False))
        assert len(tf1.global_variables()) == len(tf1.trainable_variables()) == (16 if norm == "None" else 32)
        merged, theirs = None, []
        for i in (5, 4, 3, 2):
            side = normed(f"fpn/gn_c{i}", plain_conv(f"fpn/lateral_1x1_c{i}", given[i - 2]))
            merged = side if merged is None else side + tf.repeat(tf.repeat(merged, 2, 1), 2, 2)
            theirs.insert(0, normed(f"fpn/gn_p{i}", plain_conv(f"fpn/posthoc_3x3_p{i}", merged)))
        return [ours, [*theirs, theirs[-1][:, ::2, ::2]]]

    ours, theirs = evaluate(both, *levels)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_a_dense_box_head_is_two_layers_and_each_class_has_a_box() -> None:
    """Or all share one; both learn where the backbone does not, and are float32 whatever computes."""
    x = RNG.normal(size=(2, 7, 7, 4)).astype("f")

    def both(x: tf.Tensor) -> list[tf.Tensor]:
        x, layers = tf.ensure_shape(x, [None, 7, 7, 4]), LAYERS.but(trainable=False, norm="GN")
        hidden = box_head(x, FpnConfig(frcnn_fc_head_dim=16), layers)
        one = box_outputs(hidden, 3, False, layers)
        other = box_outputs(tf.cast(hidden, tf.bfloat16), 3, True, layers.but(dtype=tf.bfloat16), "agnostic")
        assert 12 == len(tf1.trainable_variables()) == len(tf1.global_variables())
        assert [tf.float32] * 4 == [t.dtype for t in (*one, *other)]
        flat = tf.reshape(x, [-1, 196])
        for name in ("fc6", "fc7"):
            flat = tf.nn.relu(flat @ weight(f"{name}/W") + weight(f"{name}/b"))
        logits, moved = (hidden @ weight(f"outputs/{part}/W") for part in ("class", "box"))
        return [hidden, flat, *one, *other, logits, tf.reshape(moved, [-1, 3, 4])]

    hidden, flat, logits, offsets, agnostic_logits, agnostic, *plain = evaluate(both, x)
    np.testing.assert_allclose(hidden, flat, atol=1e-4)
    np.testing.assert_allclose(logits, plain[0], atol=1e-5)
    np.testing.assert_allclose(offsets, plain[1], atol=1e-5)
    assert [(2, 3), (2, 1, 4)] == [agnostic_logits.shape, agnostic.shape]


def test_a_mask_is_that_of_its_region_s_class() -> None:
    """Against all classes' masks by plain layers; the background is taken for the first class."""
    config = apply_settings(Config(), ["DATA.NUM_CATEGORY=3", "MRCNN.HEAD_DIM=8"])
    x = RNG.normal(size=(4, 3, 3, 5)).astype("f")

    def both(x: tf.Tensor) -> list[tf.Tensor]:
        x = tf.ensure_shape(x, [None, 3, 3, 5])
        ours = mask_head(x, tf.constant([1, 3, 0, 2]), config, LAYERS.but(trainable=False))
        assert 12 == len(tf1.trainable_variables())
        for k in range(4):
            x = tf.nn.relu(plain_conv(f"fcn{k}", x))
        up = tf.nn.conv2d_transpose(x, weight("deconv/W"), [4, 6, 6, 8], 2)
        every = tf.nn.conv2d(tf.nn.relu(up), weight("conv/W"), 1, "SAME")
        return [ours, tf.gather(every, [0, 2, 0, 1], batch_dims=1, axis=3)]

    ours, theirs = evaluate(both, x)
    assert (4, 6, 6) == ours.shape
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_one_box_for_all_classes_is_learned_by_every_object() -> None:
    """None for the background; a mask's loss is the mean over its cells, times its region's weight."""
    offsets, wanted = np.float32([[[2, 0, 0, 0]], [[9, 9, 9, 9]]]), np.zeros((2, 4), "f")

    def losses(offsets: tf.Tensor, wanted: tf.Tensor) -> Any:
        shown = tf.ensure_shape(offsets, [None, 1, 4])
        weights = tf.constant([0.5, 1.0])
        whole = box_losses(tf.zeros([2, 3]), shown, wanted, tf.constant([1, 0]), weights, "huber")
        logits, targets = tf.constant([[[0.0, 2.0]], [[5.0, 5.0]]]), tf.constant([[[1.0, 0.0]], [[0.0, 1.0]]])
        return *whole, mask_loss(logits, targets, tf.constant([0.5, 0.0]))

    label, box, mask = evaluate(losses, offsets, wanted)
    assert (1.5 * np.log(3), 0.75) == pytest.approx((label, box), rel=1e-5)
    assert 0.5 * (np.log(2) + np.log1p(np.exp(2))) / 2 == pytest.approx(mask, rel=1e-5)


TINY = (
    "DATA.NUM_CATEGORY=2",
    "FPN.FRCNN_FC_HEAD_DIM=8",
    "MRCNN.HEAD_DIM=8",
    "BACKBONE.CHANNELS=8",
    "BACKBONE.NORM=None",
)
ROIS = np.float32([[4, 4, 20, 20], [0, 0, 40, 30], [10, 20, 30, 60]])


@pytest.mark.parametrize(
    ("settings", "boxes_of", "cells"), [((), 3, 28), (("FPN.CASCADE=True",), 1, 28), (("MODE_FPN=False",), 3, 14)]
)
def test_each_region_has_a_chance_and_a_box_for_each_class(
    settings: tuple[str, ...], boxes_of: int, cells: int
) -> None:
    """A cascade's stages share one; chances add up to one, boxes lie in the image, and each found one has a mask."""
    config = apply_settings(Config(), [*TINY, *settings])
    sides = (16, 8, 4, 2, 1) if config.mode_fpn else (4,)
    features = [RNG.normal(size=(1, s, s, 8 if config.mode_fpn else 128)).astype("f") for s in sides]

    def seen(rois: tf.Tensor, *features: tf.Tensor) -> list[tf.Tensor]:
        known = [tf.ensure_shape(f, [1, None, None, 8 if config.mode_fpn else 128]) for f in features]
        with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
            chances, found = roi_heads.scored_boxes(known, rois, tf.constant([50.0, 40.0]), config, LAYERS)
            masks = roi_heads.mask_logits_of(known, rois, tf.constant([1, 2, 1]), config, LAYERS)
        if config.fpn.cascade:
            assert [[8, 4]] * 3 == [weight(f"cascade_rcnn_stage{n}/outputs/box/W").shape.as_list() for n in (1, 2, 3)]
        return [chances, found, masks]

    chances, found, masks = evaluate(seen, ROIS, *features)
    np.testing.assert_allclose(chances.sum(1), 1, rtol=1e-5)
    assert [(3, 3), (3, boxes_of, 4), (3, cells, cells)] == [chances.shape, found.shape, masks.shape]
    assert (found >= 0).all() and (found <= [40, 50, 40, 50]).all() and np.isfinite(masks).all()


def test_each_stage_of_a_cascade_teaches_a_third_of_what_it_would_alone() -> None:
    """What is below it; its losses are its own, on the regions that are used, and the next stage's are of moved ones."""
    config = apply_settings(Config(), [*TINY, "FPN.CASCADE=True"])
    features = [RNG.normal(size=(1, s, s, 8)).astype("f") for s in (16, 8, 4, 2)]
    objects, labels = np.float32([[[4, 4, 20, 22], [8, 20, 30, 60]]]), np.int32([[1, 2]])
    given = {"boxes": objects, "labels": labels, "sizes": np.float32([[64, 64]]), "weights": np.float32([1])}
    nothing = {name: np.zeros((1, 64, 64, 3), np.uint8) for name, *_ in Batch.SIGNATURE}

    def both(*features: tf.Tensor) -> Any:
        levels = [tf.ensure_shape(f, [1, None, None, 8]) for f in features]
        batch = Batch(**{name: tf.constant(array) for name, array in (nothing | given).items()})
        first = roi_heads.Regions(
            tf.constant(ROIS[None]),
            tf.constant([[1, 0, 2]]),
            tf.constant([[0, 0, 1]]),
            tf.constant([[True, True, False]]),
        )
        found: dict[str, tf.Tensor] = {}
        roi_heads.cascade_losses(found, levels, first, batch, config, LAYERS)
        with tf1.variable_scope("cascade_rcnn_stage1", reuse=True):
            with tf1.variable_scope("head"):
                hidden = box_head(roi_heads._pooled(levels, ROIS, first.image(), config, 7), config.fpn, LAYERS)
            logits, offsets = box_outputs(hidden, 3, True, LAYERS)
        wanted = boxes.encode(tf.constant(objects[0][[0, 0, 1]]), ROIS, config.cascade.bbox_reg_weights[0])
        plain = box_losses(logits, offsets, wanted, tf.constant([1, 0, 2]), tf.constant([0.5, 0.5, 0]), "huber")
        gradients = [
            tf.gradients(total, levels[0])[0]
            for total in (found["frcnn1_label"] + found["frcnn1_box"], tf.add_n(plain))
        ]
        return found, plain, gradients

    found, plain, (third, whole) = evaluate(both, *features)
    assert {f"frcnn{n}_{kind}" for n in (1, 2, 3) for kind in ("label", "box")} == set(found)
    assert plain == pytest.approx((found["frcnn1_label"], found["frcnn1_box"]), rel=1e-5)
    np.testing.assert_allclose(3 * third, whole, rtol=1e-3, atol=1e-5 * np.abs(whole).max())
    assert np.abs(whole).max() > 0 and all(np.isfinite(v) and v > 0 for v in found.values())


def test_the_region_head_has_one_answer_per_anchor() -> None:
    """The same weights on all levels, and float32; ratios and sizes make the anchors of a cell."""
    config = apply_settings(Config(), ["RPN.ANCHOR_RATIOS=0.5,2.0", "FPN.NUM_CHANNEL=8"])
    levels = [RNG.normal(size=(2, s, s, 8)).astype("f") for s in (4, 2)]

    def both(*features: tf.Tensor) -> Any:
        known = [tf.ensure_shape(f, [2, None, None, 8]) for f in features]
        found = rpn_head(known, config, LAYERS.but(trainable=False))
        assert 6 == len(tf1.trainable_variables())
        hidden = tf.nn.relu(plain_conv("rpn/conv0", known[1]))
        return *found, plain_conv("rpn/class", hidden), plain_conv("rpn/box", hidden)

    logits, offsets, plain, moved = evaluate(both, *levels)
    assert [(2, 32), (2, 8)] == [v.shape for v in logits] and [(2, 32, 4), (2, 8, 4)] == [v.shape for v in offsets]
    np.testing.assert_allclose(logits[1], plain.reshape(2, 8), atol=1e-6)
    np.testing.assert_allclose(offsets[1], moved.reshape(2, 8, 4), atol=1e-6)
    c4 = apply_settings(Config(), ["MODE_FPN=False", "RPN.HEAD_DIM=8"])
    with tf.Graph().as_default():
        logits, _ = rpn_head([tf.zeros([1, 2, 2, 16])], c4, LAYERS)
        assert [3, 3, 16, 8] == weight("rpn/conv0/W").shape.as_list() and 15 == weight("rpn/class/b").shape[0]


@pytest.mark.parametrize("words", [("FPN.NUM_CHANNEL=8",), ("MODE_FPN=False", "RPN.HEAD_DIM=8")])
def test_anchors_by_themselves_get_the_answers_and_the_gradients_of_whole_maps(words: tuple[str, ...]) -> None:
    """Every anchor of two images once, in a drawn order, borders and maps of one cell among them."""
    config = apply_settings(Config(), [*words, "RPN.ANCHOR_RATIOS=0.5,2.0"])
    sides = ((5, 3), (2, 4), (1, 2), (1, 1)) if config.mode_fpn else ((5, 4),)
    levels = [RNG.normal(size=(2, *side, 6)).astype("f") for side in sides]
    count = 2 * len(config.anchor_places[0][1]) * sum(h * w for h, w in sides)  # of an image
    order = RNG.permutation(2 * count)
    weights = RNG.normal(size=(2 * count, 5)).astype("f")

    def both(image: tf.Tensor, index: tf.Tensor, weights: tf.Tensor, *features: tf.Tensor) -> Any:
        known = [tf.ensure_shape(f, [2, None, None, 6]) for f in features]
        maps = [tf.concat(v, 1) for v in rpn_head(known, config, LAYERS)]
        of_maps = [tf.gather(tf.reshape(v, [2 * count, -1]), image * count + index) for v in maps]
        alone = rpn_head_at(known, image, index, config, LAYERS)
        answers = [tf.concat([tf.reshape(pair[0], [-1, 1]), pair[1]], 1) for pair in (of_maps, alone)]
        learned = [*known, *tf1.trainable_variables()]
        assert len(known) + 6 == len(learned)
        return [(a, *map(tf.convert_to_tensor, tf.gradients(a * weights, learned))) for a in answers]

    whole, alone = evaluate(both, np.int32(order // count), np.int32(order % count), weights, *levels)
    for a, b in zip(whole, alone, strict=True):
        np.testing.assert_allclose(b, a, atol=2e-5 * np.abs(a).max())
        assert np.abs(a).max() > 0
    _, (answers, *nothing) = evaluate(both, np.int32([]), np.int32([]), weights[:0], *levels)
    assert (0, 5) == answers.shape and not any(v.any() for v in nothing), "where no anchor is drawn"


def test_a_step_goes_back_through_the_region_head_for_drawn_anchors_alone() -> None:
    """Not through the maps of all levels, by whose convolutions they are found."""
    config = apply_settings(Config(), [*REDUCED, "DATA.NUM_CATEGORY=3"])
    with tf.Graph().as_default() as graph:
        batch = Batch(*(tf1.placeholder(s.dtype, s.shape) for s in Batch.specs(2)))
        parts = losses(batch, config, make_layers(config, training=True, device="CPU"))
        learned = {v.op.name: v for v in tf1.trainable_variables()}
        names = ["rpn/conv0/W", "rpn/class/W", "rpn/box/W"]
        found = tf.gradients(parts["rpn_label"] + parts["rpn_box"], [learned[name] for name in names])
        assert all(g is not None for g in found)
        assert not any(o.type.startswith("Conv2DBackprop") for o in graph.get_operations())


@pytest.mark.parametrize(("training", "limits"), [(True, (4, 2, 3)), (False, (3, 2, 2))])
def test_proposals_are_the_best_of_each_level_and_then_of_all(training: bool, limits: tuple[int, int, int]) -> None:
    """As many as the settings say of a training or of a use; those without a side, and what the best cover, are gone."""
    when = "TRAIN" if training else "TEST"
    words = [
        f"RPN.{when}_{name}_TOPK={n}"
        for name, n in zip(("PER_LEVEL_PRE_NMS", "PER_LEVEL_NMS", "IMAGE"), limits, strict=True)
    ]
    config = apply_settings(Config(), words).rpn
    anchors = np.float32([[0, 0, 10, 10], [0, 0, 10, 9], [60, 60, 70, 70], [20, 20, 30, 30], [40, 40, 50, 50]])
    scores = np.float32([5, 4, 3, 2, 1]), np.float32([1.5, 0.5, 9, 2.5, 0])

    def found(anchors: tf.Tensor, *scores: tf.Tensor) -> Any:
        nothing = tf.zeros_like(anchors)
        return proposals([*scores], [nothing, nothing], [anchors, anchors], tf.constant([55.0, 55.0]), config, training)

    best, logits = evaluate(found, anchors, *scores)
    if training:
        assert [5, 2.5, 2] == logits.tolist() and [anchors[i].tolist() for i in (0, 3, 3)] == best.tolist()
    else:
        assert [5, 2.5] == logits.tolist() and [anchors[i].tolist() for i in (0, 3)] == best.tolist()


class Line(MaskRcnn):
    """A model of one weight, whose loss is its square times what is fed."""

    def inputs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec((), tf.float32, "x"), *super().inputs()[-2:]]

    def build_graph(self, *inputs: tf.Tensor) -> tf.Tensor:
        self.began = tf.timestamp()
        x, self.learning_rate, self.requests = inputs
        with tf.control_dependencies([self.began]):
            x = tf.identity(x)
            w = tf1.get_variable("line/b", initializer=tf.constant([2.0]), use_resource=True).read_value()
        self.losses = {"one": tf.reduce_sum(w * w) * x, "other": 2 * x}
        self.fg_rois = 10 * x
        return tf.add_n(list(self.losses.values()))


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_step_of_several_parts_is_one_update_by_their_mean(parts: int) -> None:
    """Its report has the means of the losses of all of them, and the requests of the last; then it begins anew."""
    fed, seen, weights = iter(range(1, 50)), [], []

    def feeds() -> Iterator[tuple[np.ndarray, ...]]:
        for x in fed:
            yield np.array(x, "f"), np.array(0.03125, "f"), np.array([0, 1, x % 2, 0], "f")

    class Look(Callback):
        _chief_only = False

        def _trigger_step(self) -> None:
            seen.append(steps.report)
            weights.append(float(steps.values()["line/b"][0]))

    config = apply_settings(Config(), ["TRAIN.MOMENTUM=0.5", "DATA.NUM_CATEGORY=1"])
    ranks = Ranks(rank=0, size=1, local_rank=0, local_size=1, threads=1)
    with tf.Graph().as_default():
        model = Line(config, 1, "CPU")
        steps = HorovodSteps(
            model, ranks, lambda steps: steps.assign({"line/b": np.full(1, 3, np.float32)}), parts=parts
        )
        steps.setup_graph(model.get_input_signature(), FedInput(feeds()), model.build_graph, model.get_optimizer)
        steps.go([Look()], 2)
    weight, speed, x = 3.0, 0.0, 1
    for report, after in zip(seen, weights, strict=True):
        mean = np.mean([x + i for i in range(parts)])
        assert weight**2 * mean == pytest.approx(report.values["one"]) and 2 * mean == pytest.approx(
            report.values["other"]
        )
        assert (weight**2 + 2) * mean == pytest.approx(report.loss) and 10 * mean == pytest.approx(
            report.values["fg_rois"]
        )
        x += parts
        assert (0, 1, (x - 1) % 2, 0) == tuple(report.count(name, 1) for name in StepMeans.REQUESTS)
        assert 0 == report.loss_scale
        speed = 0.5 * speed + 2 * weight * float(mean)
        weight -= 0.03125 * speed
        assert weight == pytest.approx(after)
    assert 2 == len(seen)


def test_no_gradient_is_a_sum_whose_order_depends_on_the_moment() -> None:
    """TensorFlow's of three and more begins with whichever is free to be overwritten; of two, order makes no difference."""
    config = apply_settings(Config(), [*REDUCED, "DATA.NUM_CATEGORY=3"])
    ranks = Ranks(rank=0, size=1, local_rank=0, local_size=1, threads=1)
    with tf.Graph().as_default() as graph:
        model = MaskRcnn(config, 1, "CPU")
        steps = HorovodSteps(model, ranks, lambda _: None)
        steps.setup_graph(model.get_input_signature(), FedInput(iter([])), model.build_graph, model.get_optimizer)
        sums = [o for o in graph.get_operations() if o.type == "AddN" and o.name.startswith("gradients/")]
    assert sums and {2} == {len(o.inputs) for o in sums}

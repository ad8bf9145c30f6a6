"""Names, layouts and meanings of weights on their way in and out, as plain arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.common.checkpoints import npz
from trainer.common.files.errors import ConfigError, TrainerError
from trainer.maskrcnn import classifier, detectron2, weights
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.keys import apply_settings

BIAS = {weights.RPN_BIAS: np.zeros(12, np.float32)}


def kept(path: Path, **arrays: Any) -> Path:
    """A file of these arrays, slashes written as two underscores, and of the bias that every model has."""
    np.savez(path, **BIAS, **{name.replace("__", "/"): array for name, array in arrays.items()})
    return path


@pytest.mark.parametrize(
    ("layer", "has_convs", "place"),
    [
        ("backbone.bottom_up.stem.conv1", False, ("conv0", "")),
        ("backbone.bottom_up.res2.0.conv1", False, ("group0/block0/conv1", "")),
        ("backbone.bottom_up.res5.12.shortcut", False, ("group3/block12/convshortcut", "")),
        ("backbone.fpn_lateral2", False, ("fpn/lateral_1x1_c2", "fpn/gn_c2")),
        ("backbone.fpn_output5", False, ("fpn/posthoc_3x3_p5", "fpn/gn_p5")),
        ("proposal_generator.rpn_head.conv", False, ("rpn/conv0", "")),
        ("proposal_generator.rpn_head.objectness_logits", False, ("rpn/class", "")),
        ("proposal_generator.rpn_head.anchor_deltas", False, ("rpn/box", "")),
        ("roi_heads.box_head.fc1", False, ("fastrcnn/fc6", "")),
        ("roi_heads.box_head.fc2", False, ("fastrcnn/fc7", "")),
        ("roi_heads.box_head.fc1", True, ("fastrcnn/fc", "")),
        ("roi_heads.box_head.conv1", True, ("fastrcnn/conv0", "fastrcnn/gn0")),
        ("roi_heads.box_predictor.cls_score", False, ("fastrcnn/outputs/class", "")),
        ("roi_heads.box_predictor.bbox_pred", False, ("fastrcnn/outputs/box", "")),
        ("roi_heads.box_head.0.fc1", False, ("cascade_rcnn_stage1/head/fc6", "")),
        ("roi_heads.box_head.2.conv4", True, ("cascade_rcnn_stage3/head/conv3", "cascade_rcnn_stage3/head/gn3")),
        ("roi_heads.box_predictor.1.cls_score", False, ("cascade_rcnn_stage2/outputs/class", "")),
        ("roi_heads.box_predictor.1.bbox_pred", False, ("cascade_rcnn_stage2/outputs/box", "")),
        ("roi_heads.mask_head.mask_fcn1", False, ("maskrcnn/fcn0", "maskrcnn/gn0")),
        ("roi_heads.mask_head.deconv", False, ("maskrcnn/deconv", "")),
        ("roi_heads.mask_head.predictor", False, ("maskrcnn/conv", "")),
        ("backbone.bottom_up.res6.0.conv1", False, None),
        ("roi_heads.keypoint_head.conv1", False, None),
    ],
)
def test_each_layer_of_detectron2_has_its_place(layer: str, has_convs: bool, place: tuple[str, str] | None) -> None:
    """The layer's name here and its norm's; what a detector with a pyramid does not have, has none."""
    assert place == detectron2._places(layer, has_convs)


def test_detectron2s_norms_are_told_by_what_they_remember(tmp_path: Path) -> None:
    """Batch norm has statistics, group norm none; a pyramid's has a place of its own, and its layer no bias."""
    stem, lateral, output = "backbone.bottom_up.stem.conv1", "backbone.fpn_lateral2", "backbone.fpn_output2"
    one = np.ones(2, "f")
    arrays = {
        "pixel_mean": one,
        "proposal_generator.anchor_generator.cell_anchors.0": one,
        f"{stem}.norm.num_batches_tracked": one,
        **{f"{stem}.norm.{part}": one * i for i, part in enumerate(("weight", "bias", "running_mean", "running_var"))},
        "backbone.bottom_up.res2.0.conv1.norm.weight": one,
        f"{lateral}.norm.weight": one,
        f"{output}.norm.bias": one,
        f"{output}.bias": one * 7,
    }
    found = detectron2.as_tensorpack(tmp_path, arrays)
    assert {
        "conv0/bn/gamma": [0, 0],
        "conv0/bn/beta": [1, 1],
        "conv0/bn/mean/EMA": [2, 2],
        "conv0/bn/variance/EMA": [3, 3],
        "group0/block0/conv1/gn/gamma": [1, 1],
        "fpn/gn_c2/gamma": [1, 1],
        "fpn/lateral_1x1_c2/b": [0, 0],
        "fpn/gn_p2/beta": [1, 1],
        "fpn/posthoc_3x3_p2/b": [7, 7],
    } == {name: array.tolist() for name, array in found.items()}
    convs = {f"roi_heads.box_head.{name}.bias": one for name in ("conv1", "fc1")}
    assert {"fastrcnn/conv0/b", "fastrcnn/fc/b"} == set(detectron2.as_tensorpack(tmp_path, convs))
    for wrong in ("roi_heads.box_head.fc1.norm", "somewhere.weight"):
        with pytest.raises(ConfigError, match=f"has {wrong}, for which a detector with a pyramid has no place"):
            detectron2.as_tensorpack(tmp_path, {wrong: one})


def test_statistics_in_affines_are_told_by_a_stem_that_remembers_nothing(tmp_path: Path) -> None:
    """A mean that is not 0, or a variance that is not 1, was learned; then the settings may be any."""
    stem = "backbone.bottom_up.stem.conv1.norm"

    def told(mean: float, variance: float, *settings: str) -> None:
        arrays = {f"{stem}.running_mean": np.full(2, mean, "f"), f"{stem}.running_var": np.full(2, variance, "f")}
        detectron2.check_settings(tmp_path, arrays, apply_settings(Config(), settings))

    fitting = "BACKBONE.STRIDE_1X1=True", "PREPROC.PIXEL_STD=1.,1.,1."
    for mean, variance in ((0.5, 1), (0, 1.5), (0.5, 1.5)):
        told(mean, variance)
    told(0, 1, *fitting)
    for settings in (fitting[:1], fitting[1:], (*fitting, "BACKBONE.TF_PAD_MODE=True")):
        with pytest.raises(ConfigError, match="its statistics are folded into its affines"):
            told(0, 1, *settings)
    detectron2.check_settings(tmp_path, {f"{stem}.running_mean": np.zeros(2, "f")}, Config())
    detectron2.check_settings(tmp_path, {f"{stem}.running_var": np.ones(2, "f")}, Config())
    near = {"pixel_mean": np.array([103.5301, 116.28, 123.675]), "pixel_std": np.array([57.375, 57.12, 58.395])}
    detectron2.check_settings(tmp_path, near, Config())
    with pytest.raises(ConfigError, match=r"give PREPROC.PIXEL_MEAN=123.675,116.28,103.6$"):
        detectron2.check_settings(tmp_path, near | {"pixel_mean": np.array([103.6, 116.28, 123.675])}, Config())


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("stem/kernel", "conv0/W"),
        ("stem_bn/gamma", "conv0/bn/gamma"),
        ("stem_bn/beta", "conv0/bn/beta"),
        ("stem_bn/moving_mean", "conv0/bn/mean/EMA"),
        ("stem_bn/moving_variance", "conv0/bn/variance/EMA"),
        ("stage0/block2/conv0/kernel", "group0/block2/conv1/W"),
        ("stage3/block10/conv2/kernel", "group3/block10/conv3/W"),
        ("stage1/block0/bn1/gamma", "group1/block0/conv2/bn/gamma"),
        ("stage1/block0/shortcut/kernel", "group1/block0/convshortcut/W"),
        ("stage1/block0/shortcut_bn/moving_mean", "group1/block0/convshortcut/bn/mean/EMA"),
        ("stem/momentum", None),
        ("stage1/block0/conv0/momentum", None),
        ("dense/kernel", None),
    ],
)
def test_each_layer_of_the_classifier_has_its_place(name: str, target: str | None) -> None:
    """Its dense layer and what belongs to the optimizer have none."""
    assert target == classifier._target(name)


def test_the_classifiers_backbone_sees_its_colours_and_its_epsilon() -> None:
    """The first kernel is turned to blue green red; the difference of what norms add is in the variance."""
    kernel = np.arange(3, dtype=np.float32).reshape(1, 1, 3, 1)
    found = classifier.as_backbone(
        {"stem/kernel": kernel, "stem_bn/moving_variance": np.ones(1, "f"), "dense/kernel": np.zeros(1)}
    )
    assert {"conv0/W", "conv0/bn/variance/EMA"} == set(found)
    assert [2, 1, 0] == found["conv0/W"].ravel().tolist()
    assert 1 + 1e-4 - 1e-5 == pytest.approx(float(found["conv0/bn/variance/EMA"][0]), abs=1e-7)
    assert classifier.is_classifier({"stem/kernel": kernel}) and not classifier.is_classifier({"conv0/W": kernel})


@pytest.mark.parametrize("left_out", [None, 0, 1, 2, 3])
def test_the_classifiers_settings_are_needed_all(left_out: int | None) -> None:
    """Padding, stride, mean and deviation as it was trained with; one that is another is refused."""
    fitting = [
        ("BACKBONE.TF_PAD_MODE=True", "BACKBONE.TF_PAD_MODE=False"),
        ("BACKBONE.STRIDE_1X1=False", "BACKBONE.STRIDE_1X1=True"),
        ("PREPROC.PIXEL_MEAN=121.,115.,100.", "PREPROC.PIXEL_MEAN=121.,115.,101."),
        ("PREPROC.PIXEL_STD=70.,68.,71.", "PREPROC.PIXEL_STD=70.,68.,72."),
    ]
    config = apply_settings(Config(), [words[i == left_out] for i, words in enumerate(fitting)])
    if left_out is None:
        classifier.check_settings(config)
    else:
        with pytest.raises(ConfigError, match=r"need BACKBONE.TF_PAD_MODE=True BACKBONE.STRIDE_1X1=False"):
            classifier.check_settings(config)


def test_rows_of_a_dense_layer_go_from_channels_first_to_channels_last_and_back() -> None:
    """Of the first that reads cells; all others stay."""
    rows = np.arange(49 * 3 * 2).reshape(147, 2)
    for name in ("fastrcnn/fc6/W", "fastrcnn/fc/W"):
        here = weights.to_nhwc(name, rows, (147, 2))
        cells = rows.reshape(3, 7, 7, 2)
        assert cells[2, 5, 3].tolist() == here.reshape(7, 7, 3, 2)[5, 3, 2].tolist()
        np.testing.assert_array_equal(rows, weights.to_nchw(name, here))
    for name in ("fastrcnn/fc7/W", "fastrcnn/fc6/b"):
        assert rows is weights.to_nhwc(name, rows, (147, 2)) and rows is weights.to_nchw(name, rows)


def test_what_else_is_in_a_file_is_left_out_unless_it_is_a_layers(tmp_path: Path) -> None:
    """Of the model's parts a layer more is another model; an optimizer's slot, a counter or another part is nothing."""
    shapes = {weights.RPN_BIAS: (12,)}
    more = {"rpn__box__W__Momentum": np.zeros(1), "global_step": np.zeros(1), "linear__W": np.zeros(1)}
    assert {weights.RPN_BIAS} == set(weights.model_weights(kept(tmp_path / "a.npz", **more), shapes, Config()))
    for part in ("W", "b", "gamma", "beta", "mean__EMA"):
        with pytest.raises(
            ConfigError, match=rf"has fpn/x/{part.replace('__', '/')}, for which this model has no place"
        ):
            weights.model_weights(kept(tmp_path / "b.npz", **{f"fpn__x__{part}": np.zeros(1)}), shapes, Config())
    boxes_alone = apply_settings(Config(), ["MODE_MASK=False"])
    masks = kept(tmp_path / "c.npz", maskrcnn__conv__W=np.zeros(1))
    assert {weights.RPN_BIAS} == set(weights.model_weights(masks, shapes, boxes_alone))
    with pytest.raises(ConfigError, match="has maskrcnn/conv/W, for which this model has no place"):
        weights.model_weights(masks, shapes, Config())


def test_an_export_says_the_order_of_its_heads_where_they_have_norms(tmp_path: Path) -> None:
    """And has its anchors where an npz's are; a place that cannot be written is said."""
    plain = apply_settings(Config(), ["RPN.NPZ_ANCHOR_CENTER=0.25"])
    weights.write_npz(tmp_path / "plain.npz", BIAS, plain)
    read = npz.read(tmp_path / "plain.npz")
    assert {weights.RPN_BIAS} == set(read)
    share, roots = 0.25 * 4 / 32, np.sqrt([0.5, 1, 2])
    wanted = np.stack([share * roots, share / roots, 0 * roots, 0 * roots], 1).ravel()
    np.testing.assert_allclose(read[weights.RPN_BIAS], wanted, rtol=1e-6)
    heads = apply_settings(plain, ["FPN.MRCNN_HEAD_FUNC=maskrcnn_up4conv_gn_head"])
    weights.write_npz(tmp_path / "heads.npz", BIAS, heads)
    assert b"norm-relu" == bytes(npz.read(tmp_path / "heads.npz")[weights.GN_HEAD_ORDER])
    back = weights.model_weights(tmp_path / "heads.npz", {weights.RPN_BIAS: (12,)}, heads)
    np.testing.assert_allclose(back[weights.RPN_BIAS], 0, atol=1e-7)
    other = apply_settings(heads, ["FPN.GN_HEAD_ORDER=relu-norm"])
    with pytest.raises(
        ConfigError, match=r"heads are norm-relu \(it says so\), not relu-norm: give FPN.GN_HEAD_ORDER="
    ):
        weights.model_weights(tmp_path / "heads.npz", {weights.RPN_BIAS: (12,)}, other)
    with pytest.raises(
        TrainerError, match=r"plain.npz/a.npz cannot be written \(.*\): make room or give another --out"
    ):
        weights.write_npz(tmp_path / "plain.npz/a.npz", BIAS, plain)


def test_a_backbone_comes_from_what_was_not_trained_on_detection(tmp_path: Path) -> None:
    """Its own variables and no others; one of any head makes the file a detector's."""
    shapes: dict[str, tuple[int, ...]] = {"conv0/W": (1,), "group0/a/W": (2,), "fpn/a/W": (3,)}
    arrays = {"conv0/W": np.zeros(1, "f"), "group0/a/W": np.ones(2, "f"), "linear/W": np.zeros(9, "f")}
    np.savez(tmp_path / "a.npz", **arrays)
    assert {"conv0/W", "group0/a/W"} == set(weights.backbone_weights(tmp_path / "a.npz", shapes, Config()))
    for head in weights.HEADS:
        np.savez(tmp_path / "b.npz", **arrays, **{f"{head}x": np.zeros(1)})
        with pytest.raises(ConfigError, match="was trained on detection already"):
            weights.backbone_weights(tmp_path / "b.npz", shapes, Config())
    np.savez(tmp_path / "c.npz", **arrays, **{"group4/a/W": np.zeros(1), "group3/a/other": np.zeros(1)})
    weights.backbone_weights(tmp_path / "c.npz", shapes, Config())

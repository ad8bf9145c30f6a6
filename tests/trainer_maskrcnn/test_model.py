"""The whole model: parameters like the reference's, the same gradient however images are spread, weights from npz."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.trainer_maskrcnn.helpers import (
    NOTHING_DRAWN,
    REDUCED,
    ROOT,
    assert_same_gradient,
    evaluate,
    fixed_weights,
    plain,
)
from trainer.coco.annotations import read_set
from trainer.common.checkpoints import npz
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.files.errors import ConfigError
from trainer.maskrcnn import boxes, weights
from trainer.maskrcnn.backbone import resnet
from trainer.maskrcnn.batch import Batch
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.detector import Detector, assign, session_config
from trainer.maskrcnn.examples import collate, training_example
from trainer.maskrcnn.heads import _convs
from trainer.maskrcnn.keys import apply_settings
from trainer.maskrcnn.layers import tf1
from trainer.maskrcnn.model import REGION_STEP, losses, make_layers


def published_shapes(blocks: tuple[int, ...] = (3, 4, 6, 3)) -> dict[str, tuple[int, ...]]:
    """Names and shapes of tensorpack's COCO-MaskRCNN-R50FPN weights, written down from the papers' layer tables."""
    shapes: dict[str, tuple[int, ...]] = {}

    def conv_bn(name: str, kernel: int, inputs: int, outputs: int) -> None:
        shapes[f"{name}/W"] = (kernel, kernel, inputs, outputs)
        for part in ("gamma", "beta", "mean/EMA", "variance/EMA"):
            shapes[f"{name}/bn/{part}"] = (outputs,)

    def conv(name: str, *shape: int) -> None:
        shapes[f"{name}/W"], shapes[f"{name}/b"] = shape, (shape[-1],)

    conv_bn("conv0", 7, 3, 64)
    inputs = 64
    for group, count in enumerate(blocks):
        width = 64 * 2**group
        for block in range(count):
            name = f"group{group}/block{block}"
            conv_bn(f"{name}/conv1", 1, inputs, width)
            conv_bn(f"{name}/conv2", 3, width, width)
            conv_bn(f"{name}/conv3", 1, width, 4 * width)
            if block == 0:
                conv_bn(f"{name}/convshortcut", 1, inputs, 4 * width)
            inputs = 4 * width
    for level in (2, 3, 4, 5):
        conv(f"fpn/lateral_1x1_c{level}", 1, 1, 64 * 2**level, 256)
        conv(f"fpn/posthoc_3x3_p{level}", 3, 3, 256, 256)
    conv("rpn/conv0", 3, 3, 256, 256)
    conv("rpn/class", 1, 1, 256, 3)
    conv("rpn/box", 1, 1, 256, 12)
    conv("fastrcnn/fc6", 256 * 7 * 7, 1024)
    conv("fastrcnn/fc7", 1024, 1024)
    conv("fastrcnn/outputs/class", 1024, 81)
    conv("fastrcnn/outputs/box", 1024, 324)
    for k in range(4):
        conv(f"maskrcnn/fcn{k}", 3, 3, 256, 256)
    shapes["maskrcnn/deconv/W"], shapes["maskrcnn/deconv/b"] = (2, 2, 256, 256), (256,)
    conv("maskrcnn/conv", 1, 1, 256, 80)
    return shapes


@pytest.fixture(scope="module")
def full() -> Detector:
    """R50-FPN for COCO's 80 categories."""
    return Detector(apply_settings(Config(), ["DATA.NUM_CATEGORY=80"]), threads=1)


def test_names_shapes_and_count_are_the_references(full: Detector) -> None:
    expected = published_shapes()
    ours = {n: s for n, s in full.shapes.items() if weights.is_model_variable(n)}

    assert ours == expected
    # torchvision's maskrcnn_resnet50_fpn has 44,401,393, of 91 classes where we have 81 and 91 masks where we have 80.
    learned = sum(int(np.prod(s)) for n, s in ours.items() if n.endswith(("/W", "/b")))
    assert 44_401_393 - (10 + 4 * 10) * (1024 + 1) - 11 * (256 + 1) == learned


def test_resnet_101_has_the_published_blocks() -> None:
    config = apply_settings(Config(), ["DATA.NUM_CATEGORY=80", "BACKBONE.RESNET_NUM_BLOCKS=3,4,23,3"])
    ours = {n: s for n, s in Detector(config, threads=1).shapes.items() if weights.is_model_variable(n)}
    assert ours == published_shapes((3, 4, 23, 3))


def test_an_npz_of_the_references_layout_loads_and_its_dense_rows_are_reordered(full: Detector, tmp_path: Path) -> None:
    """The reference flattens channel first; the product with a pooled region must be the same."""
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=s).astype(np.float32) for n, s in published_shapes().items()}
    np.savez(tmp_path / "theirs.npz", **arrays)
    loaded = weights.model_weights(tmp_path / "theirs.npz", full.shapes, full.config)
    region = rng.normal(size=(1, 256, 7, 7)).astype(np.float32)
    full.assign(loaded)

    theirs = region.reshape(1, -1) @ arrays["fastrcnn/fc6/W"]
    ours = region.transpose(0, 2, 3, 1).reshape(1, -1) @ full.weights()["fastrcnn/fc6/W"]
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
    weights.write_npz(tmp_path / "ours.npz", loaded, full.config)
    again = npz.read(tmp_path / "ours.npz")
    assert set(again) == set(arrays)
    assert all(np.allclose(again[n], arrays[n], atol=1e-6) for n in arrays)


@pytest.mark.parametrize(("center", "here"), [(0.0, 0.5), (0.25, 0.5), (0.5, 0.5), (0.0, 0.0), (0.5, 0.0)])
def test_an_npzs_anchors_predict_the_same_boxes_here(center: float, here: float) -> None:
    """Its offsets from anchors anywhere in their cells, and ours after the conversion, on every level."""
    config = apply_settings(Config(), [f"RPN.NPZ_ANCHOR_CENTER={center}", f"RPN.ANCHOR_CENTER={here}"])
    theirs = np.random.default_rng(0).normal(size=(5, 1, 12)).astype(np.float32)
    ours = (theirs - weights.anchor_shift(config)).reshape(5, -1, 4)
    for level, (stride, size) in enumerate(zip((4, 8, 16, 32, 64), config.rpn.anchor_sizes, strict=True)):
        width, height = size / np.sqrt([0.5, 1, 2]), size * np.sqrt([0.5, 1, 2])
        anchors = np.stack([-width, -height, width, height], 1) / 2 + 3 * stride + center * stride
        of_ours = evaluate(
            lambda s=stride, z=size: boxes.anchors(tf.constant(4), tf.constant(4), s, (z,), (0.5, 1.0, 2.0), here)
        )
        found = evaluate(boxes.decode, ours[level], of_ours[-3:])
        expected = evaluate(boxes.decode, theirs[level].reshape(-1, 4), anchors.astype(np.float32))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_anchors_that_cannot_be_converted_are_refused() -> None:
    """Where sizes are not in proportion to the strides the shift differs between levels, and one head serves them all."""
    with pytest.raises(ConfigError, match=r"not in proportion to the strides .*RPN.NPZ_ANCHOR_CENTER=0.5"):
        weights.anchor_shift(apply_settings(Config(), ["RPN.ANCHOR_SIZES=16,32,64,96,128"]))
    ours = apply_settings(Config(), ["RPN.ANCHOR_SIZES=16,32,64,96,128", "RPN.NPZ_ANCHOR_CENTER=0.5"])
    assert not weights.anchor_shift(ours).any()


@pytest.mark.parametrize("order", ["norm-relu", "relu-norm"])
def test_group_norm_heads_follow_the_order_and_an_npz_of_another_is_refused(tmp_path: Path, order: str) -> None:
    """Convolution, then ReLU and norm in either order, against NumPy; tensorpack's npz has them the second way."""
    other = {"norm-relu": "relu-norm", "relu-norm": "norm-relu"}[order]
    heads = ["FPN.MRCNN_HEAD_FUNC=maskrcnn_up4conv_gn_head", f"FPN.GN_HEAD_ORDER={order}"]
    config = apply_settings(Config(), ["DATA.NUM_CATEGORY=2", *heads])
    x = np.random.default_rng(0).normal(size=(2, 5, 5, 64)).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        found = _convs(tf.constant(x), "fcn", 64, order, make_layers(config, training=False).but(norm="None"))
        session.run(tf1.global_variables_initializer())
        kernels = session.run({v.op.name: v for v in tf1.global_variables()})
        found = session.run(found)
        for k in range(4):
            x = session.run(tf.nn.conv2d(tf.constant(x), kernels[f"fcn{k}/W"], 1, "SAME"))
            x = np.maximum(x, 0) if order == "relu-norm" else x
            groups = x.reshape(2, 5, 5, 32, 2)
            deviation = np.sqrt(groups.var((1, 2, 4), keepdims=True) + 1e-5)
            x = ((groups - groups.mean((1, 2, 4), keepdims=True)) / deviation).reshape(x.shape)
            x = np.maximum(x, 0) if order == "norm-relu" else x
    np.testing.assert_allclose(found, x, atol=1e-3)

    arrays = {weights.RPN_BIAS: np.zeros(12, np.float32)}
    shapes = {weights.RPN_BIAS: (12,)}
    weights.write_npz(tmp_path / "ours.npz", arrays, config)
    assert {weights.RPN_BIAS} == set(weights.model_weights(tmp_path / "ours.npz", shapes, config))
    with pytest.raises(ConfigError, match=f"give FPN.GN_HEAD_ORDER={order}"):
        weights.model_weights(tmp_path / "ours.npz", shapes, apply_settings(config, [f"FPN.GN_HEAD_ORDER={other}"]))
    np.savez(tmp_path / "theirs.npz", **arrays)
    if order == "relu-norm":
        weights.model_weights(tmp_path / "theirs.npz", shapes, config)
    else:
        with pytest.raises(ConfigError, match=r"are relu-norm \(as tensorpack's do"):
            weights.model_weights(tmp_path / "theirs.npz", shapes, config)


def test_imagenet_weights_fill_the_backbone_and_only_it(full: Detector, tmp_path: Path) -> None:
    arrays = {n: np.full(s, 0.5, np.float32) for n, s in published_shapes().items() if n.startswith(weights.BACKBONE)}
    np.savez(tmp_path / "imagenet.npz", **arrays, **{"linear/W": np.zeros((2048, 1000), np.float32)})
    assert set(weights.backbone_weights(tmp_path / "imagenet.npz", full.shapes, Config())) == set(arrays)


def test_our_own_classifiers_checkpoint_gives_the_same_features(tmp_path: Path) -> None:
    """The detector's backbone sees what `trainer.resnet50` learned, its batch norms and first kernel included."""
    classifier = ROOT / "tests/trainer_maskrcnn/classifier_features.py"
    done = plain([str(classifier), str(tmp_path)])
    checkpoint = CheckpointFolder(tmp_path).arrays_file(1)
    assert done.returncode == 0, done.stderr[-2000:]
    config = apply_settings(
        Config(),
        [
            "DATA.NUM_CATEGORY=2",
            "BACKBONE.TF_PAD_MODE=True",
            "PREPROC.PIXEL_MEAN=121.,115.,100.",
            "PREPROC.PIXEL_STD=70.,68.,71.",
        ],
    )
    with np.load(tmp_path / "features.npz") as file:
        image, expected = file["image"], file["features"]
    with tf.Graph().as_default(), tf1.Session() as session:
        normal = tf.constant((image[..., ::-1] - np.array([100.0, 115.0, 121.0])) / [71.0, 68.0, 70.0], tf.float32)
        found = resnet(normal, config.backbone, make_layers(config, training=False))[-1]
        variables = {v.op.name: v for v in tf1.global_variables()}
        shapes = {n: tuple(v.shape.as_list()) for n, v in variables.items()}
        assign(session, variables, weights.backbone_weights(checkpoint, shapes, config))
        np.testing.assert_allclose(session.run(found), expected, rtol=1e-2, atol=1e-3 * np.abs(expected).max())
    with pytest.raises(ConfigError, match=r"need BACKBONE.TF_PAD_MODE=True"):
        weights.backbone_weights(checkpoint, shapes, Config())


def test_weights_that_do_not_fit_are_refused(full: Detector, tmp_path: Path) -> None:
    """COCO-trained weights must be asked for; missing and misshapen variables are named."""
    arrays = {n: np.zeros(s, np.float32) for n, s in published_shapes().items()}
    np.savez(tmp_path / "coco.npz", **arrays)
    with pytest.raises(ConfigError, match="start from these knowingly with --load"):
        weights.backbone_weights(tmp_path / "coco.npz", full.shapes, Config())
    np.savez(tmp_path / "less.npz", **{n: a for n, a in arrays.items() if n != "rpn/box/W"})
    with pytest.raises(ConfigError, match=r"lacks rpn/box/W: it is of another model"):
        weights.model_weights(tmp_path / "less.npz", full.shapes, full.config)
    deeper = {f"group2/block6/conv{k}/W": np.zeros(1, np.float32) for k in (1, 2, 3)}
    np.savez(tmp_path / "deeper.npz", **arrays, **deeper, **{"rpn/box/W/Momentum": np.zeros(1, np.float32)})
    with pytest.raises(ConfigError, match="group2/block6/conv1/W and 2 more, for which this model has no place"):
        weights.model_weights(tmp_path / "deeper.npz", full.shapes, full.config)
    np.savez(
        tmp_path / "imagenet101.npz", **{n: a for n, a in arrays.items() if n.startswith(weights.BACKBONE)}, **deeper
    )
    with pytest.raises(ConfigError, match="group2/block6/conv1/W and 2 more, for which this model has no place"):
        weights.backbone_weights(tmp_path / "imagenet101.npz", full.shapes, full.config)
    np.savez(tmp_path / "other.npz", **{**arrays, "rpn/box/W": np.zeros((1, 1, 256, 8), np.float32)})
    with pytest.raises(ConfigError, match=r"rpn/box/W is \(1, 1, 256, 8\), this model has \(1, 1, 256, 12\)"):
        weights.model_weights(tmp_path / "other.npz", full.shapes, full.config)
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(ConfigError, match="cannot be read as weights"):
        npz.read(tmp_path / "text.npz")


class Gradients:
    """The gradient of a batch of a fixed size, for one set of weights."""

    def __init__(self, config: Config, batch_size: int, device: str = "GPU") -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf1.set_random_seed(1)
            specs = Batch.specs(batch_size)
            self.holders = [tf1.placeholder(s.dtype, s.shape) for s in specs]
            found = losses(Batch(*self.holders), config, make_layers(config, training=True, device=device))
            self.losses = {k: v for k, v in found.items() if k != "fg_rois"}
            self.variables = {v.op.name: v for v in tf1.global_variables()}
            learned = tf1.trainable_variables()
            self.outputs = dict(
                zip(
                    [v.op.name for v in learned],
                    map(tf.convert_to_tensor, tf.gradients(tf.add_n(list(self.losses.values())), learned)),
                    strict=True,
                )
            )
            self.session = tf1.Session(graph=self.graph, config=session_config(threads=1))
            self.session.run(tf1.global_variables_initializer())

    def __call__(self, arrays: tuple[np.ndarray, ...], values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assign(self.session, self.variables, values)
        found: dict[str, np.ndarray] = self.session.run(self.outputs, dict(zip(self.holders, arrays, strict=True)))
        return found


def feed(pictures: list[Any], config: Config, weight: float) -> tuple[np.ndarray, ...]:
    examples = [None if p is None else training_example(p, config, epoch=0) for p in pictures]
    seeds = np.array([[7, 0 if p is None else p.id] for p in pictures], np.int32)
    return collate(examples, config, weight=weight, seeds=seeds)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(("MODE_MASK=True",), id="mask"),
        pytest.param(("FPN.CASCADE=True",), id="cascade"),
        pytest.param(("MODE_MASK=False",), id="faster"),
    ],
)
def test_a_batch_of_two_has_the_mean_gradient_of_its_images(shapes: Path, settings: tuple[str, ...]) -> None:
    """One rank with two images and two ranks with one image learn the same: images do not mix, an empty one adds 0.

    `NOTHING_DRAWN` says why no proposal is left out.
    """
    config = apply_settings(Config(), [*NOTHING_DRAWN, "DATA.NUM_CATEGORY=3", *settings])
    first, second = [p for p in read_set(shapes, "train2017").pictures if p.objects][:2]
    one, two = Gradients(config, 1), Gradients(config, 2)
    values = fixed_weights({n: tuple(v.shape.as_list()) for n, v in one.variables.items()})
    together = two(feed([first, second], config, 0.5), values)
    apart = [one(feed([p], config, 1.0), values) for p in (first, second)]
    alone = two(feed([first, None], config, 1.0), values)

    assert sum(np.abs(g).sum() for g in together.values()) > 0
    for name, gradient in together.items():
        assert_same_gradient(gradient, (apart[0][name] + apart[1][name]) / 2, name)
        assert_same_gradient(alone[name], apart[0][name], name)


def test_a_cpu_learns_what_a_gpu_learns(shapes: Path) -> None:
    """Regions that the mask head is padded with, more of them on a GPU, have no part in any gradient."""
    config = apply_settings(Config(), [*NOTHING_DRAWN, "DATA.NUM_CATEGORY=3"])
    picture = next(p for p in read_set(shapes, "train2017").pictures if p.objects)
    on_gpu, on_cpu = (Gradients(config, 1, device) for device in ("GPU", "CPU"))
    values = fixed_weights({n: tuple(v.shape.as_list()) for n, v in on_gpu.variables.items()})
    theirs, ours = (g(feed([picture], config, 1.0), values) for g in (on_gpu, on_cpu))

    assert np.abs(theirs["maskrcnn/fcn0/W"]).sum() > 0
    for name, gradient in ours.items():
        assert_same_gradient(gradient, theirs[name], name)


def test_an_image_without_objects_has_a_finite_gradient(shapes: Path) -> None:
    """No object, no foreground, no mask: the losses stay numbers and still teach what background is."""
    config = apply_settings(Config(), [*REDUCED, "DATA.NUM_CATEGORY=3"])
    empty = next(p for p in read_set(shapes, "train2017").pictures if not p.instances)
    one = Gradients(config, 1)
    found = one(feed([empty], config, 1.0), {})
    assert all(np.isfinite(g).all() for g in found.values())
    assert np.abs(found["rpn/class/b"]).sum() > 0
    assert np.abs(found["maskrcnn/conv/W"]).sum() == 0


HEADS = (
    "FPN.FRCNN_HEAD_FUNC=fastrcnn_4conv1fc_gn_head",
    "FPN.MRCNN_HEAD_FUNC=maskrcnn_up4conv_gn_head",
    "FPN.FRCNN_CONV_HEAD_DIM=32",
)
AS_TENSORPACK = ("RPN.ANCHOR_CENTER=0", "RPN.TIED_ANCHORS=False", "FRCNN.BOX_LOSS=l1", "MRCNN.SOFT_TARGETS=True")
MSRA = ("BACKBONE.TF_PAD_MODE=True", "BACKBONE.STRIDE_1X1=True")
VARIANTS = {
    "bfloat16": ("TRAIN.PRECISION=bfloat16",),
    "SyncBN": ("BACKBONE.NORM=SyncBN",),
    "conv heads": HEADS,
    "MSRA": MSRA,
    "as tensorpack": AS_TENSORPACK,
}
TOGETHER = (*(s for settings in VARIANTS.values() for s in settings), "FPN.CASCADE=True")


@pytest.mark.parametrize(
    "settings",
    [
        *(pytest.param(s, id=name, marks=pytest.mark.long) for name, s in VARIANTS.items()),
        pytest.param(TOGETHER, id="all of them, in cascade"),
        pytest.param(("MODE_FPN=False", "RPN.HEAD_DIM=64", "TRAIN.PRECISION=float16"), id="C4 in float16"),
    ],
)
def test_every_variant_learns_and_detects(shapes: Path, settings: tuple[str, ...]) -> None:
    """Each option builds, gives a finite gradient to every weight, and its detector sees boxes inside the image."""
    config = apply_settings(Config(), [*REDUCED, "DATA.NUM_CATEGORY=3", "TEST.RESULT_SCORE_THRESH=0.0", *settings])
    picture = next(p for p in read_set(shapes, "train2017").pictures if p.objects)
    one = Gradients(config, 1)
    found = one(feed([picture], config, 1.0), {})
    assert all(np.isfinite(g).all() for g in found.values())
    assert not [n for n, g in found.items() if n.endswith("/W") and not np.abs(g).sum()]
    assert config.mode_fpn or "group3/block0/conv1/W" in found
    detector = Detector(config, threads=1)
    assert REGION_STEP["GPU" if tf.config.list_physical_devices("GPU") else "CPU"] == detector.layers.region_step
    seen = detector.detect(np.zeros((70, 90, 3), np.uint8))
    assert (seen.boxes >= 0).all()
    assert (seen.boxes <= [90.001, 70.001, 90.001, 70.001]).all()

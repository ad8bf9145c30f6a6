"""A detector written as ONNX, by onnxruntime, or as a SavedModel computes what the detector does."""

import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow as tf
from onnx import TensorProto, helper

from benchmarks import tensorpack_scene
from benchmarks.tensorpack_scene import CATEGORIES, NORMED, Scene
from tests.trainer_maskrcnn.helpers import evaluate
from trainer.common.checkpoints import onnx_file
from trainer.maskrcnn import export, onnx_graph, onnx_layers, roi
from trainer.maskrcnn.backbone import pyramid, resnet
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.config_network import STRIDES
from trainer.maskrcnn.detector import Detector
from trainer.maskrcnn.heads import box_head, mask_head
from trainer.maskrcnn.keys import apply_settings
from trainer.maskrcnn.layers import Layers, tf1
from trainer.maskrcnn.onnx_layers import Net

SCENE = Scene(name="normed", settings=NORMED)
SETTINGS = [
    *SCENE.words(),
    f"DATA.NUM_CATEGORY={CATEGORIES}",
    "BACKBONE.TF_PAD_MODE=True",
    "FPN.GN_HEAD_ORDER=relu-norm",
]

SCORED = re.compile(r"(rpn/(class|box)|outputs/(class|box))/[Wb]$")
"""What scores and moves anchors and regions."""


@pytest.fixture(scope="module")
def detector() -> Detector:
    """With drawn weights, TensorFlow's padding and tensorpack's heads."""
    found = Detector(apply_settings(Config(), [*SETTINGS, "RPN.MIN_SIZE=-1"]), threads=1)
    found.assign(tensorpack_scene.weights(found.shapes, SCENE.seed))
    return found


@pytest.fixture(scope="module")
def blind(detector: Detector) -> Detector:
    """Whose weights see nothing: all regions of a category have one score, and two categories the same."""
    found = Detector(detector.config, threads=1)
    weights = {n: np.zeros_like(w) if SCORED.search(n) else w for n, w in detector.weights().items()}
    found.assign({**weights, "fastrcnn/outputs/class/b": np.array([0.5, 1, 0, 1, 0.2], np.float32)})
    return found


def run(path: Path, image: Any) -> dict[str, Any]:
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX's runtime is not installed: make onnx gets it")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = ("boxes", "scores", "labels", "masks")
    return dict(zip(names, session.run(names, {"image": image[:, :, ::-1]}), strict=True))


def test_an_onnx_file_sees_what_the_detector_sees(detector: Detector, tmp_path: Path) -> None:
    """On an image that needs no resizing."""
    image = tensorpack_scene.image(SCENE)
    onnx_graph.write(tmp_path / "w.onnx", detector.config, detector.weights(), (SCENE.height, SCENE.width))
    ours, theirs = run(tmp_path / "w.onnx", image), detector.detect(image)

    assert 5 < len(ours["scores"])
    np.testing.assert_allclose(ours["scores"], theirs.scores, atol=1e-4)
    np.testing.assert_array_equal(ours["labels"], theirs.labels)
    np.testing.assert_allclose(ours["boxes"], theirs.boxes, atol=1e-4 * max(image.shape))
    np.testing.assert_allclose(ours["masks"], theirs.masks, atol=1e-4)


@pytest.mark.parametrize("size", [(50, 70), (10, 12), (1, 1), (140, 180), (129, 27)])
def test_an_onnx_file_resizes_to_the_bytes_of_the_trainer(
    size: tuple[int, int], detector: Detector, tmp_path: Path
) -> None:
    """Up and down; boxes are in the pixels of the image that is given. Scores that differ by rounding may change places."""
    image = tensorpack_scene.image(Scene(name="other", height=size[0], width=size[1]))
    onnx_graph.write(tmp_path / "w.onnx", detector.config, detector.weights(), size)
    ours, theirs = run(tmp_path / "w.onnx", image), detector.detect(image)

    np.testing.assert_allclose(ours["scores"], theirs.scores, atol=1e-5)
    assert 5 < len(theirs.scores)
    for box, score, label in zip(theirs.boxes, theirs.scores, theirs.labels, strict=True):
        near = (np.abs(ours["scores"] - score) < 1e-5) & (ours["labels"] == label)
        assert np.abs(ours["boxes"][near] - box).max(1).min() < max(1e-4 * max(size), 1e-3)


@pytest.mark.parametrize("shade", ["one colour", "enlarged", "tiny"])
def test_equal_scores_are_in_one_order(shade: str, blind: Detector, tmp_path: Path) -> None:
    """Nothing but the order of what ties decides what is found, in both alike."""
    image = {
        "one colour": np.full((70, 90, 3), 128, np.uint8),
        "enlarged": np.ascontiguousarray(tensorpack_scene.image(SCENE)[:23, :29]),
        "tiny": np.full((3, 2, 3), 7, np.uint8),
    }[shade]
    onnx_graph.write(tmp_path / "w.onnx", blind.config, blind.weights(), (image.shape[0], image.shape[1]))
    ours, theirs = run(tmp_path / "w.onnx", image), blind.detect(image)

    assert len(set(theirs.scores.tolist())) < len(theirs.scores) / 2
    np.testing.assert_array_equal(ours["labels"], theirs.labels)
    np.testing.assert_allclose(ours["boxes"], theirs.boxes, atol=1e-3)
    np.testing.assert_allclose(ours["scores"], theirs.scores, atol=1e-6)


def test_a_saved_model_sees_what_the_detector_sees(detector: Detector, blind: Detector, tmp_path: Path) -> None:
    """On images of any size, also where nothing but the order of equal scores decides."""
    for name, model in (("sees", detector), ("blind", blind)):
        export.export(model.config, model.weights(), tmp_path / name)
        serve = tf.saved_model.load(str(tmp_path / name)).signatures["serving_default"]
        for height, width in ((70, 90), (10, 12), (140, 180), (129, 27)):
            image = tensorpack_scene.image(Scene(name="other", height=height, width=width))
            ours, theirs = serve(image=tf.constant(image[:, :, ::-1])), model.detect(image)

            assert 5 < len(theirs.scores)
            np.testing.assert_allclose(ours["scores"], theirs.scores, atol=1e-5)
            np.testing.assert_array_equal(ours["labels"], theirs.labels)
            np.testing.assert_allclose(ours["boxes"], theirs.boxes, atol=1e-4 * max(image.shape))
            np.testing.assert_allclose(ours["masks"], theirs.masks, atol=1e-4)


def test_an_onnx_file_reads_a_box_of_any_size_from_its_level(tmp_path: Path) -> None:
    """Up to those that are larger than the last level is meant for, in the given order."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX's runtime is not installed: make onnx gets it")
    rng, names = np.random.default_rng(2), ["p2", "p3", "p4", "p5"]
    levels = [rng.normal(size=(1, 2048 // s, 2048 // s, 1)).astype("f") for s in STRIDES[:4]]
    rois = np.float32([[5, 7, 5 + side, 7 + side] for side in (1900, 30, 111, 113, 950, 223, 225, 0, 447, 449, 890)])
    expected = evaluate(
        lambda *given: roi.pyramid_roi_align(
            given[:4], given[4], tf.zeros_like(given[4][:, 0], tf.int32), STRIDES[:4], 7
        ),
        *levels,
        rois,
    )

    net = Net(config=Config(), arrays={})
    net.graph.add("Identity", [onnx_graph._pooled(net, names, "rois", 7)], "pooled")
    kinds = [*((n, f.transpose(0, 3, 1, 2).shape) for n, f in zip(names, levels, strict=True)), ("rois", rois.shape)]
    told = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in kinds]
    found = helper.make_tensor_value_info("pooled", TensorProto.FLOAT, [len(rois), 1, 7, 7])
    onnx_file.write(tmp_path / "pooled.onnx", net.graph, "pooled", told, [found], onnx_graph.OPSET)
    session = onnxruntime.InferenceSession(tmp_path / "pooled.onnx", providers=["CPUExecutionProvider"])
    given = {n: f.transpose(0, 3, 1, 2) for n, f in zip(names, levels, strict=True)} | {"rois": rois}
    np.testing.assert_allclose(session.run(None, given)[0].transpose(0, 2, 3, 1), expected, atol=1e-4)


SHALLOW = ("BACKBONE.CHANNELS=8", "BACKBONE.RESNET_NUM_BLOCKS=1,2,1,1", "FPN.NUM_CHANNEL=8", "DATA.NUM_CATEGORY=2")


@pytest.mark.parametrize(
    "settings",
    [
        ("BACKBONE.NORM=None",),
        ("BACKBONE.NORM=None", "BACKBONE.TF_PAD_MODE=True", "FPN.NORM=GN"),
        ("BACKBONE.NORM=GN", "BACKBONE.STRIDE_1X1=True"),
        ("BACKBONE.STRIDE_1X1=True", "BACKBONE.TF_PAD_MODE=True"),
    ],
)
def test_an_onnx_pyramid_has_the_maps_of_the_detector(settings: tuple[str, ...], tmp_path: Path) -> None:
    """Five levels of a shallow backbone, whatever its norm, its pads and its strides."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX's runtime is not installed: make onnx gets it")
    config = apply_settings(Config(), [*SHALLOW, *settings])
    images = np.random.default_rng(0).normal(size=(1, 64, 96, 3)).astype("f")

    def all_of_it(x: tf.Tensor) -> Any:
        layers = Layers(training=False)
        maps = resnet(tf.ensure_shape(x, [1, None, None, 3]), config.backbone, layers)
        return pyramid(maps, config.fpn, layers), {v.op.name: v for v in tf1.global_variables()}

    expected, arrays = evaluate(all_of_it, images)
    net = Net(config=config, arrays=arrays)
    for i, name in enumerate(onnx_layers.features(net, "x")):
        net.graph.add("Identity", [name], f"p{i}")
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 64, 96])
    outputs = [helper.make_tensor_value_info(f"p{i}", TensorProto.FLOAT, [1, 8, "h", "w"]) for i in range(5)]
    onnx_file.write(tmp_path / "p.onnx", net.graph, "pyramid", [given], outputs, onnx_graph.OPSET)
    session = onnxruntime.InferenceSession(tmp_path / "p.onnx", providers=["CPUExecutionProvider"])
    for ours, theirs in zip(session.run(None, {"x": images.transpose(0, 3, 1, 2)}), expected, strict=True):
        np.testing.assert_allclose(ours.transpose(0, 2, 3, 1), theirs, rtol=1e-3, atol=1e-3 * np.abs(theirs).max())


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("FPN.FRCNN_HEAD_FUNC=fastrcnn_4conv1fc_head",),
        ("FPN.FRCNN_HEAD_FUNC=fastrcnn_4conv1fc_gn_head", "FPN.MRCNN_HEAD_FUNC=maskrcnn_up4conv_gn_head"),
        ("FPN.MRCNN_HEAD_FUNC=maskrcnn_up4conv_gn_head", "FPN.GN_HEAD_ORDER=relu-norm"),
    ],
)
def test_onnx_heads_say_what_the_detector_s_say(settings: tuple[str, ...], tmp_path: Path) -> None:
    """Of regions as they are pooled: what becomes of their boxes, and their categories' masks."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX's runtime is not installed: make onnx gets it")
    few = ("FPN.FRCNN_FC_HEAD_DIM=8", "FPN.FRCNN_CONV_HEAD_DIM=8", "MRCNN.HEAD_DIM=8")
    config = apply_settings(Config(), [*SHALLOW, *few, *settings])
    rng = np.random.default_rng(1)
    small, large = rng.normal(size=(3, 7, 7, 8)).astype("f"), rng.normal(size=(3, 14, 14, 8)).astype("f")
    labels = np.array([2, 1, 2], np.int64)

    def all_of_it(small: tf.Tensor, large: tf.Tensor) -> Any:
        layers = Layers(training=False)
        with tf1.variable_scope("fastrcnn"):
            hidden = box_head(tf.ensure_shape(small, [None, 7, 7, 8]), config.fpn, layers)
        with tf1.variable_scope("maskrcnn"):
            logits = mask_head(tf.ensure_shape(large, [None, 14, 14, 8]), tf.constant(labels, tf.int32), config, layers)
        return hidden, tf.sigmoid(logits), {v.op.name: v for v in tf1.global_variables()}

    *expected, arrays = evaluate(all_of_it, small, large)
    net = Net(config=config, arrays=arrays)
    net.graph.add("Identity", [onnx_layers.box_head(net, "fastrcnn", "small")], "hidden")
    net.graph.add("Identity", [onnx_layers.mask_head(net, "large", "index")], "masks")
    kinds: dict[str, Any] = {
        "small": small.transpose(0, 3, 1, 2),
        "large": large.transpose(0, 3, 1, 2),
        "index": labels - 1,
    }
    told = [
        helper.make_tensor_value_info(n, TensorProto.INT64 if n == "index" else TensorProto.FLOAT, v.shape)
        for n, v in kinds.items()
    ]
    outputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
        for n, shape in (("hidden", [3, 8]), ("masks", [3, 28, 28]))
    ]
    onnx_file.write(tmp_path / "heads.onnx", net.graph, "heads", told, outputs, onnx_graph.OPSET)
    session = onnxruntime.InferenceSession(tmp_path / "heads.onnx", providers=["CPUExecutionProvider"])
    for ours, theirs in zip(session.run(None, kinds), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3 * np.abs(theirs).max())


@pytest.mark.parametrize(
    ("size", "wanted"), [((9, 7), (9, 7)), ((9, 7), (20, 5)), ((3, 50), (4, 17)), ((1, 1), (3, 2))]
)
def test_onnx_pixels_are_resized_to_the_bytes_of_cv2(
    size: tuple[int, int], wanted: tuple[int, int], tmp_path: Path
) -> None:
    """Up and down, also where nothing is to be done; then normalised, turned to blue green red, and 0 where padded."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX's runtime is not installed: make onnx gets it")
    image = np.random.default_rng(2).integers(0, 256, (*size, 3)).astype(np.uint8)
    net = Net(config=Config(), arrays={})
    net.graph.add("Identity", [onnx_graph._pixels(net, size, wanted, (32, 64))], "pixels")
    told = helper.make_tensor_value_info("image", TensorProto.UINT8, [*size, 3])
    output = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, [1, 3, 32, 64])
    onnx_file.write(tmp_path / "p.onnx", net.graph, "pixels", [told], [output], onnx_graph.OPSET)
    session = onnxruntime.InferenceSession(tmp_path / "p.onnx", providers=["CPUExecutionProvider"])
    (pixels,) = session.run(None, {"image": image})
    expected = np.zeros((1, 32, 64, 3))
    preproc = Config().preproc
    small = cv2.resize(image, wanted[::-1], interpolation=cv2.INTER_LINEAR).reshape(*wanted, 3)
    expected[0, : wanted[0], : wanted[1]] = (small - np.array(preproc.pixel_mean)) / np.array(preproc.pixel_std)
    np.testing.assert_allclose(pixels.transpose(0, 2, 3, 1)[..., ::-1], expected, atol=1e-5)

"""Detectron2's weights here beside what Detectron2 computes with them (`benchmarks/detectron2_numbers.py` stores it)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import detectron2_numbers as numbers
from benchmarks.tensorpack_scene import told
from trainer.common.files.errors import ConfigError
from trainer.maskrcnn import detectron2, model, onnx_graph, weights
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.detector import assign, session_config
from trainer.maskrcnn.examples import pad_to_shape
from trainer.maskrcnn.keys import apply_settings
from trainer.maskrcnn.layers import tf1
from trainer.maskrcnn.rpn import rpn_head

NUMBERS = Path(__file__).parent / "from_detectron2"
Arrays = dict[str, Any]


def stored(name: str) -> tuple[Arrays, Arrays]:
    """Detectron2's numbers, and the weights that it computed them with."""
    with np.load(NUMBERS / f"{name}.npz") as file:
        theirs = dict(file)
    return theirs, numbers.weights(json.loads(str(theirs.pop("shapes"))))


def config_of(name: str, *more: str) -> Config:
    found = next(m for m in numbers.MODELS if m.name == name)
    return apply_settings(Config(), [*found.words(), *more])


def apart(got: np.ndarray, expected: np.ndarray) -> float:
    """Of a tensor as `told` says it, in parts of its largest element."""
    return float(np.abs(told(got) - expected)[1:].max() / expected[1])


@pytest.mark.parametrize(
    "name", [m.name if m.name == "msra" else pytest.param(m.name, marks=pytest.mark.long) for m in numbers.MODELS]
)
def test_features_and_proposals_and_detections_are_detectron2s(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of frozen batch norm with the stride in the first 1x1, of group norm everywhere, of a cascade."""
    theirs, state = stored(name)
    np.savez(tmp_path / "w.npz", **state)
    config, seen = config_of(name), {}

    def heard(features: Any, *rest: Any) -> Any:
        seen["features"] = features
        seen["logits"], seen["offsets"] = rpn_head(features, *rest)
        return seen["logits"], seen["offsets"]

    monkeypatch.setattr(model, "rpn_head", heard)
    monkeypatch.setattr(model, "REGION_STEP", {"GPU": 1})
    with tf.Graph().as_default(), tf1.Session(config=session_config(threads=1)) as session:
        images, sizes = pad_to_shape(numbers.IMAGE, config)
        found = model.detections(
            tf.constant(images), tf.constant(sizes), config, model.make_layers(config, training=False)
        )
        variables = {v.op.name: v for v in tf1.global_variables()}
        shapes = {n: tuple(v.shape.as_list()) for n, v in variables.items()}
        assign(session, variables, weights.model_weights(tmp_path / "w.npz", shapes, config))
        ours, parts = session.run((found, seen))

    for i in range(5):
        assert apart(parts["features"][i], theirs[f"features/{i}"]) < 1e-4
        assert apart(parts["logits"][i], theirs[f"logits/{i}"]) < 1e-4
    assert_detections(ours, theirs)


def assert_detections(ours: Arrays, theirs: Arrays) -> None:
    assert 40 == len(ours["scores"]) == len(theirs["scores"])
    np.testing.assert_allclose(ours["scores"], theirs["scores"], atol=1e-4)
    np.testing.assert_array_equal(ours["labels"], theirs["labels"])
    np.testing.assert_allclose(ours["boxes"], theirs["boxes"], atol=1e-2)
    masks = np.array([told(mask) for mask in ours["masks"]])
    np.testing.assert_allclose(masks, theirs["masks"], atol=1e-3)


MSRA = ("PREPROC.PIXEL_STD=1.,1.,1.", "BACKBONE.STRIDE_1X1=True")
STEM = "backbone.bottom_up.stem.conv1"
FOLDED = {f"{STEM}.norm.running_mean": np.zeros(8, "f"), f"{STEM}.norm.running_var": np.full(8, 1 - 1e-5, "f")}


@pytest.mark.parametrize(
    ("arrays", "settings", "says"),
    [
        (FOLDED, [], "give BACKBONE.STRIDE_1X1=True PREPROC.PIXEL_STD=1.,1.,1. BACKBONE.TF_PAD_MODE=False"),
        (FOLDED, [*MSRA, "BACKBONE.TF_PAD_MODE=True"], "BACKBONE.TF_PAD_MODE=False"),
        (
            {"pixel_std": np.ones((3, 1, 1), "f")},
            [],
            r"w.npz: its pixels are others': give PREPROC.PIXEL_STD=1.0,1.0,1.0",
        ),
        (
            {"pixel_mean": np.array([103.53, 116.28, 100], "f").reshape(3, 1, 1)},
            [],
            "give PREPROC.PIXEL_MEAN=100.0,116.28,103.53",
        ),
        ({"roi_heads.res5.0.conv1.weight": np.zeros(1)}, [], "roi_heads.res5.0.conv1.weight, for which a detector"),
        ({"backbone.bottom_up.stem.conv1": np.zeros(1)}, [], "for which a detector with a pyramid has no place"),
        (FOLDED, MSRA, "lacks conv0/W"),
    ],
)
def test_what_would_not_compute_what_it_learned_is_refused(
    arrays: Arrays, settings: list[str], says: str, tmp_path: Path
) -> None:
    """With the settings to give, where the file shows them."""
    np.savez(tmp_path / "w.npz", **{"roi_heads.box_head.fc1.bias": np.zeros(4, "f"), **arrays})
    config = apply_settings(Config(), ["DATA.NUM_CATEGORY=4", *settings])
    with pytest.raises(ConfigError, match=says):
        weights.model_weights(tmp_path / "w.npz", {"conv0/W": (7, 7, 3, 64)}, config)


@pytest.mark.parametrize("name", [m.name for m in numbers.MODELS])
def test_an_onnx_file_of_its_weights_sees_what_detectron2_sees(name: str, tmp_path: Path) -> None:
    """By onnxruntime, from the image's bytes to masks."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX's runtime is not installed: make onnx gets it")
    theirs, state = stored(name)
    np.savez(tmp_path / "w.npz", **state)
    shapes = {n: a.shape for n, a in detectron2.as_tensorpack(tmp_path / "w.npz", state).items()}
    config = config_of(name)
    arrays = weights.model_weights(tmp_path / "w.npz", shapes, config)
    onnx_graph.write(tmp_path / "w.onnx", config, arrays, (numbers.SHORT, numbers.LONG))
    session = onnxruntime.InferenceSession(tmp_path / "w.onnx", providers=["CPUExecutionProvider"])
    names = ("boxes", "scores", "labels", "masks")
    ours = dict(zip(names, session.run(names, {"image": numbers.IMAGE[:, :, ::-1]}), strict=True))

    assert_detections(ours, theirs)

"""A detector written as ONNX computes what the detector does; by onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import tensorpack_scene
from benchmarks.tensorpack_scene import CATEGORIES, NORMED, Scene
from trainer.maskrcnn import export, onnx_graph
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.detector import Detector
from trainer.maskrcnn.keys import apply_settings

SCENE = Scene(name="normed", settings=NORMED)
SETTINGS = [
    *SCENE.words(),
    f"DATA.NUM_CATEGORY={CATEGORIES}",
    "BACKBONE.TF_PAD_MODE=True",
    "FPN.GN_HEAD_ORDER=relu-norm",
]


@pytest.fixture(scope="module")
def detector() -> Detector:
    """With drawn weights, TensorFlow's padding and tensorpack's heads."""
    found = Detector(apply_settings(Config(), [*SETTINGS, "RPN.MIN_SIZE=-1"]), threads=1)
    found.assign(tensorpack_scene.weights(found.shapes, SCENE.seed))
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
    np.testing.assert_allclose(ours["boxes"], theirs.boxes, atol=1e-2)
    np.testing.assert_allclose(ours["masks"], theirs.masks, atol=1e-3)


def test_an_onnx_file_resizes_and_may_see_nothing(detector: Detector, tmp_path: Path) -> None:
    """Boxes are in the pixels of the image that is given, whose aspect is another."""
    config = apply_settings(detector.config, ["TEST.RESULT_SCORE_THRESH=0.999"])
    onnx_graph.write(tmp_path / "none.onnx", config, detector.weights(), (50, 100))
    onnx_graph.write(tmp_path / "some.onnx", detector.config, detector.weights(), (50, 100))
    image = np.ascontiguousarray(tensorpack_scene.image(Scene(name="wide", height=50, width=100)))
    nothing, some, expected = (
        run(tmp_path / "none.onnx", image),
        run(tmp_path / "some.onnx", image),
        detector.detect(image),
    )

    assert [(0, 4), (0,), (0,), (0, 28, 28)] == [v.shape for v in nothing.values()]
    few = 5
    np.testing.assert_allclose(some["scores"][:few], expected.scores[:few], atol=0.02)
    assert some["boxes"].max(0)[2] > 70


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--out", "x.onnx"], "ONNX is written for images of one size: give --image-size HEIGHTxWIDTH"),
        (["--out", "x.onnx", "--image-size", "480"], "give --image-size HEIGHTxWIDTH, 480x640 for example"),
        (["--out", "x", "--image-size", "480x640"], "--image-size is for --out FILE.onnx"),
    ],
)
def test_the_size_of_the_images_is_asked_for(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert export.main(["--job-dir", "none", *words]) == 2
    assert says in capsys.readouterr().err

"""Weights of other libraries in, ours out: what is computed stays the same."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tensorflow as tf

from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S
from trainer.common.checkpoints import weight_files
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.data.records import parse, read_all
from trainer.common.files.errors import ConfigError
from trainer.resnet50 import export, pretrained
from trainer.resnet50.__main__ import check_weights
from trainer.resnet50.augment import normalise
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.export import Trained
from trainer.resnet50.horovod import begin
from trainer.resnet50.network import KERAS, OWN, TORCHVISION
from trainer.resnet50.step import TensorFlowLearner

CLASSES = 7
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 64, 72, 3), np.uint8)  # even sides: there paddings differ


def learner_of(file: Path, classes: int = CLASSES, **flags: Any) -> tuple[Any, str]:
    """One that began with the file, and what it said of that."""
    config = ResNetConfig(**{"synthetic": True, "num_batches": 1, "load": file, **flags})
    learner = TensorFlowLearner(config, classes)
    return learner, begin(config, learner)


def logits_of(learner: Any) -> Any:
    """As evaluation computes them."""
    return learner.model(normalise(tf.constant(IMAGES), tf.float32, learner.variant.pixels)).numpy()


def agree(found: Any, expected: Any, share: float = 1e-4) -> None:
    """To a share of the largest."""
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(found, expected, atol=share * np.abs(expected).max())


@pytest.fixture(scope="module")
def of_keras(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A file of Keras' ResNet-50 with drawn weights, and what Keras makes of the images."""
    import tf_keras as keras

    rng = np.random.default_rng(1)
    model = keras.applications.ResNet50(
        weights=None, classes=CLASSES, classifier_activation=None, input_shape=IMAGES.shape[1:]
    )
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            ranges = ((0.5, 1.0), (-0.2, 0.2), (-0.1, 0.1), (0.5, 1.5))
            drawn = zip(ranges, layer.get_weights(), strict=True)
            layer.set_weights([rng.uniform(*between, own.shape) for between, own in drawn])
        elif isinstance(layer, keras.layers.Conv2D):
            layer.bias.assign(rng.uniform(-0.1, 0.1, layer.bias.shape))
    file = tmp_path_factory.mktemp("keras") / "resnet50.h5"
    model.save_weights(file)
    return file, model(keras.applications.resnet50.preprocess_input(IMAGES.astype(np.float32))).numpy()


def test_keras_weights_compute_what_keras_computes(of_keras: Any) -> None:
    """tf_keras' own ResNet-50 (v1), its padding, its pixels and its biases, from the file that it writes."""
    file, expected = of_keras
    learner, said = learner_of(file, variant=KERAS)

    agree(logits_of(learner), expected)
    assert f"Beginning with {file}" == said


def test_torchvisions_weights_compute_what_torchvision_computes(torch_python: Path, tmp_path: Path) -> None:
    """Its own ResNet-50 (v1.5), from its state; then as the files that are written of it."""
    np.save(tmp_path / "images.npy", IMAGES)
    script = Path(__file__).with_name("torchvision_resnet.py")
    files = [str(tmp_path / name) for name in ("images.npy", "state.npz", "logits.npy")]
    subprocess.run([torch_python, script, "resnet50", *files], check=True, timeout=PATIENCE_S)
    expected = np.load(tmp_path / "logits.npy")
    learner, _ = learner_of(tmp_path / "state.npz", variant=TORCHVISION)

    agree(logits_of(learner), expected)
    arrays = pretrained.read(tmp_path / "state.npz", "resnet50", TORCHVISION)
    export.write(Trained("resnet50", TORCHVISION, arrays), tmp_path / "again.safetensors")
    with np.load(tmp_path / "state.npz") as theirs:
        ours = weight_files.read(tmp_path / "again.safetensors")
        assert {n for n in theirs.files if "num_batches" not in n} == set(ours)
        for name, array in ours.items():
            np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def drawn(model: str, variant: str) -> Trained:
    """A network with drawn weights and statistics."""
    rng = np.random.default_rng(2)
    shapes = pretrained.expected(model, variant, CLASSES)
    arrays = {n: rng.normal(0, 0.05, s).astype(np.float32) for n, s in shapes.items()}
    for name in arrays:
        if name.endswith(("gamma", "moving_variance")):
            arrays[name] = rng.uniform(0.5, 1.5, shapes[name]).astype(np.float32)
    return Trained(model, variant, arrays)


SMALL = [("resnet18", OWN), ("resnet18", TORCHVISION)]
ALL = [*SMALL, ("resnet50", KERAS)]


@pytest.fixture(scope="module")
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Path, Any]:
    """A network, its weights as a file, and what the trainer computes with these."""
    trained = drawn(*request.param)
    file = tmp_path_factory.mktemp("weights") / "weights.npz"
    export.write(trained, file)
    learner, _ = learner_of(file, model=trained.model, variant=trained.variant)
    return trained, file, logits_of(learner)


@pytest.mark.parametrize("network", ALL, indirect=True, scope="module")
def test_weights_come_back_as_they_went(network: Any) -> None:
    """Bit by bit, by the names of whose they are."""
    trained, file, _ = network
    found = pretrained.read(file, trained.model, trained.variant)

    assert set(trained.arrays) == set(found)
    for name, array in found.items():
        np.testing.assert_array_equal(array, trained.arrays[name], err_msg=name)


@pytest.mark.parametrize("network", SMALL, indirect=True, scope="module")
def test_a_saved_model_computes_what_the_trainer_does(network: Any, tmp_path: Path) -> None:
    """Pixels in, logits and probabilities out."""
    trained, _, expected = network
    export.write(trained, tmp_path / "served")
    found = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"](images=tf.constant(IMAGES))

    agree(found["logits"], expected)
    agree(found["probabilities"], tf.nn.softmax(expected))


@pytest.mark.parametrize("network", ALL, indirect=True, scope="module")
def test_an_onnx_file_computes_what_the_trainer_does(network: Any, tmp_path: Path) -> None:
    """By onnxruntime; images of any number and size."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX's runtime is not installed: make onnx gets it")
    trained, _, expected = network
    export.write(trained, tmp_path / "network.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "network.onnx", providers=["CPUExecutionProvider"])
    logits, probabilities = session.run(["logits", "probabilities"], {"images": IMAGES})

    agree(logits, expected)
    agree(probabilities, tf.nn.softmax(expected))
    assert (1, CLASSES) == session.run(["logits"], {"images": IMAGES[:1, :33, :47]})[0].shape


@pytest.mark.parametrize("name", ["x.onnx", "x.npz", "x.safetensors", "x"])
def test_what_cannot_be_written_whole_is_not_there(name: str, tmp_path: Path) -> None:
    """Of a network whose weights do not fit: a sentence, and nothing of them is left, nor of an earlier attempt."""
    (tmp_path / "out").mkdir()
    weight_files.write_safetensors(tmp_path / "w.safetensors", state())
    (tmp_path / f"out/.{name}.partial").write_text("of one that was killed")
    words = ["--load", tmp_path / "w.safetensors", "--model", "resnet18", "--variant", TORCHVISION]
    done = subprocess.run(
        [sys.executable, "-m", "trainer.resnet50.export", *map(str, words), "--out", str(tmp_path / "out" / name)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
    )

    assert (1, []) == (done.returncode, [p.name for p in (tmp_path / "out").iterdir()]), done.stderr
    assert f"{name} cannot be written (" in done.stderr and "Traceback" not in done.stderr, done.stderr


def state(model: str = "resnet18") -> dict[str, Any]:
    """Of torchvision's names, all zero."""
    arrays = {n: np.zeros(s, np.float32) for n, s in pretrained.expected(model, TORCHVISION, 3).items()}
    return pretrained.as_theirs(arrays, model, TORCHVISION)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"variant": OWN}, "holds weights of the variant torchvision, not own: give --variant torchvision"),
        ({"model": "resnet34"}, r"is not a resnet34: stage0/block2/conv0/kernel and \d+ more differ"),
        ({"fc.weight": np.zeros((3, 4))}, "is not a resnet18: dense/kernel differ"),
        ({"layer1.0.se.weight": np.zeros(3)}, r"is not a resnet18: layer1\.0\.se\.weight differ"),
        ({"bn1.running_var": None}, "is not a resnet18: stem_bn/moving_variance differ"),
        ({"conv1.weight": None}, "holds no ResNet that is known here"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    """Another variant or model, a layer that is missing, too much or of another shape."""
    flags = {"model": "resnet18", "variant": TORCHVISION} | {k: v for k, v in change.items() if isinstance(v, str)}
    arrays = state() | {k: v for k, v in change.items() if not isinstance(v, str)}
    np.savez(tmp_path / "state.npz", **{k: v for k, v in arrays.items() if v is not None})

    with pytest.raises(ConfigError, match=says):
        pretrained.read(tmp_path / "state.npz", **flags)


def test_names_of_keras_are_read_with_their_layer_s_group() -> None:
    """As its files have them and as ours are written; a convolution's bias goes into its norm's mean."""
    shapes = pretrained.expected("resnet18", KERAS, 3)
    ours = {name: np.full(shape, n, np.float32) for n, (name, shape) in enumerate(shapes.items())}
    theirs = pretrained.as_theirs(ours, "resnet18", KERAS)
    as_written = pretrained.as_ours(theirs, "resnet18", KERAS, "f")
    theirs["conv1_conv/bias"] = theirs["conv1_conv/bias"] + 0.5
    in_groups = {f"{name.partition('/')[0]}/{name}": array for name, array in theirs.items()}
    read = pretrained.as_ours(in_groups, "resnet18", KERAS, "f")

    assert {n: float(a.flat[0]) for n, a in ours.items()} == {n: float(a.flat[0]) for n, a in as_written.items()}
    moved = {n for n in ours if ours[n].flat[0] != read[n].flat[0]}
    assert {"stem_bn/moving_mean"} == moved
    assert ours["stem_bn/moving_mean"][0] - 0.5 == read["stem_bn/moving_mean"][0]


def test_a_last_layer_of_other_classes_begins_anew_but_is_not_judged(tmp_path: Path) -> None:
    """And says so; all else is taken, by the moving average, too."""
    weight_files.write_safetensors(tmp_path / "state.safetensors", {n: a + 0.5 for n, a in state().items()})
    flags = {"model": "resnet18", "variant": TORCHVISION, "ema_decay": 0.9}
    learner, said = learner_of(tmp_path / "state.safetensors", **flags)

    assert said.endswith("but for its last layer: it has 3 classes, not 7")
    assert 0.5 == float(learner.model.stem.kernel.numpy().mean()) == float(learner.smooth[0].numpy().mean())
    assert 0.5 != float(learner.model.dense.numpy().mean())
    shards = {"synthetic": False, "data_dir": tmp_path, "job_dir": tmp_path, "eval_only": True}
    with pytest.raises(ConfigError, match="tells 3 classes apart, but this data has 7"):
        learner_of(tmp_path / "state.safetensors", **flags, **shards)


def test_a_safetensors_file_that_was_cut_or_changed_is_refused(tmp_path: Path) -> None:
    """At any byte; types of 16 bits are read."""
    path = tmp_path / "x.safetensors"
    weight_files.write_safetensors(path, {"a": np.ones((2, 3)), "b": np.zeros(0)})
    whole = path.read_bytes()
    assert {"a": (2, 3), "b": (0,)} == {n: a.shape for n, a in weight_files.read(path).items()}
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match="cannot be read as weights"):
            weight_files.read(path)
    header = json.dumps({"h": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\x80\x3f\x20\xc0")
    assert [1.0, -2.5] == weight_files.read(path)["h"].tolist()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x.pth", "is a pickle, which could run anything"),
        ("x.onnx", "from .npz, .safetensors, .h5 and .pkl"),
        ("x.h5", "names no layers"),
    ],
)
def test_forms_that_are_not_read_are_refused_with_what_to_do(tmp_path: Path, name: str, says: str) -> None:
    """A pickle, another form, and an h5 as Keras 3 writes them."""
    with h5py.File(tmp_path / name, "w") as file:
        file["layers/conv2d/vars/0"] = np.zeros(3)
    with pytest.raises(ConfigError, match=says):
        weight_files.read(tmp_path / name)


def test_a_run_judges_the_weights_of_a_file(python: Any, mini_shards: Path, tmp_path: Path) -> None:
    """As an operator does, without a checkpoint; the last layer's answer is the same for all images, so known."""
    labels = [
        r["image/class/label"][0] - 1 for path in mini_shards.glob("validation-*") for r in map(parse, read_all(path))
    ]
    bias = np.linspace(-1, 2, len(json.loads((mini_shards / "manifest.json").read_text())["classes"]))
    last = {pretrained.DENSE: np.zeros((512, len(bias))), pretrained.BIAS: bias}
    trained = drawn("resnet18", TORCHVISION)
    export.write(Trained("resnet18", TORCHVISION, trained.arrays | last), tmp_path / "w.safetensors")
    flags = ("--model", "resnet18", "--image-size", 32, "--batch-size", 8, "--threads", 1, "--num-batches", 1)
    weights = ("--variant", TORCHVISION, "--load", tmp_path / "w.safetensors", "--job-dir", tmp_path / "job")
    said = python("trainer.resnet50", "--data-dir", mini_shards, *flags, *weights, "--eval-only").stdout

    assert f"Beginning with {tmp_path / 'w.safetensors'}\n" in said
    assert float(said.split()[-1]) == pytest.approx(np.log(np.exp(bias).sum()) - bias[labels].mean(), abs=1e-3)


def test_a_jobs_checkpoint_is_exported_and_nothing_overwritten(tmp_path: Path) -> None:
    """The best or the newest, what evaluation computes with; a folder without one, and another trainer's, are refused."""
    config = ResNetConfig(model="resnet18", synthetic=True, num_batches=1, variant=TORCHVISION, ema_decay=0.9)
    learner, folder = TensorFlowLearner(config, CLASSES), CheckpointFolder(tmp_path / "checkpoints")
    with pytest.raises(ConfigError, match="holds no valid checkpoint"):
        export.of_job(tmp_path, None, best=False)
    for step in (1, 2):
        learner.smooth[0].assign(learner.smooth[0] * 0 + step)
        folder.save(step, learner.arrays(), {"model": "resnet18"})
    folder.mark_best(1, 50.0)
    best, newest = (export.of_job(tmp_path, None, best=is_best) for is_best in (True, False))

    assert (TORCHVISION, CLASSES, 1.0, 2.0) == (
        *(best.variant, best.classes),
        *(float(found.arrays["stem/kernel"].mean()) for found in (best, newest)),
    )
    (tmp_path / "out.npz").touch()
    with pytest.raises(ConfigError, match="exists already"):
        export.write(best, tmp_path / "out.npz")
    with pytest.raises(ConfigError, match=r"no checkpoint of step 3; those that are there are of step: 1, 2"):
        export.of_job(tmp_path, 3, best=False)
    folder.save(3, {"conv0/W": np.zeros(3)}, {"model": "resnet18"})
    with pytest.raises(ConfigError, match="only its checkpoints are exported"):
        export.of_job(tmp_path, 3, best=False)


def test_weights_are_looked_at_before_a_job_starts_but_not_when_it_goes_on(tmp_path: Path) -> None:
    """What it would begin with may be gone by then."""
    flags = {"data_dir": tmp_path, "num_batches": 1, "job_dir": tmp_path, "load": tmp_path / "gone.npz"}
    with pytest.raises(ConfigError, match=r"gone\.npz cannot be read as weights"):
        check_weights(ResNetConfig(**flags))
    CheckpointFolder(tmp_path / "checkpoints").save(1, {"a": np.zeros(1)})
    check_weights(ResNetConfig(**flags))

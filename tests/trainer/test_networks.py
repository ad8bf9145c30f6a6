"""A ResNet as plain numbers: its layers, how they begin, its weights in others' files. No framework."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from trainer.common.checkpoints import npz_writer, weight_files
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.files.errors import ConfigError, TrainerError
from trainer.common.ranks.precision import first_scale, is_loss_scale
from trainer.resnet50 import export, network, onnx_graph, pretrained
from trainer.resnet50.export import Trained
from trainer.resnet50.network import BLOCKS, KERAS, OWN, TORCHVISION, VARIANTS, Init


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stages say as much as four, and cost a fortieth."""
    for model, counts in (("resnet18", (1, 2)), ("resnet50", (2, 1))):
        monkeypatch.setitem(BLOCKS, model, counts)


def drawn(model: str, variant: str, classes: int = 3) -> dict[str, Any]:
    """Arrays of its shapes."""
    rng = np.random.default_rng(1)
    shapes = pretrained.expected(model, variant, classes)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_weights_begin_by_their_rule() -> None:
    """He's cut normal, Glorot's uniform, the last layer's hundredth; the last gamma of a block is zero where asked."""
    he, glorot = (Init.of(3, zero_gamma=zero, he_init=zero) for zero in (True, False))
    shape = (3, 3, 64, 128)
    kernel, flat = he.kernel(shape), glorot.kernel(shape)

    assert (0.0, 1.0, np.float32, shape) == (he.last_gamma, glorot.last_gamma, kernel.dtype, flat.shape)
    assert kernel.std() == pytest.approx((9 * 64) ** -0.5, rel=0.01)
    assert np.abs(kernel).max() <= 2 * (9 * 64) ** -0.5 / network.CUT_DEVIATION * 1.0001
    reach = (6 / (9 * (64 + 128))) ** 0.5
    assert 0.99 * reach < flat.max() <= reach and -reach <= flat.min() < -0.99 * reach
    assert he.dense(512, 100).std() == pytest.approx(0.01, rel=0.02)
    assert (kernel == Init.of(3, zero_gamma=True, he_init=True).kernel(shape)).all()
    assert (kernel != Init.of(4, zero_gamma=True, he_init=True).kernel(shape)).any()


@pytest.mark.parametrize("model", ["resnet18", "resnet50"])
@pytest.mark.parametrize("variant", [OWN, TORCHVISION, KERAS])
def test_arrays_come_back_from_their_names(few: None, model: str, variant: str) -> None:
    """Each axis in its place; Keras' pixels are blue, green, red, and its convolutions have a bias, which the norm takes up."""
    ours = drawn(model, variant)
    theirs = pretrained.as_theirs(ours, model, variant)
    assert variant == pretrained.variant_of(theirs if variant != OWN else ours)
    back = pretrained.as_ours(theirs, model, variant, "file")
    assert list(ours) == list(back) and all((ours[n] == back[n]).all() for n in ours)

    if variant == TORCHVISION:
        assert theirs["conv1.weight"].shape == (64, 3, 7, 7) and (theirs["fc.weight"] == ours["dense/kernel"].T).all()
        assert (theirs["layer2.0.downsample.1.running_var"] == ours["stage1/block0/shortcut_bn/moving_variance"]).all()
        assert (theirs["layer1.0.bn2.weight"] == ours["stage0/block0/bn1/gamma"]).all()
        counted = {**theirs, "bn1.num_batches_tracked": np.array(1)}
        assert list(ours) == list(pretrained.as_ours(counted, model, variant, "file"))
    if variant == KERAS:
        assert (theirs["conv1_conv/kernel"] == ours["stem/kernel"][:, :, ::-1]).all()
        assert (theirs["conv3_block1_0_bn/beta"] == ours["stage1/block0/shortcut_bn/beta"]).all()
        theirs["conv2_block1_1_conv/bias"] = theirs["conv2_block1_1_conv/bias"] + 2
        grouped = {f"{name.split('/')[0]}/{name}": array for name, array in theirs.items()}
        moved = pretrained.as_ours(grouped, model, variant, "file")["stage0/block0/bn0/moving_mean"]
        np.testing.assert_allclose(moved, ours["stage0/block0/bn0/moving_mean"] - 2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"stem/kernel": np.zeros((7, 7, 3, 63))}, "file is not a resnet18: stem/kernel differ"),
        ({"more/kernel": np.zeros(3)}, "file is not a resnet18: more/kernel differ"),
        ({"stem_bn/gamma": None, "more/bias": np.zeros(3)}, "file is not a resnet18: stem_bn/gamma and 1 more differ"),
    ],
)
def test_arrays_of_something_else_are_refused(few: None, change: dict[str, Any], says: str) -> None:
    """Another shape, one too many, one too few."""
    arrays = {n: a for n, a in (drawn("resnet18", OWN) | change).items() if a is not None}
    with pytest.raises(ConfigError) as error:
        pretrained.as_ours(arrays, "resnet18", OWN, "file")
    assert says == str(error.value)


def test_a_file_of_another_variant_is_refused_by_name(few: None, tmp_path: Path) -> None:
    """Or one that is of no ResNet."""
    file = tmp_path / "w.safetensors"
    weight_files.write_safetensors(file, pretrained.as_theirs(drawn("resnet18", TORCHVISION), "resnet18", TORCHVISION))
    assert 3 == len(pretrained.read(file, "resnet18", TORCHVISION)["dense/bias"])
    with pytest.raises(
        ConfigError, match=r"holds weights of the variant torchvision, not own: give --variant torchvision"
    ):
        pretrained.read(file, "resnet18", OWN)
    weight_files.write_safetensors(file, {"a": np.zeros(1), "b": np.zeros(1)})
    with pytest.raises(ConfigError, match=r"holds no ResNet that is known here \(a, b …\)"):
        pretrained.read(file, "resnet18", OWN)


def safetensors(header: Any, data: bytes) -> bytes:
    """A file of this header."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def told(shape: list[int], begin: int, end: int, kind: str = "F32") -> dict[str, Any]:
    """Of one array in a header."""
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


def test_safetensors_are_read_as_they_are_written(tmp_path: Path) -> None:
    """Its header ends at a multiple of eight bytes, and other types of numbers are read."""
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "bc": np.zeros((0, 2), np.float32),
        "d": np.array(2.0),
    }
    weight_files.write_safetensors(tmp_path / "x.safetensors", arrays)
    data = (tmp_path / "x.safetensors").read_bytes()
    assert 0 == int.from_bytes(data[:8], "little") % 8
    found = weight_files.read(tmp_path / "x.safetensors")
    assert list(arrays) == sorted(found) and all((arrays[n] == found[n]).all() for n in arrays)
    header = {
        "__metadata__": {"format": "pt"},
        "b": told([2], 0, 4, "BF16"),
        "i": told([1], 4, 12, "I64"),
        "u": told([1], 12, 13, "U8"),
    }
    body = np.array([1.5, -2], "<f4").view("<u2")[1::2].tobytes() + (7).to_bytes(8, "little") + b"\x05"
    (tmp_path / "x.safetensors").write_bytes(safetensors(header, body))
    assert {"b": [1.5, -2], "i": [7], "u": [5]} == {
        n: a.tolist() for n, a in weight_files.read(tmp_path / "x.safetensors").items()
    }


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"1234567", "it is cut off or something else"),
        (bytes(8), "it is cut off or something else"),
        ((99).to_bytes(8, "little") + b"{}", "it is cut off or something else"),
        (safetensors({"a": told([1], 1, 5)}, bytes(5)), "a is not where its header says"),
        (safetensors({"a": told([2], 0, 4)}, bytes(4)), "a is not where its header says"),
        (safetensors({"a": told([1], 0, 4)}, bytes(3)), "a is not where its header says"),
        (safetensors({"a": told([1], 0, 4)}, bytes(5)), "it does not end where its header says"),
        (safetensors({"a": told([1], 0, 4, "F8")}, bytes(4)), "F8"),
    ],
)
def test_damaged_safetensors_say_what_is_wrong(tmp_path: Path, data: bytes, says: str) -> None:
    """With the array."""
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(ConfigError, match=rf"x\.safetensors cannot be read as weights \(safetensors\): .*{says}"):
        weight_files.read(tmp_path / "x.safetensors")


def test_exports_are_written_in_the_form_of_their_name(
    few: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a file or a job's checkpoint; never over something that is there."""
    ours = drawn("resnet18", KERAS)
    with (tmp_path / "w.npz").open("wb") as file:
        npz_writer.write(file, pretrained.as_theirs(ours, "resnet18", KERAS))
    words = ["--load", str(tmp_path / "w.npz"), "--model", "resnet18", "--variant", KERAS, "--out"]
    for name in ("deep/a.npz", "b.safetensors", "c.onnx"):
        assert 0 == export.main([*words, str(tmp_path / name)])
        assert f"{tmp_path / name} written: resnet18, 3 classes\n" == capsys.readouterr().out
    for name in ("deep/a.npz", "b.safetensors"):
        back = pretrained.read(tmp_path / name, "resnet18", KERAS)
        assert all((ours[n] == back[n]).all() for n in ours)
    assert 2 == export.main([*words, str(tmp_path / "c.onnx")])
    assert "c.onnx exists already: give another --out" in capsys.readouterr().err
    assert 1 == export.main([*words, str(tmp_path / "w.npz" / "x.npz")])
    assert "x.npz cannot be written (" in capsys.readouterr().err
    assert 2 == export.main([*words[2:], str(tmp_path / "x.npz")])

    job = tmp_path / "job"
    folder = CheckpointFolder(job / "checkpoints")
    for step in (4, 8):
        held = {f"keras/{n}": a + step for n, a in ours.items()}
        folder.save(step, held, {"model": "resnet18" if step == 4 else "resnet7"})
    folder.mark_best(4, 1.0)
    for words in (["--best"], ["--step", "4"]):
        assert 0 == export.main(["--job-dir", str(job), *words, "--out", str(tmp_path / f"{words[0]}.npz")])
    assert 2 == export.main(["--job-dir", str(job), "--best", "--step", "4", "--out", str(tmp_path / "y.npz")])
    assert 2 == export.main(["--job-dir", str(job), "--out", str(tmp_path / "y.npz")])
    assert "is not of trainer.resnet50: only its checkpoints are exported" in capsys.readouterr().err
    folder.save(9, {"a": np.zeros(1)}, {"model": "resnet18"})
    with pytest.raises(ConfigError, match="only its checkpoints are exported"):
        export.of_job(job, 9, best=False)
    with pytest.raises(ConfigError, match=r"no checkpoint of step 5; those that are there are of step: 4, 8, 9"):
        export.of_job(job, 5, best=False)
    with pytest.raises(ConfigError, match=r"no checkpoint that an evaluation called the best; .* of step: none"):
        export.of_job(tmp_path, None, best=True)


@pytest.mark.parametrize("variant", [OWN, TORCHVISION, KERAS])
def test_an_onnx_file_has_the_layers_of_its_variant(few: None, tmp_path: Path, variant: str) -> None:
    """Kernels, strides, paddings and epsilons; pixels are normalised in it; any number of images of any size."""
    arrays = drawn("resnet50", variant, 3)
    onnx_graph.write(tmp_path / "x.onnx", arrays, "resnet50", VARIANTS[variant])
    graph = onnx.load(tmp_path / "x.onnx").graph
    nodes = {
        node.output[0]: {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} for node in graph.node
    }
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}

    alike = variant != OWN
    padded: dict[str, Any] = {"pads": [3] * 4} if alike else {"auto_pad": b"SAME_UPPER"}
    assert {"kernel_shape": [7, 7], "strides": [2, 2], **padded} == nodes["stem"]
    padded = {"pads": [1] * 4} if alike else padded
    assert {"kernel_shape": [3, 3], "strides": [2, 2], **padded} == nodes["pool"]
    assert {"kernel_shape": [1, 1], "strides": [1, 1], "pads": [0] * 4} == nodes["stage0/block0/conv0"]
    assert {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1] * 4} == nodes["stage0/block0/conv1"]
    assert VARIANTS[variant].epsilon == pytest.approx(nodes["stem_bn"]["epsilon"])
    assert ([0, 3, 1, 2], 1, 1) == (nodes["pixels"]["perm"], nodes["features"]["axis"], nodes["probabilities"]["axis"])
    assert (constants["stem/kernel"] == arrays["stem/kernel"].transpose(3, 2, 0, 1)).all()
    np.testing.assert_allclose(constants["pixels/mean"], VARIANTS[variant].pixels.mean, rtol=1e-6)
    np.testing.assert_allclose(1 / constants["pixels/inverse"], VARIANTS[variant].pixels.deviation, rtol=1e-6)
    shapes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*graph.input, *graph.output)
    }
    assert {"images": ["N", "height", "width", 3], "logits": ["N", 3], "probabilities": ["N", 3]} == shapes


def test_a_loss_scale_is_a_number_above_zero_or_dynamic() -> None:
    """The dynamic one begins with 2^15."""
    found = [is_loss_scale(text) for text in ("dynamic", "1", "0.5", "0", "-1", "inf", "nan", "x", "")]
    assert [True] * 3 + [False] * 6 == found
    assert (2.0**15, 8.0) == (first_scale("dynamic"), first_scale("8"))


def test_a_trained_network_has_as_many_classes_as_its_last_layer_is_wide(few: None, tmp_path: Path) -> None:
    """And what is written of the own variant has this trainer's names."""
    trained = Trained("resnet18", OWN, drawn("resnet18", OWN, 4))
    export.write(trained, tmp_path / "x.npz")

    assert 4 == trained.classes and set(trained.arrays) == set(weight_files.read(tmp_path / "x.npz"))
    with pytest.raises(TrainerError, match="cannot be written"):
        export.write(trained, tmp_path / "x.npz" / "y.safetensors")

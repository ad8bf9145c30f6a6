"""The PyTorch trainer's parts, one by one, without shards and other ranks; and what of it needs no PyTorch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.conftest import run_program
from trainer.resnet50_torch import rng
from trainer.resnet50_torch.rng import Crop

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def pieces(torch_python: Path) -> dict[str, Any]:
    """What the parts do, as PyTorch's interpreter tells."""
    found: dict[str, Any] = json.loads(run_program(torch_python, HERE / "torch_pieces.py").stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("channels_in", [64, 256, 128])
@pytest.mark.parametrize("bottleneck", [False, True])
def test_a_block_has_its_convolutions_norms_and_shortcut(pieces: Any, channels_in: int, bottleneck: bool) -> None:
    """The stride is in its first 3x3, both sides are padded, its last norm begins at zero; a shortcut where it is needed."""
    stride = 2 if channels_in == 128 else 1
    convs, norms, shortcut, channels = pieces["layers"][f"{bottleneck} {channels_in} {stride}"]
    three = [64, 64 if bottleneck else channels_in, 3, 3, stride, stride, 1, 1]

    assert (256 if bottleneck else 64) == channels
    if bottleneck:
        ends = [64, channels_in, 1, 1, 1, 1, 0, 0], [256, 64, 1, 1, 1, 1, 0, 0]
        assert [ends[0], three, ends[1]] == convs
    else:
        assert [three, [64, 64, 3, 3, 1, 1, 1, 1]] == convs
    assert [[64, 1e-4, 1.0, 1.0]] * (len(convs) - 1) + [[channels, 1e-4, 1.0, 0.0]] == norms
    assert (None if channels_in == channels else [channels, channels_in, 1, 1, stride, stride]) == shortcut


@pytest.mark.parametrize("kind", ["plain", "parts", "averaged", "planar"])
def test_a_step_is_that_of_autograd_and_numpy(pieces: Any, kind: str) -> None:
    """Nesterov's momentum with the decay of the kernels, averages of the weights; in parts the mean over these."""
    step = pieces[kind]
    result = step["result"]

    assert step["far"] < 1e-4 and step["back"]
    assert np.mean(step["losses"]) == pytest.approx(result["loss"], rel=1e-4)
    assert result["loss"] == result["own_loss"] and result["accuracy"] in (0, 0.25, 0.5, 0.75, 1)
    assert (0, 1, 0.5, 0) == tuple(result[n] for n in ("asked", "terminated", "due", "skipped"))
    assert result["compute_s"] > 0 and result["reduce_s"] >= 0
    assert 0.005 * step["squares"] == pytest.approx(step["penalty"])
    kept = step["kept"]["layers"]
    assert kept["stem_norm/moving_mean"] == pytest.approx(step["kept"]["mean"], rel=1e-2)
    assert 1 < kept["stem_norm/moving_variance"] < 1.01
    assert (("averaged" == kind), 110 if kind == "averaged" else 68) == ("ema" in step["names"], step["shapes"])
    assert (None, "torch.float32") == (step["scale"], step["type"])


def test_colours_vary_as_numpy_does(pieces: Any) -> None:
    """Each change alone; a turned hue leaves the brightness; what is beyond black and white is cut off."""
    colours = pieces["colours"]

    assert max(colours["far"].values()) < 1e-3 and colours["gray kept"] < 1e-3 < 1 < colours["turned"]
    assert ([0, 255], [0, 1, -1]) == (colours["range"], pytest.approx(colours["normalised"], abs=1e-5))
    assert colours["mixed"] == pytest.approx(0, abs=1e-6)
    none, own, again = colours["shares"]
    assert 1 == none and own == again and 0 < own < 1


def test_batches_are_this_ranks_in_their_order(pieces: Any) -> None:
    """Seeds are of the images' positions in the run; half of them are mirrored; each is judged on one rank."""
    loaded = pieces["loaded"]

    wanted = [[[4, 12 + (step * 2 + 1) * 3 + i] for i in range(3)] for step in range(5)]
    assert wanted == loaded["seeds"]
    assert loaded["mirrored"] == loaded["drawn mirrored"] and 6 == sum(map(sum, loaded["mirrored"]))
    assert [[1, 3, 5], [7, 9]] == loaded["judged"]
    assert ["torch.uint8", [3, 8, 8, 3], "torch.int64"] == loaded["types"]
    assert [[2, 8, 8, 3], True, True, 255, 1] == loaded["synthetic"]
    assert [[9, 1, 0], [9, 0, 1]] == loaded["ends"]
    assert {"centre": [8, 8, 3], "reference": [8, 8, 3]} == loaded["crops"]


def test_a_record_that_cannot_be_used_is_a_sentence(pieces: Any) -> None:
    """Its label is beyond the classes, or it holds no picture."""
    beyond, no_picture = (
        "a label lies outside 1 to 10: give the --classes",
        "a record holds no readable JPEG image with a",
    )
    wrong = pieces["loaded"]["wrong"]

    assert [beyond] * 2 + [no_picture] * 4 == [
        text[: len(beyond if i < 2 else no_picture)] for i, text in enumerate(wrong)
    ]


def test_a_process_finds_its_place_and_device(pieces: Any) -> None:
    """Alone it has no group; computing is bound to be the same only where that was asked for."""
    places = pieces["places"]

    assert (["cpu", True, 1, 2, 2], False, True, 1) == tuple(places[n] for n in ("alone", "free", "bound", "gathered"))
    assert "CommonError: --precision float16 wants GPUs, and PyTorch finds none" in places["float16"]
    assert "CommonError: 2 ranks, but MASTER_ADDR and MASTER_PORT do not say where" in places["untold"]
    assert "TrainerError: the ranks cannot meet at 127.0.0.1:x (MASTER_ADDR, MASTER_PORT): invalid" in places["odd"]
    assert "has taken 127.0.0.1:x (MASTER_ADDR, MASTER_PORT), where the ranks were to meet" in places["taken"]
    assert places["other"].endswith("(MASTER_ADDR, MASTER_PORT): no such")
    lost, bug = places["lost"]
    assert (
        lost.startswith("TrainerError: another rank ended, so the exchange with it failed")
        and "RuntimeError: a bug" == bug
    )


def test_numbers_are_shared_as_means_over_parts(pieces: Any) -> None:
    """What a rank asks for is not divided; places of labels count equal logits before them; no number is no hit."""
    places = pieces["places"]

    assert [[3, 0.375, 0, 1, 0.5], [3, 10], 3] == places["shared"]
    assert [[2, 0], [0, 1], [1, 2]] == places["places"] and places["unsound"]
    assert 8 == pieces["scores"][0] and 8 == pieces["scores"][2] and 8 < pieces["scores"][3] < 16


@pytest.mark.parametrize(
    ("view", "height", "width", "size", "box"),
    [
        (rng.central_view, 100, 200, 224, (56.25, 6.25, 143.75, 93.75)),
        (rng.central_view, 256, 256, 224, (16, 16, 240, 240)),
        (rng.central_view, 76, 38, 33, (2, 22, 35, 55)),
        (rng.stretched_view, 11, 21, 9, (1.5, 1, 19.5, 10)),
        (rng.stretched_view, 101, 101, 11, (6.5, 6.5, 94.5, 94.5)),
    ],
)
def test_views_are_where_their_sources_have_them(view: Any, height: int, width: int, size: int, box: Any) -> None:
    """In pixels of the picture; left, top, right, bottom."""
    assert box == pytest.approx(view(height, width, size))


@pytest.mark.parametrize(
    ("height", "width", "numbers", "least", "crop"),
    [
        (100, 100, [(0, 0, 0, 0)], 0.25, Crop(0, 0, 58, 44)),
        (100, 100, [(0, 0, 0.5, 0.5)], 0.25, Crop(21, 28, 58, 44)),
        (100, 100, [(0.99999, 0.99999, 0.99999, 0.99999)], 0.25, Crop(25, 0, 75, 100)),
        (100, 133, [(0, 0, 0, 0), (0.99999, 0, 0, 0)], 1.0, Crop(0, 0, 100, 133)),
        (1000, 10, [(0, 0, 0, 0)] * 10, 1.0, Crop(0, 0, 1000, 10)),
    ],
)
def test_a_crop_follows_its_numbers(height: int, width: int, numbers: Any, least: float, crop: Crop) -> None:
    """Aspect, height, top and left; the first try that fits counts, and all of the picture where none does."""
    assert crop == rng.random_crop(height, width, np.array(numbers), least)

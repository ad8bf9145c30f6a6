"""The PyTorch trainer computes what the other one does, and its ranks are one trainer: real DDP under real mpirun."""

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from dlami.heartbeat import Phase, beat_file
from tests.trainer.beats import told
from tests.trainer.conftest import Ranks, run_program
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.data import sampler
from trainer.common.data.records import parse, read_all
from trainer.common.files.errors import ConfigError
from trainer.common.ranks import metrics
from trainer.common.ranks.precision import FIRST_SCALE, LARGEST_SCALE
from trainer.resnet50 import augment
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.engine import moving_average_decay
from trainer.resnet50.images import CROPS
from trainer.resnet50.step import TensorFlowLearner
from trainer.resnet50_torch import rng
from trainer.resnet50_torch.dist_env import DistEnv

HERE = Path(__file__).parent
CLASSES, LR, STEPS = 5, 0.05, 2  # as torch_steps.py has them
SIZE = 33  # odd after each stride of 2, where both frameworks pad alike
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"label_smoothing": 0.1, "momentum": 0.8, "weight_decay": 1e-3},
    "larc": {"larc": True, "larc_eta": 0.01, "accumulate": 2, "ema_decay": 0.9, "adv_conv_init": False},
    "colours": {"increased_aug": True},
}


@pytest.fixture(scope="module")
def batch() -> Any:
    """Six images, their labels and seeds."""
    rng = np.random.default_rng(3)
    return {
        "pixels": rng.integers(0, 256, (6, SIZE, SIZE, 3), np.uint8),
        "labels": rng.integers(0, CLASSES, 6).astype(np.int32),
        "seeds": np.stack([np.full(6, 1), np.arange(6)], 1),
    }


@pytest.fixture(scope="module")
def theirs(
    torch_python: Path, batch: Any, mini_shards: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What PyTorch computes of it."""
    folder = tmp_path_factory.mktemp("torch")
    np.savez(folder / "given.npz", **batch)
    run_program(torch_python, HERE / "torch_steps.py", folder / "out.npz", folder / "given.npz", mini_shards)
    with np.load(folder / "out.npz") as found:
        return dict(found)


def names(blocks: list[Any]) -> dict[str, str]:
    """TensorFlow's names of a ResNet's variables by PyTorch's."""
    found = {"stem": "stem", "stem_norm": "stem_bn", "dense": "dense"}
    for number, block in enumerate(blocks):
        ours, last = f"blocks.{number}", len(block.convs)
        name = block.convs[0].kernel.name.rpartition("/conv0")[0]
        found |= {f"{ours}.convs.{i}": f"{name}/conv{i}" for i in range(last)}
        found |= {f"{ours}.norms.{i}": f"{name}/bn{i}" for i in range(last)}
        found |= {f"{ours}.shortcut.0": f"{name}/shortcut", f"{ours}.shortcut.1": f"{name}/shortcut_bn"}
    return found


def as_ours(name: str, array: Any, modules: dict[str, str]) -> tuple[str, Any]:
    """A variable of PyTorch's under TensorFlow's name, its axes in TensorFlow's order."""
    name, slash, kind = name.partition("/")
    if slash and kind.startswith("moving"):
        return f"{modules[name]}/{kind}", array
    module, _, what = name.rpartition(".")
    axes = {4: (2, 3, 1, 0), 2: (1, 0)}.get(array.ndim)
    own = {"weight": "kernel" if axes else "gamma", "bias": "bias" if module == "dense" else "beta"}[what]
    return f"{modules[module]}/{own}{slash}{kind}", array.transpose(axes) if axes else array


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_are_those_of_the_other_trainer(theirs: Any, batch: Any, variant: str) -> None:
    """From equal seeds equal weights; after two steps losses, weights, momenta, statistics and averages agree."""
    flags = {"model": "resnet18", "synthetic": True, "image_size": SIZE, "batch_size": 6, "num_batches": 1}
    ours = TensorFlowLearner(ResNetConfig(**{**flags, **VARIANTS[variant]}), CLASSES)
    given = tf.constant(batch["pixels"]), tf.constant(batch["labels"]), tf.constant(batch["seeds"])
    begun = ours.arrays()
    found = []
    for step in range(STEPS):
        gradients, statistics, scores = ours.gradients(*given)
        ema = moving_average_decay(ours.config.ema_decay, step)
        ours._apply(gradients, statistics, tf.constant(LR), tf.constant(ema))
        found.append(scores.numpy())

    np.testing.assert_allclose(theirs[f"{variant}:results"], found, rtol=5e-3)
    assert ours.penalty() == pytest.approx(float(theirs[f"{variant}:penalty"]), rel=1e-5)
    mine, modules = ours.arrays(), names(ours.model.blocks)
    told = {name.partition(":")[2]: array for name, array in theirs.items() if name.startswith(f"{variant}:")}
    other = dict(as_ours(n, a, modules) for n, a in told.items() if n not in ("results", "penalty", "scores"))
    assert set(mine) == set(other)
    for name, array in mine.items():
        moved = np.abs(array - begun[name]).max()
        assert name.endswith("/beta/ema") or moved > 0
        np.testing.assert_allclose(other[name], array, atol=5e-3 * moved + 1e-6, err_msg=name)
    judged = ours.scores([given[:2], given[:2]])
    assert judged[0] == 12 and list(judged[:3]) == list(theirs[f"{variant}:scores"][:3])
    assert judged[3] == pytest.approx(theirs[f"{variant}:scores"][3], rel=1e-2)


def test_colours_the_deep_network_and_its_size_are_the_other_trainers(theirs: Any, batch: Any) -> None:
    """The same changes of colour for the same seeds; ResNet-50's forward pass in training, and its parameters."""
    flags = {"synthetic": True, "image_size": SIZE, "batch_size": 6, "num_batches": 1, "adv_bn_init": False}
    ours = TensorFlowLearner(ResNetConfig(**flags), CLASSES)
    pixels = tf.constant(batch["pixels"])
    colours = augment.Colours(0.3, 0.13, 0.6, 0.6)
    varied = augment.vary_colours(pixels, tf.constant(batch["seeds"]), colours).numpy()

    np.testing.assert_allclose(theirs["varied"], varied, atol=1e-2)
    logits = ours.model(augment.normalise(pixels, tf.float32), []).numpy()
    np.testing.assert_allclose(theirs["deep"], logits, atol=2e-3 * np.abs(logits).max())
    assert int(theirs["parameters"]) == sum(int(tf.size(w)) for w in ours.weights)


def test_hits_are_counted_as_the_other_trainer_does_where_logits_tie(theirs: Any) -> None:
    """Of equal logits the lower class comes first; what is no number hits nothing."""
    assert [[12, 1, 5], [12, 0, 0]] == theirs["tied"].tolist()


def test_the_card_is_the_one_that_leads_to_the_first_rank(theirs: Any) -> None:
    """None where its address says nothing."""
    assert ["lo", ""] == theirs["cards"].tolist()


def test_an_overflow_skips_the_step_and_halves_the_scale(theirs: Any) -> None:
    """No weight moves; the next steps go on, and are counted. After many good ones it is doubled, up to a limit."""
    assert [[1, 0, np.inf, 0], [0, 1, 1024, 1], [0, 1, 1024, 2]] == theirs["overflowed"].tolist()
    assert [FIRST_SCALE / 2, FIRST_SCALE, LARGEST_SCALE, 1] == theirs["scales"].tolist()


def test_batches_do_not_depend_on_the_ranks_and_come_in_the_common_order(theirs: Any, mini_shards: Path) -> None:
    """Two ranks' crops are one rank's, bit by bit; labels are those that `trainer.common.data.sampler` names; evaluation meets all.

    Its pixels are the other trainer's, but for rounding.
    """
    one = theirs["train1.0:images"]
    two = np.concatenate([theirs[f"train2.{rank}:images"] for rank in range(2)], axis=1)
    np.testing.assert_array_equal(one, two)
    train, validation = (labels_of(mini_shards, split) for split in ("train", "validation"))
    wanted = train[sampler.examples_at(np.arange(40, 64), len(train), 3)].reshape(3, 8)
    np.testing.assert_array_equal(wanted, theirs["train1.0:labels"])
    np.testing.assert_array_equal(validation[1::2], theirs["centre:labels"])
    assert (
        theirs["centre:images"].shape == theirs["reference:images"].shape == (len(theirs["centre:labels"]), 40, 40, 3)
    )
    encoded = [
        parse(r)["image/encoded"][0] for path in sorted(mini_shards.glob("validation-*")) for r in read_all(path)
    ]
    for crop, of_the_other in CROPS.items():
        wanted = np.stack([of_the_other(tf.constant(one), 40).numpy() for one in encoded[1::2]])
        np.testing.assert_allclose(theirs[f"{crop}:images"].astype(int), wanted.astype(int), atol=1)
    assert "a label lies outside 1 to 2: give the --classes of the data" == str(theirs["error"])


def labels_of(shards: Path, split: str) -> Any:
    """From 0, in the order of the records."""
    records = (record for path in sorted(shards.glob(f"{split}-*")) for record in read_all(path))
    return np.array([int(parse(record)["image/class/label"][0]) - 1 for record in records])


@given(seed=st.integers(0, 2**31), first=st.integers(0, 2**40), stream=st.integers(0, 44))
def test_random_numbers_of_an_image_are_the_other_trainers(seed: Any, first: Any, stream: Any) -> None:
    """Bit by bit."""
    seeds = np.stack([np.full(5, seed), first + np.arange(5)], 1)
    np.testing.assert_array_equal(augment.uniform(tf.constant(seeds), stream), rng.uniform(seeds, stream))


@given(height=st.integers(1, 900), width=st.integers(1, 900), seed=st.integers(0, 10**9), least=st.floats(0.02, 1.0))
def test_a_crop_lies_inside_and_is_large_enough(height: Any, width: Any, seed: Any, least: Any) -> None:
    """Whatever the image; its aspect is one of those allowed, but for what whole pixels cost, unless it is all."""
    numbers = rng.crop_numbers(np.array([[1, seed]]))[0]
    crop = rng.random_crop(height, width, numbers, least)

    assert 0 <= crop.top <= height - crop.height and 0 <= crop.left <= width - crop.width
    assert crop.height > 0 and crop.width > 0
    assert crop.height * crop.width >= 0.99 * least * height * width
    if (crop.height, crop.width) != (height, width):
        assert 3 / 4 * (crop.height - 1) - 1 <= crop.width <= 4 / 3 * (crop.height + 1) + 1


BY_MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, DistEnv()),
        ({"RANK": "3"}, DistEnv()),  # somebody's own
        (BY_MPIRUN, DistEnv(5, 8, 1, 4)),
        (
            {**BY_MPIRUN, "RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"},
            DistEnv(7, 9, 3, 4),
        ),
    ],
)
def test_a_rank_knows_its_place(environment: Any, place: Any) -> None:
    """From Open MPI; from torchrun, which may itself have been started by mpirun, once per host; or it is alone."""
    assert place == DistEnv.of(environment)


def test_a_place_that_is_no_number_is_one_sentence() -> None:
    """Which variables it was."""
    with pytest.raises(ConfigError, match="LOCAL_RANK and LOCAL_WORLD_SIZE"):
        DistEnv.of({"RANK": "0", "WORLD_SIZE": "two", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})


@pytest.fixture(scope="module")
def three_ranks(torch_ranks: Ranks) -> Any:
    """What three ranks found that trained on different data."""
    return json.loads(torch_ranks(3, HERE / "torch_ranks.py").stdout.splitlines()[-1])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_ranks_hold_equal_values_after_steps_on_different_data(three_ranks: Any, precision: str) -> None:
    """Weights, momenta and statistics bit by bit, though they began apart; and all know what one asks for."""
    found = three_ranks[precision]

    assert 3 == found["apart"] == found["own_losses"]
    assert 1 == found["together"] == found["state"]
    assert [pytest.approx(1 / 3)] * 3 == found["requests"]
    assert found["times"]


def test_ranks_compute_the_step_that_one_rank_computes(three_ranks: Any) -> None:
    """Of the same parts, each normalised by itself; and every rank hears from all in their order."""
    assert max(three_ranks["of_all_parts"].values()) < 2e-4
    assert ["rank 0", "rank 1", "rank 2"] == three_ranks["gathered"]


def test_nccl_is_for_ranks_that_all_have_a_gpu_of_their_own(three_ranks: Any) -> None:
    """It refuses ranks that share one; and a host without makes all take gloo, else half of them waited for the others."""
    assert ["gloo", "nccl", "gloo", "gloo"] == three_ranks["backends"]


def small_run(data: Path, job: Path, batch: int = 8) -> tuple[Any, ...]:
    """Six steps and an evaluation."""
    return (
        *("trainer.resnet50_torch", "--model", "resnet18", "--image-size", 32, "--threads", 1, "--display-every", 1),
        *("--lr", 0.02, "--data-dir", data, "--job-dir", job, "--batch-size", batch, "--num-batches", 6, "--eval"),
    )


def test_an_evaluation_alone_says_when_it_is_done(torch_python: Path, mini_shards: Path, tmp_path: Path) -> None:
    """Whoever watches it sees no beginning that lasts for ever: its last phase is that of leaving."""
    job = {"DLAMI_JOB": f"torch-beat-{os.getpid()}", "DLAMI_ATTEMPT": "1"}
    file, words = beat_file(job), small_run(mini_shards, tmp_path)[:-1]
    assert file
    try:
        run_program(torch_python, "-m", *words, "--num-batches", 2, environment=job)
        assert (Phase.SAVE, 2) == (told(file)["phase"], told(file)["step"])
        run_program(torch_python, "-m", *words, "--eval-only", environment=job)
        assert (Phase.SAVE, 0) == (told(file)["phase"], told(file)["first"])
        assert told(file)["longest"][Phase.EVALUATE] > 0
    finally:
        file.unlink(missing_ok=True)


def curve(job: Path) -> Any:
    """(step, learning rate, loss) of the training records, and the scores."""
    found = metrics.read(job)
    train = [(r["step"], r["lr"], r["loss"]) for r in found if r["kind"] == "train"]
    return train, [(r["step"], r["images"], r["loss"]) for r in found if r["kind"] == "eval"]


@pytest.mark.promise("PyTorch")
def test_stopped_and_resumed_on_another_number_of_ranks_the_curve_is_the_uninterrupted_one(
    torch_ranks: Ranks, mini_shards: Path, tmp_path: Path
) -> None:
    """SIGUSR1 to mpirun reaches both ranks, rank 0 saves, the run ends with 0; one rank goes on with the same batch."""
    said = torch_ranks(2, *small_run(mini_shards, tmp_path / "whole")).stdout
    assert "DDP over gloo size: 2" in said and re.search(r"^Finished in \d+\.\d+$", said, re.M)

    said = torch_ranks(2, HERE / "interrupted.py", "stop", *small_run(mini_shards, tmp_path / "job")).stdout
    stopped = int(re.search(r"Asked to stop: saved after step (\d+)", said)[1])
    assert stopped < 5
    said = torch_ranks(1, *small_run(mini_shards, tmp_path / "job")).stdout
    assert (
        f"Resuming after step {stopped}\n1 rank instead of 2: 2 micro-steps each keep the global batch of 16\n" in said
    )

    (mine, scored), (whole, wanted) = curve(tmp_path / "job"), curve(tmp_path / "whole")
    assert [row[:2] for row in mine] == [row[:2] for row in whole]
    assert [row[2] for row in mine] == pytest.approx([row[2] for row in whole], rel=1e-3)
    assert (6, 27) == wanted[0][:2] == scored[0][:2]
    facts = CheckpointFolder(tmp_path / "job" / "checkpoints").newest()
    assert (6, 1, 2) == (facts.step, facts.more["ranks"], facts.more["origin_ranks"])


def test_what_is_wrong_is_one_sentence(
    torch_python: Path, torch_ranks: Ranks, mini_shards: Path, tmp_path: Path
) -> None:
    """A type that needs a GPU; ranks that cannot meet where they are told, or are not told; an interpreter that lacks packages."""
    words = small_run(mini_shards, tmp_path)
    done = run_program(torch_python, "-m", *words, "--precision", "float16", check=False)
    assert (1, 1) == (done.returncode, done.stderr.count("error: ")), done.stderr
    assert "--precision float16 wants GPUs, and PyTorch finds none: give bfloat16 or float32" in done.stderr

    first = ("env", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0",
             "OMPI_COMM_WORLD_LOCAL_SIZE=2")  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = run_program(
            *first, "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}", torch_python, "-m", *words, check=False
        )
    assert (1, 1, 0) == (taken.returncode, taken.stderr.count("error: "), taken.stderr.count("Traceback")), taken.stderr
    assert f"has taken 127.0.0.1:{port} (MASTER_ADDR, MASTER_PORT), where the ranks were to meet" in taken.stderr
    odd = run_program(*first, "MASTER_ADDR=127.0.0.1", "MASTER_PORT=x", torch_python, "-m", *words, check=False)
    assert (1, 1) == (odd.returncode, odd.stderr.count("error: the ranks cannot meet at 127.0.0.1:x ")), odd.stderr
    alone = run_program(*first, torch_python, "-m", *words, check=False)
    assert "error: 2 ranks, but MASTER_ADDR and MASTER_PORT do not say where the first one listens" in alone.stderr

    bare = run_program("/usr/bin/python3", "-S", "-m", *words, "--check", check=False)
    assert (1, True) == (bare.returncode, "error: /usr/bin/python3 lacks torch, numpy, google-crc32c" in bare.stderr)

"""Several ranks are one trainer: real Horovod under real mpirun."""

import json
import random
import re
import shutil
import signal
import socket
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.conftest import run_program
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.ranks import metrics
from trainer.common.ranks.precision import FIRST_SCALE

INTERRUPTED = Path(__file__).parent / "interrupted.py"
SMALL = (
    "trainer.resnet50",
    "--model",
    "resnet18",
    "--image-size",
    32,
    "--threads",
    1,
    "--display-every",
    1,
    "--lr",
    0.02,
)


def arrays(job: Any) -> Any:
    """What the newest checkpoint of a job holds."""
    folder = CheckpointFolder(job / "checkpoints")
    facts = folder.newest()
    return facts.step, folder.load(facts)


def curve(job: Any) -> Any:
    """(step, learning rate, loss) of the training records."""
    return [(r["step"], r["lr"], r["loss"]) for r in metrics.read(job) if r["kind"] == "train"]


@pytest.fixture(scope="module")
def two_ranks(ranks: Any) -> Any:
    """What two ranks found that trained on different data."""
    return json.loads(ranks(2, Path(__file__).parent / "ranks_stay_equal.py").stdout.splitlines()[-1])


def test_ranks_hold_equal_weights_after_steps_on_different_data(two_ranks: Any) -> None:
    """Bit by bit, statistics and momenta too, though their own gradients differ and they began apart."""
    found = two_ranks["trained"]

    assert found["weights_before_broadcast"] > 0.01
    assert found["own_gradients"] > 1e-3
    assert found["state"] == 0
    # One of two was asked to stop and got SIGTERM, the other wants a checkpoint, and both know.
    assert [0.5] * 3 == [found[name] for name in ("asked", "terminated", "due")]


def test_ranks_go_on_from_rank_0s_checkpoint_with_equal_weights(two_ranks: Any) -> None:
    """After a kill: only rank 0 reads, the others begin with weights of their own, and all end with the saved ones."""
    assert {"state": 0, "of_the_checkpoint": True, "step": 7} == two_ranks["resumed"]


def test_an_overflow_on_one_rank_skips_the_step_on_all(two_ranks: Any) -> None:
    """No weight moves, and all halve their loss scale."""
    assert {"skipped": 2, "state": 0, "scale": FIRST_SCALE / 2, "moved": 0} == two_ranks["overflow"]


@pytest.fixture(scope="module")
def alone(ranks: Any, mini_shards: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One rank on the global batch of 24, computed in six parts."""
    job = tmp_path_factory.mktemp("alone")
    ranks(
        1,
        *SMALL,
        "--data-dir",
        mini_shards,
        "--job-dir",
        job,
        "--batch-size",
        24,
        "--accumulate",
        6,
        "--num-batches",
        1,
    )
    return job


def test_ranks_compute_the_gradient_that_one_rank_computes(
    ranks: Any, alone: Any, mini_shards: Any, tmp_path: Path
) -> None:
    """On the same global batch, from the same shards, each part of it normalised by itself.

    After one step the momentum is the gradient (with the weight decay), so checkpoints can be compared.
    """
    words = ["--data-dir", mini_shards, "--job-dir", tmp_path, "--num-batches", 1]
    ranks(2, *SMALL, *words, "--batch-size", 12, "--accumulate", 3)
    (step, together), (_, single) = arrays(tmp_path), arrays(alone)

    assert step == 1 and set(single) == set(together)
    gradients = [name for name in single if name.endswith("/momentum")]
    assert len(gradients) == 62
    for name in single:
        scale = np.abs(single[name]).max() + 1e-9
        np.testing.assert_allclose(together[name] / scale, single[name] / scale, atol=2e-4, err_msg=name)
    assert curve(tmp_path)[0] == pytest.approx(curve(alone)[0], rel=1e-5)


@pytest.fixture(scope="module")
def uninterrupted(ranks: Any, mini_shards: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Twelve steps on two ranks, then an evaluation: its job folder and what it printed."""
    job = tmp_path_factory.mktemp("uninterrupted")
    return job, ranks(2, *long_run(mini_shards, job)).stdout


def long_run(data: Any, job: Any) -> Any:
    """Its words."""
    return (
        *SMALL,
        "--data-dir",
        data,
        "--job-dir",
        job,
        "--batch-size",
        8,
        "--num-batches",
        12,
        "--warmup-epochs",
        0.5,
        "--checkpoint-every",
        4,
        "--eval",
        "--deterministic",
    )


def test_the_table_and_the_evaluation_line_are_the_references(uninterrupted: Any, mini_shards: Any) -> None:
    """Columns and formats; the evaluation counts each validation image once; its time is UTC."""
    job, said = uninterrupted
    lines = said.splitlines()

    assert "Horovod size: 2" in lines
    assert ["Step", "Epoch", "Speed", "Loss", "FinLoss", "LR"] in [line.split() for line in lines]
    rows = [line for line in lines if re.fullmatch(r" *\d+ +\d+\.\d +\d+\.\d +\d+\.\d{3} +\d+\.\d{3} \d\.\d{5}", line)]
    assert [int(row.split()[0]) for row in rows] == list(range(12))
    assert re.search(r"^Finished in \d+\.\d+$", said, re.M)
    assert lines[-2].split() == ["step", "epoch", "top1", "top5", "loss", "checkpoint_time(UTC)"]
    (evaluation,) = (r for r in metrics.read(job) if r["kind"] == "eval")
    assert evaluation["images"] == 27
    assert 100 / 27 * round(evaluation["top1"] * 27 / 100) == pytest.approx(evaluation["top1"])
    facts = CheckpointFolder(job / "checkpoints").newest()
    assert lines[-1].endswith(facts.time.replace("T", " ").removesuffix("Z"))
    written = datetime.fromisoformat(facts.time).timestamp()
    assert written == pytest.approx((job / "checkpoints" / f"step-{facts.step:08d}.json").stat().st_mtime, abs=60)


def same_curve(job: Any, uninterrupted: Any) -> None:
    """The job's whole curve and its last weights are the uninterrupted run's, bit by bit: so were the images."""
    assert curve(job) == curve(uninterrupted)
    (step, mine), (wanted, other) = arrays(job), arrays(uninterrupted)
    assert step == wanted
    for name in other:
        np.testing.assert_array_equal(mine[name], other[name], err_msg=name)


@pytest.mark.promise("TensorFlow")
def test_stopped_and_killed_in_a_checkpoint_a_run_still_gives_the_uninterrupted_curve(
    ranks: Any, uninterrupted: Any, mini_shards: Any, tmp_path: Path
) -> None:
    """SIGUSR1 to mpirun reaches all ranks, rank 0 saves, the run ends with 0; SIGTERM to one rank alone saves as well, but
    the run ends with 143, for nobody asked; SIGKILL comes while a checkpoint is being written, and to one rank before any
    other step.

    Same steps, rates, losses and weights as without; steps after the last checkpoint are taken again, not twice.
    """
    words, checkpoints = long_run(mini_shards, tmp_path), tmp_path / "checkpoints"
    said = ranks(2, INTERRUPTED, "stop", *words).stdout
    stopped = int(re.search(r"Asked to stop: saved after step (\d+)", said)[1])
    assert arrays(tmp_path)[0] == stopped + 1

    terminated = ranks(2, INTERRUPTED, "terminate", *words, check=False)
    assert 128 + signal.SIGTERM == terminated.returncode
    stopped += 3
    line = (
        f"SIGTERM came to rank 1 ({socket.gethostname()}), and nobody had asked for a stop: saved after step {stopped};"
    )
    assert 1 == terminated.stderr.count(line), terminated.stderr
    assert arrays(tmp_path)[0] == stopped + 1

    torn = ranks(2, INTERRUPTED, "tear", *words, check=False)
    assert torn.returncode != 0
    assert f"Resuming after step {stopped}" in torn.stdout
    assert list(checkpoints.glob(".step-*"))
    step = random.randrange(1, 12 - stopped)
    killed = ranks(2, INTERRUPTED, f"kill:{step}", *words, check=False)
    assert killed.returncode != 0 and f"Resuming after step {stopped}" in killed.stdout, f"before its step {step}"
    last = ranks(2, *words).stdout

    assert re.search(r"Resuming after step (\d+)$", last, re.M)
    assert not list(checkpoints.glob(".step-*"))
    same_curve(tmp_path, uninterrupted[0])


def test_a_loss_that_is_no_number_ends_the_run_on_all_ranks_with_one_message(
    ranks: Any, mini_shards: Any, tmp_path: Path
) -> None:
    """And leaves no checkpoint of it."""
    done = ranks(
        2,
        *SMALL[:-2],
        "--lr",
        1e20,
        "--data-dir",
        mini_shards,
        "--job-dir",
        tmp_path,
        "--batch-size",
        4,
        "--num-batches",
        30,
        "--checkpoint-every",
        1,
        "--keep",
        40,
        check=False,
    )

    assert done.returncode == 1
    assert 1 == (done.stdout + done.stderr).count("error: "), done.stderr
    assert "lower --lr" in done.stderr and "Traceback" not in done.stderr
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert all(
        np.isfinite(array).all() for step in folder.steps() for array in folder.load(folder.facts(step)).values()
    )


def test_other_ranks_go_on_with_the_same_global_batch_and_the_metrics_tell_each_rank(
    ranks: Any, uninterrupted: Any, mini_shards: Any, tmp_path: Path
) -> None:
    """One rank resumes what two began, on 16 images per step; three cannot share them, and the rate is rescaled."""
    job = tmp_path / "job"
    shutil.copytree(uninterrupted[0], job)
    said = ranks(1, *long_run(mini_shards, job), "--num-batches", 14, "--cache", tmp_path / "disk").stdout
    last = [r for r in metrics.read(job) if r["kind"] == "train"][-3:]

    assert "Resuming after step 11\n1 rank instead of 2: 2 micro-steps each keep the global batch of 16\n" in said
    assert [(11, 2), (12, 1), (13, 1)] == [(r["step"], r["ranks"]) for r in last]
    assert last[1]["epoch"] == pytest.approx(12 * 16 / 130, abs=0.01)
    assert [2, 1, 1] == [len(r["rank_images_per_s"]) for r in last]
    for record in last:
        parts = record["input_s"] + record["compute_s"] + record["reduce_s"]
        assert 0 < parts < 1.05 * 16 / record["images_per_s"]
    facts = CheckpointFolder(job / "checkpoints").newest()
    assert (14, 14 * 16, 16, 1) == (facts.step, facts.more["images"], facts.more["global_batch"], facts.more["ranks"])
    assert 3 == len(list((tmp_path / "disk").glob("*/train-*")))

    said = ranks(3, *long_run(mini_shards, job), "--num-batches", 15).stdout
    rescaled = [r for r in metrics.read(job) if r["kind"] == "train"][-1]
    assert "3 ranks instead of 2: learning rate x 1.5, for 24 images per step instead of 16\n" in said
    planned = (0.02 - 1e-5) * (1 - 10 / 11) ** 2 + 1e-5  # of 15 steps 4 are the warm-up
    assert (14, 3, pytest.approx(1.5 * planned)) == (rescaled["step"], rescaled["ranks"], rescaled["lr"])


def test_a_deterministic_step_repeats_itself_bit_by_bit(ranks: Any) -> None:
    """On three ranks, whose sums depend on the order of adding; with LARC, mixup, colours and averaged weights."""
    found = json.loads(ranks(3, Path(__file__).parent / "repeats_itself.py").stdout.splitlines()[-1])

    assert all(found.values()), [name for name, same in found.items() if not same]
    assert 2 + 62 * 3 + 40 * 2 == len(found)


@pytest.mark.long
def test_on_request_a_run_repeats_itself_bit_by_bit(ranks: Any, mini_shards: Any, tmp_path: Path) -> None:
    """Three ranks, whose sums depend on the order of adding; LARC, mixup, colours and averaged weights included."""
    found = []
    for name in "ab":
        ranks(
            3,
            *SMALL,
            "--data-dir",
            mini_shards,
            "--job-dir",
            tmp_path / name,
            "--batch-size",
            4,
            "--num-batches",
            3,
            "--deterministic",
            "--larc",
            "--mixup-alpha",
            0.2,
            "--increased-aug",
            "--ema-decay",
            0.9,
            "--label-smoothing",
            0.1,
        )
        found.append(arrays(tmp_path / name)[1])

    assert curve(tmp_path / "a") == curve(tmp_path / "b")
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name], found[1][name], err_msg=name)


def test_a_rank_alone_gathers_its_own_bytes() -> None:
    told = "from trainer.common.ranks.horovod_rank import Gather, start; start(1); print(Gather(1)(b'own'))"
    assert "[b'own']" == run_program(sys.executable, "-c", told).stdout.strip()


def test_a_rank_that_horovod_leaves_alone_says_so(python: Any) -> None:
    """As each does whose Horovod was built with another Open MPI than its mpirun: it must not train by itself."""
    words = ("--model", "resnet18", "--image-size", 32, "--batch-size", 2, "--num-batches", 2)
    for module, more in (("trainer.benchmark", words), ("cluster.health.ranks.reduce", ("--sizes", 4096))):
        done = python(module, *more, check=False, environment={"OMPI_COMM_WORLD_SIZE": "2"})

        assert 0 != done.returncode
        assert "mpirun started ranks: 2, Horovod finds: 1. It was built with another Open MPI" in done.stderr
        assert "Traceback" not in done.stderr

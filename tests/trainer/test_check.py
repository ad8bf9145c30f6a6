"""What cannot work is refused before TensorFlow starts, in one sentence, with exit code 2."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE_S
from trainer.common.data import records

CHECK = ("trainer.resnet50", "--check", "--job-dir", "job")
EPOCH = ("--num-epochs", 1, "--batch-size", 4)


def refusal(done: Any) -> Any:
    """The one line of a refused command."""
    assert done.returncode == 2, done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--synthetic",), "--num-epochs or --num-batches"),
        (("--num-epochs", 1), "--data-dir FOLDER or --synthetic"),
        (("--synthetic", "--num-batches", 5, "--eval"), "no validation images"),
        (("--synthetic", "--num-batches", "many"), "--num-batches"),
        (("--synthetic", "--num-batches", 0), "--num-batches is 0"),
        (("--synthetic", "--num-batches", 5, "--lr", -1), "--lr is -1"),
        (("--synthetic", "--num-batches", 5, "--momentum", "nan"), "--momentum is nan"),
        (("--synthetic", "--num-batches", 5, "--crop-area", 2), "--crop-area is 2"),
        (("--synthetic", "--num-batches", 5, "--model", "vgg16"), "resnet152"),
        (("--synthetic", "--num-batches", 5, "--batch-size", 10, "--accumulate", 3), "3 equal parts"),
        (("--synthetic", "--num-batches", 5, "--warmup-epochs", 1), "--warmup-epochs 1 is"),
        (("--synthetic", "--num-batches", 5, "--ranks", 0), "--ranks is 0"),
        (("--synthetic", "--num-epochs", 1e-9), "less than one step"),
        (("--data-dir", "nowhere", "--num-epochs", 1), "nowhere: no such data folder"),
        (("--synthetic", "--num-batches", 5, "--bogus"), "--bogus"),
    ],
)
def test_flags_that_cannot_work_are_refused(python: Any, flags: Any, says: Any) -> None:
    """The sentence names the flag."""
    assert says in refusal(python(*CHECK, *flags, check=False))


def test_real_data_needs_a_job_folder(python: Any, mini_shards: Any) -> None:
    """A training whose result would be lost is not started."""
    done = python("trainer.resnet50", "--check", "--data-dir", mini_shards, *EPOCH, check=False)

    assert "--job-dir is missing" in refusal(done)


def test_missing_shards_are_named(python: Any, mini_shards: Any, tmp_path: Path) -> None:
    """A folder that lacks a shard its names promise would silently train on less."""
    data = shutil.copytree(mini_shards, tmp_path / "data")
    (data / "train-00001-of-00003").unlink()

    assert "train-00001-of-00003" in refusal(python(*CHECK, "--data-dir", data, *EPOCH, check=False))


def test_more_ranks_than_examples_are_refused(python: Any, mini_shards: Any) -> None:
    """130 images cannot give 64 ranks 4 each."""
    done = python(*CHECK, "--data-dir", mini_shards, *EPOCH, "--ranks", 64, check=False)

    assert "64 ranks x --batch-size 4 = 256" in refusal(done)


def test_an_evaluation_that_would_never_come_is_refused(python: Any, mini_shards: Any) -> None:
    """Its period lies beyond the run."""
    done = python(*CHECK, "--data-dir", mini_shards, *EPOCH, "--eval-every", 5, check=False)

    assert "--eval-every 5" in refusal(done)


def test_a_cut_off_shard_is_named(python: Any, mini_shards: Any, tmp_path: Path) -> None:
    """Found by its size, without reading the images."""
    data = shutil.copytree(mini_shards, tmp_path / "data")
    shard = data / "train-00002-of-00003"
    shard.write_bytes(shard.read_bytes()[:-10])

    done = python(*CHECK, "--data-dir", data, *EPOCH, check=False)

    assert done.returncode == 1
    assert str(shard) in done.stderr and "cut off" in done.stderr


@pytest.mark.parametrize("kept", [0, 1, 5])
def test_a_shard_cut_off_between_two_records_is_named(python: Any, mini_shards: Any, tmp_path: Path, kept: Any) -> None:
    """It looks whole by itself: only the manifest knows its size."""
    data = shutil.copytree(mini_shards, tmp_path / "data")
    shard = data / "train-00002-of-00003"
    index = records.scan([shard])
    shard.write_bytes(shard.read_bytes()[: int(index.offset[kept]) - records.HEADER_BYTES])
    assert kept == len(records.scan([shard]))

    done = python(*CHECK, "--data-dir", data, *EPOCH, check=False)

    assert done.returncode == 1
    assert str(shard) in done.stderr and "but the manifest says" in done.stderr


def test_the_plan_is_said_in_numbers(python: Any, mini_shards: Any, imagenet_mini: Any) -> None:
    """`--json` gives the steps that follow from ranks and data; the text names them too."""
    flags = (*CHECK, "--data-dir", mini_shards, *EPOCH, "--ranks", 2, "--eval")
    images = len(list(imagenet_mini.glob("train/*/*")))
    classes = len((imagenet_mini / "synsets.txt").read_text().splitlines())
    found = json.loads(python(*flags, "--json").stdout)

    assert (images, 8, images // 8) == (found["train_examples"], found["global_batch"], found["steps"])
    assert (found["validation_examples"], found["classes"]) == (27, classes)
    assert f"{images // 8} steps" in python(*flags).stdout


def test_the_check_does_not_load_tensorflow(python: Any) -> None:
    """Or it would take seconds."""
    code = (
        "import sys; from trainer.resnet50.__main__ import main; code = main(sys.argv[1:]);"
        "sys.exit(code or 'tensorflow' in sys.modules)"
    )
    words = (sys.executable, "-c", code, "--check", "--synthetic", "--num-batches", "5")
    assert subprocess.run(words, timeout=PATIENCE_S).returncode == 0

"""What a task that trains understands before it asks any host."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.commandline.starting import number_of_ranks
from cluster.commandline.training import benchmark_flags
from cluster.errors import ConfigError
from cluster.inventory import ROOT


@pytest.mark.parametrize(("np", "expected"), [("", None), ("1", 1), ("64", 64)])
def test_a_number_of_ranks(np: Any, expected: Any) -> None:
    """None if none was given."""
    assert expected == number_of_ranks(np)


@pytest.mark.parametrize("np", ["two", "1,2", "0", "-1", "1.5", "٣", "1" * 5000])
def test_no_number_of_ranks(np: Any) -> None:
    """Refused with what was expected."""
    with pytest.raises(ConfigError, match="expected one number of ranks, such as 4"):
        number_of_ranks(np)


@pytest.mark.parametrize("task", ["train.resnet50", "train.maskrcnn", "train.benchmark", "jobs.resume"])
@pytest.mark.parametrize("np", ["two", "1,2"])
def test_inv_says_so_in_a_line(task: Any, np: Any, tmp_path: Path) -> None:
    """Exit code 2, no traceback."""
    words = [sys.executable, "-m", "invoke", task, *(["x"] if task == "jobs.resume" else []), "--np", np]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (2, f"--np is {np!r}, expected one number of ranks, such as 4\n") == (done.returncode, done.stderr)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--num_batches", "100", "--model", "vgg16"], ["--num-batches", "100", "--model", "vgg16"]),
        (["--num_batches=100", "--use_fp16", "--data_dir=/a_b"], ["--num-batches=100", "--fp16", "--data-dir=/a_b"]),
        (["--use_fp16=True"], ["--fp16"]),
        (["--use_fp16=false"], []),
        (["--init_learning_rate", "0.1"], ["--lr", "0.1"]),
        (["--num-batches", "2", "my_model"], ["--num-batches", "2", "my_model"]),
    ],
)
def test_tf_cnn_benchmarks_spellings(words: Any, expected: Any) -> None:
    """A tutorial's command line works as it stands there; values keep their underscores."""
    assert expected == benchmark_flags(words)


@pytest.mark.parametrize("task", ["train.resnet50", "train.maskrcnn", "train.benchmark"])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_a_trainer_s_help_starts_no_job(task: Any, flag: Any, tmp_path: Path) -> None:
    """It is printed without a cluster: there is no hostfile here."""
    done = subprocess.run(
        [sys.executable, "-m", "invoke", task, "--", flag],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": "/usr/bin:/bin", "CLUSTER": str(tmp_path)},
    )

    assert 0 == done.returncode, done.stderr
    assert "usage: " in done.stdout
    assert "--job-dir" in done.stdout

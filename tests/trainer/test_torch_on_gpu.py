"""The PyTorch trainer on a GPU: what it computes, what its steps' times say, and ranks that share one.

Skipped where no GPU is at hand; `DLAMI_TEST_GPU_PYTHON` names an interpreter with PyTorch that the usual places do not have.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dlami.tasks.starting import PYTORCH
from tests.trainer.conftest import Ranks, run_program

HERE = Path(__file__).parent
_SEES = "import torch, sys; sys.exit(not torch.cuda.is_available())"


@pytest.fixture(scope="module")
def gpu_python() -> Path:
    """An interpreter whose PyTorch sees a GPU."""
    for python in filter(None, (os.environ.get("DLAMI_TEST_GPU_PYTHON"), PYTORCH)):
        if Path(python).exists() and not subprocess.run([python, "-c", _SEES], timeout=120).returncode:
            return Path(python)
    pytest.skip("no GPU is at hand, or no PyTorch that sees it")


@pytest.fixture(scope="module")
def alone(gpu_python: Path) -> dict[str, Any]:
    """What one rank found there."""
    found: dict[str, Any] = json.loads(run_program(gpu_python, HERE / "torch_on_gpu.py").stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("flags", "most"), [("float32", 1e-3), ("planar", 1e-3), ("bfloat16", 0.1)])
def test_a_gpu_trains_what_a_processor_trains(alone: Any, flags: str, most: float) -> None:
    """The way that the weights go in three steps, and the losses on it."""
    assert "cuda:0" == alone["device"]
    assert alone[flags]["weights"] < most and alone[flags]["losses"] < most


def test_images_that_are_drawn_lie_where_the_gpu_fetches_them(alone: Any) -> None:
    """As those of shards do."""
    assert alone["pinned"]


def test_float16_is_computed_with_its_scale(alone: Any) -> None:
    """The losses are numbers, and fall."""
    first, *_, last = alone["float16"]
    assert last < first < 10


@pytest.mark.parametrize(
    ("where", "span", "other"),
    [("late gradients", "compute_s", "reduce_s"), ("late update", "reduce_s", "compute_s")],
)
def test_a_step_tells_where_the_gpu_took_its_time(alone: Any, where: str, span: str, other: str) -> None:
    """And not how quickly the host could queue it: a slow GPU is a slow rank."""
    times = alone[where]
    assert times[span] > 0.35 > times[other], times


def test_ranks_that_share_a_gpu_train_by_gloo(gpu_python: Path) -> None:
    """NCCL would refuse them."""
    found = json.loads(Ranks(gpu_python)(2, HERE / "torch_on_gpu.py").stdout.splitlines()[-1])
    assert {"backend": "gloo", "gpu": 0, "values": 1, "own losses": 2} == found

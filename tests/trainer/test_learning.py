"""The trainer learns: a drawn set of ten classes, four ranks on four hosts, against one rank."""

from pathlib import Path
from typing import Any

import pytest

from cluster.lab.record import Lab
from tests.conftest import Inv
from trainer import metrics

TOP1 = 45.0  # percent; chance is 10
NOISE = 18.0  # between two runs of these few steps, which normalise 12 images or 48 at once

WORDS = (
    "--data-dir",
    "/shared/learning/shards",
    "--model",
    "resnet18",
    "--image-size",
    32,
    "--num-epochs",
    4,
    "--lr",
    0.07,
    "--lr-decay-mode",
    "cosine",
    "--warmup-epochs",
    0.5,
    "--crop-area",
    0.6,
    "--eval",
)

# Elsewhere it is computed in float32 and rounded, many times slower.
in_hardware = any(flag in Path("/proc/cpuinfo").read_text() for flag in ("avx512_bf16", "amx_bf16"))


@pytest.fixture(scope="module")
def drawn(four_inv: Inv) -> None:
    """1200 and 300 drawn images as shards where the hosts share them."""
    for words in (
        ("data.sample", "--out", "/shared/learning/raw", "--", "--train", 1200, "--validation", 300),
        ("data.imagenet", "--raw", "/shared/learning/raw", "--out", "/shared/learning/shards"),
    ):
        done = four_inv(*words)
        assert 0 == done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def reached(drawn: Any, four_inv: Inv, four_hosts: Lab) -> Any:
    """Top-1 in percent after training; each combination is trained once, on 48 images per step."""
    found = {}

    def top1(count: Any, precision: Any) -> Any:
        if (count, precision) not in found:
            hosts = "0" if count == 1 else "@all"
            done = four_inv(
                "train.resnet50",
                "--hosts",
                hosts,
                "--np",
                count,
                "--name",
                f"learn{count}{precision}",
                "--unchecked",
                "--",
                *WORDS,
                "--batch-size",
                48 // count,
                "--threads",
                1 if count > 1 else 2,
                "--precision",
                precision,
                timeout=1000,
            )
            assert 0 == done.returncode, done.stdout + done.stderr
            (job,) = (four_hosts.shared / "jobs").glob(f"*learn{count}{precision}*")
            found[count, precision] = metrics.read(job)[-1]["top1"]
        return found[count, precision]

    return top1


@pytest.mark.timeout(1100)
@pytest.mark.parametrize(
    "precision", ["float32", pytest.param("bfloat16", marks=() if in_hardware else pytest.mark.long)]
)
def test_four_ranks_on_four_hosts_learn_as_one_does(reached: Any, precision: Any) -> None:
    """Far above chance, and within noise of one rank in float32."""
    top1 = reached(4, precision)
    assert top1 > TOP1
    assert top1 == pytest.approx(reached(1, "float32"), abs=NOISE)

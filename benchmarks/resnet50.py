"""ResNet-50 steps on synthetic images at 224 pixels: `python benchmarks/resnet50.py`, writes results/resnet50.json.

Peers that run here: tf.keras `fit`; a loop over tf.keras' network with Horovod's gradient tape (keras_peer.py); and
independent processes without Horovod (the same trainer, one rank each, side by side). All are the paper's ResNet-50,
strides in the first 1x1. Every round launches each candidate once; ranks of all programs are started by the same
mpirun words. tf_cnn_benchmarks is not part of any package: `--tf-cnn DIR` measures the rows against it alone, from a
checkout (tf_cnn.py), one rank step by step, two ranks launch by launch; a run without it leaves its rows as they are.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rounds, tf_cnn, yardstick  # noqa: E402

ENVIRONMENT = {  # oneDNN is given to the peers, too: the trainers turn it on by themselves
    "TF_ENABLE_ONEDNN_OPTS": "1",
    **os.environ,
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_USE_LEGACY_KERAS": "1",
    "PYTHONPATH": str(ROOT),
}
MPIRUN = [
    "mpirun",
    "--allow-run-as-root",
    "--oversubscribe",
    "--bind-to",
    "core",
    "--map-by",
    "core",
    "--mca",
    "btl_vader_single_copy_mechanism",
    "none",
    "--mca",
    "mpi_yield_when_idle",
    "1",
    "-x",
    "HOROVOD_CYCLE_TIME=50",
]
TIMEOUT_S = 1800


def has_bfloat16() -> bool:
    """Whether the processor computes in bfloat16; elsewhere it is emulated, many times slower than float32."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def speed_of(words: list[str]) -> float:
    """The total images/s that a program prints."""
    done = subprocess.run(
        words, check=True, capture_output=True, text=True, timeout=TIMEOUT_S, env=ENVIRONMENT, cwd=ROOT
    )
    found = re.search(r"total images/sec: ([\d.]+)", done.stdout)
    assert found, done.stdout
    return float(found[1])


class Candidates:
    """What is launched; each gives seconds per image."""

    def __init__(self, a: argparse.Namespace) -> None:
        self._a = a

    def _ours(self, threads: int, *flags: str) -> list[str]:
        a = self._a
        return [
            sys.executable,
            "-m",
            "trainer.benchmark",
            "--model",
            "resnet50",
            "--batch-size",
            str(a.batch),
            "--num-batches",
            str(a.steps),
            "--num-warmup-batches",
            "2",
            "--image-size",
            str(a.size),
            "--threads",
            str(threads),
            *flags,
        ]

    def one_rank(self, *flags: str) -> float:
        """One rank of two threads."""
        return 1 / speed_of(self._ours(2, *flags))

    def two_ranks(self, *flags: str) -> float:
        """Two ranks of one thread."""
        return 1 / speed_of([*MPIRUN, "-np", "2", *self._ours(1, *flags)])

    def independent(self, *flags: str) -> float:
        """Two processes of one thread at once, each on its core, that do not know each other."""
        started = [
            subprocess.Popen(
                ["taskset", "-c", str(core), *self._ours(1, *flags)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=ENVIRONMENT,
                cwd=ROOT,
            )
            for core in range(2)
        ]
        said = [p.communicate(timeout=TIMEOUT_S)[0] for p in started]
        return 1 / sum(float(re.search(r"total images/sec: ([\d.]+)", s)[1]) for s in said)  # type: ignore[index]

    def keras(self, way: str, threads: int, ranks: int = 1) -> float:
        """tf.keras' network in float32, `fit` or Horovod's tape."""
        a = self._a
        start = [*MPIRUN, "-np", str(ranks)] if ranks > 1 else []
        return 1 / speed_of(
            [
                *start,
                sys.executable,
                str(ROOT / "benchmarks/keras_peer.py"),
                way,
                *map(str, (a.batch, a.steps, a.size, threads)),
            ]
        )


def rows_without_bfloat16(head: str) -> list[dict[str, Any]]:
    """What a processor cannot show that has no bfloat16."""
    against = "this processor has no bfloat16"
    row = {"value": None, "unit": "s/image", "against": against, "ratio": None, "runs": 0, "spread": []}
    return [
        {"what": head + what, **row, "goal": goal} for what, goal in (("bfloat16", 0.55), ("2 ranks, bfloat16", 1.06))
    ]


def beside_tf_cnn(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of one rank of each in turn, then of two ranks of each, launched in turn."""
    checkout, c = a.tf_cnn, Candidates(a)
    yield from tf_cnn.step_rows(checkout, batch=a.batch, steps=a.steps * a.rounds)
    theirs, ours = [*MPIRUN, "-np", "2", *tf_cnn.as_ranks(checkout, batch=a.batch, steps=a.steps)], "2 ranks, float32"
    peer = f"{tf_cnn.NAME}, 2 ranks"
    runs = rounds.rounds({peer: lambda: 1 / speed_of(theirs), ours: c.two_ranks}, a.rounds)
    head = f"ResNet-50 synthetic, {a.size} pixels, batch {a.batch}, "
    yield rounds.row(runs, ours, peer, tf_cnn.STEP_GOAL, unit="s/image", label=head + ours)


def rows_of(a: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows, from as many rounds as asked for."""
    c = Candidates(a)
    fit, tape, tape2 = "tf.keras fit, float32", "Horovod's tape, float32", "Horovod's tape, 2 ranks, float32"
    alone, alone16 = "two independent processes", "two independent processes, bfloat16"
    ours: dict[str, Callable[[], float]] = {
        fit: lambda: c.keras("fit", 2),
        tape: lambda: c.keras("tape", 2),
        "float32": c.one_rank,
        "bfloat16": lambda: c.one_rank("--bf16"),
        alone: c.independent,
        tape2: lambda: c.keras("tape", 1, ranks=2),
        "2 ranks, float32": c.two_ranks,
        alone16: lambda: c.independent("--bf16"),
        "2 ranks, bfloat16": lambda: c.two_ranks("--bf16"),
    }
    if not has_bfloat16():
        ours = {name: measure for name, measure in ours.items() if "bfloat16" not in name}
    runs = rounds.rounds(ours, a.rounds)
    head = f"ResNet-50 synthetic, {a.size} pixels, batch {a.batch}, "
    rows = [
        rounds.row(runs, what, against, goal, unit="s/image", label=head + what)
        for what, against, goal in (
            ("float32", fit, 1.0),
            ("float32", tape, 1.0),
            ("bfloat16", fit, 0.55),
            ("bfloat16", tape, 0.55),
            ("2 ranks, float32", tape2, 1.0),
            ("2 ranks, float32", alone, 1.06),
            ("2 ranks, bfloat16", tape2, 0.6),
            ("2 ranks, bfloat16", alone16, 1.06),
        )
        if what in runs
    ]
    without = [] if has_bfloat16() else rows_without_bfloat16(head)
    return [*rows, *without, yardstick.row()]


def main() -> None:
    """Measures and writes the rows."""
    parser = argparse.ArgumentParser(description="Training speed against peers.")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--tf-cnn", type=Path, help="checkout of tensorflow/benchmarks: measure beside it, nothing else"
    )
    a = parser.parse_args()
    if a.tf_cnn and a.size != tf_cnn.SIZE:
        parser.error(f"tf_cnn_benchmarks' ResNet-50 is for {tf_cnn.SIZE} pixels: leave out --size")
    beside, others = rounds.committed("resnet50", tf_cnn.NAME)
    if not a.tf_cnn:
        rounds.write("resnet50", [*rows_of(a), *beside])
        return
    for row in beside_tf_cnn(a):  # each kept as it comes
        others.append(row)
        rounds.write("resnet50", others)


if __name__ == "__main__":
    main()

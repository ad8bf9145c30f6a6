"""What a checkpoint takes from a training: `python benchmarks/checkpoint.py`, writes results/checkpoint.json.

ResNet-50 with momentum, 205 MB, one rank of two threads. A window is a number of steps on small images: the state is
the same, and short steps show a disturbance. Every round has three, in turn: without a checkpoint; with one written
behind, begun at its start; with one written while the training waits. What a checkpoint takes is how much more
time its window takes than the median of those without. Goals are shares of the 30 s between two checkpoints. Processor
time is what others on the machine change little.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rounds, yardstick  # noqa: E402

WITHOUT, BEHIND, WAITING = "without a checkpoint", "written behind", "written while all wait"
COMPUTED = ", processor time"
HELD_UP = "the training waits for the copy to memory"
KINDS = tuple(name + kind for name in (WITHOUT, BEHIND, WAITING, HELD_UP) for kind in ("", COMPUTED))
GOAL = 0.01  # of the time
CORES = 2
EVERY_S = 30.0
TIMEOUT_S = 3600


def measure(folder: Path, times: int, steps: int, size: int) -> None:
    """Prints, as JSON, the seconds of each kind of window, and of the main thread's part of a checkpoint behind."""
    from trainer.common.ranks.horovod_rank import start

    start(2)
    from trainer.common.checkpoints.checkpoint import CheckpointFolder
    from trainer.resnet50.config import ResNetConfig
    from trainer.resnet50.images import synthetic
    from trainer.resnet50.step import TensorFlowLearner
    from trainer.common.checkpoints.background_save import Saver

    config = ResNetConfig(model="resnet50", synthetic=True, image_size=size, batch_size=8, num_batches=1)
    learner = TensorFlowLearner(config, classes=1000)
    batches = synthetic(batch=8, size=size, classes=1000, seed=1, rank=0)
    behind = Saver(CheckpointFolder(folder / "behind"), keep=3, seconds=None, cores=2, rate="")
    waiting = Saver(CheckpointFolder(folder / "waiting"), keep=3, seconds=None, cores=2, rate="")
    found: dict[str, list[float]] = {name: [] for name in KINDS}

    def state() -> dict[str, Any]:
        return {name: variable.numpy() for name, variable in learner.state().items()}

    def train(count: int) -> None:
        for _ in range(count):
            learner.result(learner.train(next(batches), 0.01))

    train(5)
    for number in range(1, times + 2):
        seconds = {}
        for name in (WITHOUT, BEHIND, WAITING):
            began, busy, own = time.perf_counter(), time.process_time(), time.thread_time()
            if name == BEHIND:
                behind.save(number, state, {})
                seconds[HELD_UP] = time.perf_counter() - began
                seconds[f"{HELD_UP}{COMPUTED}"] = time.thread_time() - own
            elif name == WAITING:
                waiting.save(number, state, {})
                waiting.wait()
            train(steps)
            seconds[name] = time.perf_counter() - began
            behind.wait()
            seconds[f"{name}{COMPUTED}"] = time.process_time() - busy
        if number > 1:  # the first fills caches
            for name, taken in seconds.items():
                found[name].append(taken)
    megabytes = behind.written.bytes / 1e6 if behind.written else 0.0
    print(json.dumps({**found, "megabytes": [megabytes]}))


def rows_of(found: rounds.Runs) -> list[dict[str, Any]]:
    """Seconds that a checkpoint takes, as shares of the time between two."""
    usual, computed = (statistics.median(found[WITHOUT + kind]) for kind in ("", COMPUTED))
    head = f"checkpoint of {found['megabytes'][0]:.0f} MB: "
    between = f"{EVERY_S:.0f} s between two"
    costs = {
        HELD_UP: found[HELD_UP],
        f"{HELD_UP}{COMPUTED}": found[f"{HELD_UP}{COMPUTED}"],
        f"{BEHIND}: time lost in all": [taken - usual for taken in found[BEHIND]],
        f"{WAITING}: time lost in all": [taken - usual for taken in found[WAITING]],
    }
    theirs = {f"{BEHIND}: processor time": [taken - computed for taken in found[BEHIND + COMPUTED]]}
    both = f"{CORES} cores for {EVERY_S:.0f} s"
    runs = {**costs, **theirs, between: [EVERY_S], both: [CORES * EVERY_S]}
    rows = []
    for what in (*costs, *theirs):
        goal = None if WAITING in what else GOAL
        rows.append(rounds.row(runs, what, both if what in theirs else between, goal, label=head + what))
    return [*rows, rounds.row({WITHOUT: found[WITHOUT]}, WITHOUT, label="a window " + WITHOUT)]


def main() -> None:
    """Measures in a process of its own and writes the rows."""
    parser = argparse.ArgumentParser(description="What a checkpoint takes from a training.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=24, help="in a window")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--measure", type=Path, help="measure in this folder and print; as the benchmark calls itself")
    a = parser.parse_args()
    if a.measure:
        measure(a.measure, a.rounds, a.steps, a.size)
        return
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--measure", folder]
        words += ["--rounds", str(a.rounds), "--steps", str(a.steps), "--size", str(a.size)]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            words, check=True, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, env=environment, cwd=ROOT
        )
    rounds.write("checkpoint", [*rows_of(json.loads(done.stdout)), yardstick.row()])


if __name__ == "__main__":
    main()

"""Where a rank's start goes: `python benchmarks/training_start.py`, writes results/training_start.json.

ResNet-18 at 64 pixels, one rank of two threads, from its checkpoint; each launch is a process of its own. Values are
seconds of processor time, of all threads: a busy machine changes them little, and ranks that share a host's cores wait
for just that. The rows with a peer are of launches that alternate with Horovod's own broadcast, a graph with an
operation per variable; `BEFORE=/path/of/another/checkout` adds whole processes that train for two steps, each in turn
with the same of that checkout.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rounds  # noqa: E402
from benchmarks.maskrcnn_setup import REDUCED, sizes  # noqa: E402

PHASES = ("TensorFlow and Horovod imported", "Horovod started", "checkpoint found and verified, network built")
PHASES += ("checkpoint read, all ranks given it", "metrics begun", "first step", "second step")
GIVEN = PHASES[3]
THEIRS = "by Horovod's graph of broadcasts"
TIMEOUT_S = 600
BEFORE = "in a checkout of before"
NETWORKS = {  # what trains, and by which words, on which drawn data
    "ResNet-18 at 32 pixels": (
        "trainer.resnet50 --model resnet18 --image-size 32 --batch-size 6 --num-batches 2 --threads 1",
        "--data-dir={}/shards",
    ),
    "a reduced Mask R-CNN at 128 pixels": (
        f"trainer.maskrcnn {' '.join((*REDUCED, *sizes(128, 192)))} --threads 1 "
        "TRAIN.MAX_STEPS=2 TRAIN.STEPS_PER_EPOCH=2 TRAIN.WARMUP=1 TRAIN.EVAL_PERIOD=0 TRAIN.EVAL_AT_END=False",
        "DATA.BASEDIR={}/shapes",
    ),
}


def measure(job: Path, is_plain: bool) -> None:
    """Prints the processor seconds of each phase, in their order."""
    spent = [time.process_time()]

    def mark() -> None:
        spent.append(time.process_time())

    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    from trainer.common.ranks import gc_freeze

    gc_freeze.spare_start()  # as `trainer.common.ranks.horovod_rank.start` does, which imports Horovod itself
    import horovod.tensorflow as hvd

    mark()
    from trainer.common.ranks.horovod_rank import start

    ranks = start(2)
    mark()
    from trainer.common.ranks.metrics import MetricsWriter
    from trainer.resnet50.train_loop import TrainLoop
    from trainer.resnet50.config import ResNetConfig
    from trainer.resnet50.horovod import engine
    from trainer.resnet50.plan import look_up, make_plan

    config = ResNetConfig(model="resnet18", synthetic=True, image_size=64, batch_size=16, num_batches=1000, job_dir=job)
    attempt = TrainLoop(make_plan(config, 1, look_up(config)), engine(ranks))
    mark()
    if is_plain:
        attempt.learner.broadcast = lambda rank=0: hvd.broadcast_variables(  # type: ignore[method-assign]
            list(attempt.learner.state().values()), rank
        )
    attempt._restore()
    mark()
    with MetricsWriter(job, attempt.step):
        mark()
    batches = attempt.source.training(attempt.plan, attempt.step)
    for _ in range(2):
        attempt.learner.result(attempt.learner.train(next(batches), 0.01))
        mark()
    if attempt.saver and attempt.newest.facts is None:
        attempt.step = 2
        attempt._save_last()
    print(json.dumps([after - before for before, after in itertools.pairwise(spent)]))


def launch(job: Path, is_plain: bool) -> list[float]:
    """The phases of one launch."""
    words = [sys.executable, __file__, "--measure", str(job), *(["--plain"] if is_plain else [])]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        words, check=True, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, cwd=ROOT
    )
    return [float(s) for s in json.loads(done.stdout.splitlines()[-1])]


def draw(folder: Path) -> None:
    """What the whole processes train on."""
    for words in (
        f"trainer.sample --out {folder}/raw --train 60 --validation 20",
        f"trainer.imagenet --raw {folder}/raw --out {folder}/shards",
        f"trainer.coco.sample --out {folder}/shapes --train 20 --val 10 --size 128",
    ):
        subprocess.run(
            [sys.executable, "-m", *words.split()], check=True, capture_output=True, timeout=TIMEOUT_S, cwd=ROOT
        )


def whole(checkout: Path, network: str, data: Path) -> float:
    """Processor seconds of a training's process, from its start to its end."""
    words, where = NETWORKS[network]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(checkout)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as job:
        subprocess.run(
            [sys.executable, "-m", *words.split(), where.format(data), "--job-dir", job],
            check=True, capture_output=True, timeout=TIMEOUT_S, env=environment, cwd=checkout,
        )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def beside(other: Path, runs: rounds.Runs, count: int) -> list[str]:
    """Whole trainings in turn with another checkout's; what they are called."""
    with tempfile.TemporaryDirectory() as data:
        draw(Path(data))
        for _ in range(count):
            for network in NETWORKS:
                runs.setdefault(network, []).append(whole(ROOT, network, Path(data)))
                runs.setdefault(f"{network}, {BEFORE}", []).append(whole(other, network, Path(data)))
    return [*NETWORKS]


def main() -> None:
    """Launches in turn and writes the rows."""
    parser = argparse.ArgumentParser(description="Where a rank's start goes.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", type=Path, help="be one launch, with this job folder; as it calls itself")
    parser.add_argument("--plain", action="store_true", help="with --measure: by Horovod's graph of broadcasts")
    a = parser.parse_args()
    if a.measure:
        measure(a.measure, a.plain)
        return
    runs: rounds.Runs = {}
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder)
        launch(job, is_plain=False)  # leaves the checkpoint
        ways: dict[str, Callable[[], list[float]]] = {"": lambda: launch(job, False), THEIRS: lambda: launch(job, True)}
        for _ in range(a.rounds):
            for way, take in ways.items():
                phases = take()
                for name, seconds in zip(PHASES, phases, strict=True):
                    runs.setdefault(f"{name}{', ' * bool(way)}{way}", []).append(seconds)
                runs.setdefault(f"in all{', ' * bool(way)}{way}", []).append(sum(phases))
    rows = [
        rounds.row(runs, name, f"{name}, {THEIRS}" if name in (GIVEN, "in all") else "", unit="CPU s")
        for name in (*PHASES, "in all")
    ]
    if other := os.environ.get("BEFORE"):
        rows += [
            rounds.row(runs, name, f"{name}, {BEFORE}", unit="CPU s") for name in beside(Path(other), runs, a.rounds)
        ]
    rounds.write("training_start", rows)


if __name__ == "__main__":
    main()

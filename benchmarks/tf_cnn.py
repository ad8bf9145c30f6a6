"""tf_cnn_benchmarks beside this trainer: a part of `benchmarks/resnet50.py` and `benchmarks/input_pipeline.py`.

It is in no package: both take a checkout by --tf-cnn DIR, measure the rows against it alone, and put them in the place
of those that were committed before. It runs on this TensorFlow as it is, where Keras 2 and NHWC are asked for; oneDNN
is on for both sides. Its steps take turns with this trainer's (peers/tf_cnn_turns.py), from outside its own code.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.lockstep import Cost, Side, alternate

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "benchmarks/peers"
NAME = "tf_cnn_benchmarks"
COMMIT = "8fb7907"
SIZE = 224  # pixels that its ResNets are made for
STEP_GOAL, INPUT_GOAL = 0.95, 0.7
WARM_UP = 3  # steps of each side that do not count
ENVIRONMENT = {
    "TF_ENABLE_ONEDNN_OPTS": "1",
    **os.environ,
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_USE_LEGACY_KERAS": "1",
}


def program(checkout: Path) -> Path:
    """The folder of its programs in a checkout. Raises SystemExit if it is not there."""
    folder = checkout.resolve() / "scripts" / NAME
    if not (folder / f"{NAME}.py").is_file():
        raise SystemExit(f"{checkout} has no scripts/{NAME}: give a checkout of tensorflow/benchmarks at {COMMIT}")
    return folder


def environment(folder: Path) -> dict[str, str]:
    """In which its programs run, and ours that call them."""
    return {**ENVIRONMENT, "PYTHONPATH": f"{folder}:{ROOT}"}


def flags(*, batch: int, steps: int, threads: int) -> list[str]:
    """Its ResNet-50 in float32 on synthetic images, with momentum as this trainer has it."""
    return [
        "--model=resnet50",
        f"--batch_size={batch}",
        f"--num_batches={steps}",
        "--num_warmup_batches=2",
        "--optimizer=momentum",
        "--init_learning_rate=0.005",
        "--device=cpu",
        "--local_parameter_device=cpu",
        "--data_format=NHWC",
        f"--num_intra_threads={threads}",
        "--num_inter_threads=1",
    ]


def as_ranks(checkout: Path, *, batch: int, steps: int) -> list[str]:
    """The words for mpirun: ranks of one thread, gradients reduced by Horovod."""
    of_ranks = ["--variable_update=horovod", "--horovod_device=cpu"]
    words = [str(program(checkout) / f"{NAME}.py"), *flags(batch=batch, steps=steps, threads=1), *of_ranks]
    return [sys.executable, *words]


def step_rows(checkout: Path, *, batch: int, steps: int) -> list[dict[str, Any]]:
    """So many steps of each, one rank of two threads, in turn."""
    folder, many = program(checkout), 100_000
    ours = ["--model", "resnet50", "--image-size", SIZE, "--batch-size", batch, "--threads", 2]
    ours += ["--num-batches", many, "--num-warmup-batches", 2, "--display-every", many]
    theirs = [PEERS / "tf_cnn_turns.py", *flags(batch=batch, steps=many, threads=2), f"--display_every={many}"]
    with ExitStack() as stack:
        where = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        words = {"ours": ["-m", "benchmarks.resnet50_turns", *ours], "theirs": theirs}
        sides = {
            side: stack.enter_context(
                Side([sys.executable, *map(str, w)], where / f"{side}.log", environment(folder), folder)
            )
            for side, w in words.items()
        }
        costs = alternate(sides, WARM_UP, steps)
        peaks = {side: s.peak_gb() for side, s in sides.items()}
    head = f"ResNet-50 synthetic, {SIZE} pixels, batch {batch}, float32"
    of_images = {k: [Cost(c.wall_s / batch, c.cpu_s / batch) for c in of_side] for k, of_side in costs.items()}
    rows = cost_rows(head, of_images, "in turn step by step", STEP_GOAL)
    return [*rows, _row(f"{head}: memory", [peaks["ours"]], [peaks["theirs"]], "GB", "in turn step by step")]


def cost_rows(what: str, costs: dict[str, list[Cost]], how: str, goal: float) -> list[dict[str, Any]]:
    """Both sides' medians for an image, by the clock and by the processors; the goal is the clock's."""
    ours, theirs = costs["ours"], costs["theirs"]
    return [
        _row(what, [c.wall_s for c in ours], [c.wall_s for c in theirs], "s/image", how, goal),
        _row(f"{what}: processor", [c.cpu_s for c in ours], [c.cpu_s for c in theirs], "s/image", how),
    ]


def _row(
    what: str, ours: Sequence[float], theirs: Sequence[float], unit: str, how: str, goal: float | None = None
) -> dict[str, Any]:
    middle, of_peer = statistics.median(ours), statistics.median(theirs)
    return {
        "what": what,
        "value": round(middle, 5),
        "unit": unit,
        "against": f"{NAME}, {how}: {of_peer:.3g} {unit}",
        "ratio": round(middle / of_peer, 3),
        "goal": goal,
        "runs": len(ours),
        "spread": [round(min(ours), 5), round(max(ours), 5)],
    }


def input_cost(checkout: Path, shards: Path, *, batch: int, steps: int, threads: int) -> Cost:
    """An image's cost in its own input, from shards to batches of normalised float32, in a process of its own."""
    folder = program(checkout)
    words = [sys.executable, str(PEERS / "tf_cnn_input.py"), str(shards), *map(str, (batch, steps, threads))]
    done = subprocess.run(
        words, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise SystemExit(f"{NAME}' input: {done.stderr[-3000:]}")
    return Cost(*json.loads(done.stdout.splitlines()[-1]))

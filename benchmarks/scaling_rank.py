"""One rank of benchmarks/scaling.py: steps of a ResNet over links that somebody else changes, and what they took.

Rank 0 asks for the next link by a file `N.asked` in the folder, goes on once there is `N.set`, and writes what all
ranks found as `found.json` at the end.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from cluster.files import write_atomically  # noqa: E402
from cluster.ssh.fanout import wait_until  # noqa: E402

MODEL, PIXELS, CLASSES = "resnet18", 32, 1000
WARM_UP_STEPS = 2
SMALL_TIMES, LARGE_TIMES = 5, 1  # all-reduces beside no computing, after the steps of a round
SET_S = 300.0
FREE = "free"


def main() -> None:
    """Every link in every round; the numbers of all ranks by rank 0."""
    parser = argparse.ArgumentParser(description="One rank of benchmarks/scaling.py.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--links", nargs="+", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    a = parser.parse_args()
    from trainer.common.ranks.horovod_rank import Gather, start

    ranks = start(1)
    gather = Gather(ranks.threads)
    step = _stepper(a.batch, ranks.rank)
    for _ in range(WARM_UP_STEPS):
        step()
    found: dict[str, Any] = {
        "steps": {link: [] for link in a.links},
        "small_s": [],
        "large_s": {link: [] for link in a.links},
    }
    for number, link in linked(a.folder, a.links * a.rounds, ranks, gather):
        found["steps"][link] += [step() for _ in range(a.steps)]
        if not number:  # what follows needs memory that no training does
            found["peak_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if ranks.size > 1 and link == FREE:
            found["small_s"] += all_reduces(1, SMALL_TIMES)
        if ranks.size == 2 or (ranks.size > 1 and link == FREE):
            found["large_s"][link] += all_reduces(parameters_of_model(), LARGE_TIMES)
    everyone = [json.loads(said) for said in gather(json.dumps(found).encode())]
    if ranks.is_first:
        write_atomically(a.folder / "found.json", json.dumps(everyone))


def linked(folder: Path, links: list[str], ranks: Any, gather: Any) -> Iterator[tuple[int, str]]:
    """Each of the links, numbered, once somebody has made it."""
    for number, link in enumerate(links):
        if ranks.is_first:
            (folder / f"{number}.asked").write_text(link)
            if not wait_until((folder / f"{number}.set").exists, SET_S):
                sys.exit(f"{folder}/{number}.set: nobody made the links {link} within {SET_S:.0f} s")
        gather(b"go")
        yield number, link


def _stepper(batch: int, rank: int) -> Any:
    """A function that takes a step of the trainer's own and gives its seconds, and those until all was reduced."""
    from trainer.resnet50 import images
    from trainer.resnet50.config import ResNetConfig
    from trainer.resnet50.step import TensorFlowLearner

    config = ResNetConfig(
        model=MODEL, synthetic=True, image_size=PIXELS, batch_size=batch, num_batches=1, lr=0.01, job_dir=Path()
    )
    learner = TensorFlowLearner(config, CLASSES)
    learner.broadcast()
    batches = images.synthetic(batch=batch, size=PIXELS, classes=CLASSES, seed=1, rank=rank)

    def step() -> tuple[float, float]:
        began = time.perf_counter()
        result = learner.result(learner.train(next(batches), 0.01))
        return time.perf_counter() - began, result.reduce_s

    return step


def parameters_of_model() -> int:
    """Numbers whose gradients are summed."""
    from cfn.estimate.layers import network, parameters

    return parameters(network(MODEL, PIXELS))


def all_reduces(numbers: int, times: int) -> list[float]:
    """Seconds of each, after one that is not counted."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    value, seconds = tf.zeros([numbers]), []
    for _ in range(times + 1):
        began = time.perf_counter()
        hvd.allreduce(value, op=hvd.Sum, name=f"all_reduce_{numbers}").numpy()
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


if __name__ == "__main__":
    main()

"""Trains networks of tf_cnn_benchmarks for a few steps on a tiny batch each: `NAME:PIXELS ...`, losses as JSON."""

import json
import sys

from trainer.benchmark import BenchmarkConfig, make_step
from trainer.common.ranks.horovod_rank import start


def main(words: list[str]) -> None:
    """By name, the losses of two steps."""
    start(1)
    from trainer.resnet50 import images

    found = {}
    for word in words:
        name, _, size = word.partition(":")
        config = BenchmarkConfig(model=name, image_size=int(size), batch_size=2, lr=0.001)
        step = make_step(config, 5)
        batches = images.synthetic(batch=config.batch, size=config.size, classes=5, seed=1, rank=0)
        found[name] = [step(next(batches)) for _ in range(2)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Run by test_ranks under mpirun: trains twice from the same seed, deterministically, and compares the bits."""

import json
from pathlib import Path

import numpy as np

from trainer.common.ranks.horovod_rank import start
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.images import synthetic
from trainer.resnet50.step import TensorFlowLearner

STEPS = 2
CONFIG = ResNetConfig(
    model="resnet18",
    data_dir=Path(),
    job_dir=Path(),
    image_size=32,
    batch_size=4,
    num_batches=STEPS,
    deterministic=True,
    larc=True,
    mixup_alpha=0.2,
    increased_aug=True,
    ema_decay=0.9,
    label_smoothing=0.1,
)


def trained() -> dict[str, np.ndarray]:
    """All variables after a few steps, and what each step found but its times."""
    learner = TensorFlowLearner(CONFIG, classes=10)
    learner.broadcast()
    batches = synthetic(batch=4, size=32, classes=10, seed=1, rank=ranks.rank)
    found = {f"step {i}": learner.train(next(batches), 0.1, step=i).numpy()[:6] for i in range(STEPS)}
    return found | {name: variable.numpy() for name, variable in learner.state().items()}


ranks = start(threads=1, deterministic=True)
one, other = trained(), trained()
if ranks.is_first:
    print(json.dumps({name: one[name].tobytes() == other[name].tobytes() for name in one}), flush=True)

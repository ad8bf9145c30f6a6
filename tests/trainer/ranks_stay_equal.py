"""Run by test_ranks under mpirun: trains on other data on each rank and compares the ranks' variables bit by bit."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.ranks.horovod_rank import start
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.horovod import engine
from trainer.resnet50.images import synthetic
from trainer.resnet50.plan import look_up, make_plan
from trainer.resnet50.resume import RunPosition
from trainer.resnet50.step import TensorFlowLearner
from trainer.resnet50.train_loop import TrainLoop

STEPS = 3


def spread(values: np.ndarray) -> float:
    """Largest difference of any element between any two ranks."""
    everyone = hvd.allgather(tf.constant(values)[None]).numpy()
    return float(np.max(everyone.max(0) - everyone.min(0)))


def flat(tensors: Any) -> np.ndarray:
    """All values in one vector."""
    return np.concatenate([np.ravel(t.numpy()) for t in tensors])


def learner(precision: str) -> TensorFlowLearner:
    """With other weights on each rank."""
    return TensorFlowLearner(
        ResNetConfig(
            model="resnet18",
            synthetic=True,
            image_size=32,
            batch_size=4,
            num_batches=STEPS,
            precision=precision,
            seed=ranks.rank + 1,
        ),
        classes=10,
    )


def trained(precision: str) -> dict[str, float]:
    """What a few steps on different data make of different weights."""
    ours = learner(precision)
    before = spread(flat(ours.weights))
    ours.broadcast()
    batches = synthetic(batch=4, size=32, classes=10, seed=1, rank=ranks.rank)
    own_gradients = spread(flat(ours.gradients(*next(batches))[0]))
    for _ in range(STEPS):
        scalars = ours.train(next(batches), 0.1, requests=(ranks.rank == 1, ranks.rank == 1, ranks.rank == 0))
    return {
        "weights_before_broadcast": before,
        "own_gradients": own_gradients,
        "state": spread(flat(ours.state().values())),
        "asked": ours.result(scalars).asked,
        "terminated": ours.result(scalars).terminated,
        "due": ours.result(scalars).due,
    }


def overflowed() -> dict[str, float]:
    """What an infinite gradient on rank 1 alone does."""
    ours = learner("float16")
    ours.broadcast()
    before = flat(ours.weights)
    value = float("inf") if ranks.rank == 1 else 1.0
    own = [tf.fill(w.shape, value) for w in ours.weights]
    reduced = [hvd.allreduce(g, op=hvd.Average, name=f"overflow/{i}") for i, g in enumerate(own)]
    statistics = tf.zeros([sum(a.shape[0] for a in ours.averages)])
    skipped = float(ours._update(reduced, statistics, tf.constant(0.1), tf.constant(0.0)))
    return {
        "skipped": float(hvd.allreduce(tf.constant(skipped), op=hvd.Sum)),
        "state": spread(flat(tf.cast(v, tf.float32) for v in ours.state().values())),
        "scale": float(ours.loss_scale.value),
        "moved": float(np.abs(flat(ours.weights) - before).max()),
    }


def resumed() -> dict[str, object]:
    """Where an attempt begins that finds a checkpoint of another learner's weights."""
    job = Path(hvd.broadcast_object(tempfile.mkdtemp(), root_rank=0))
    config = ResNetConfig(
        model="resnet18", synthetic=True, image_size=32, batch_size=4, num_batches=9, seed=5, job_dir=job, classes=10
    )
    plan = make_plan(config, ranks.size, look_up(config))
    other = learner("float32")
    arrays = {name: variable.numpy() for name, variable in other.state().items()}
    if ranks.is_first:
        CheckpointFolder(job / "checkpoints").save(7, arrays, RunPosition.after(plan, 7).record())
    attempt = TrainLoop(plan, engine(ranks))
    attempt._restore()
    ours = attempt.learner.arrays()
    found: dict[str, object] = {
        "state": spread(np.concatenate([np.ravel(values) for values in ours.values()])),
        "of_the_checkpoint": all((ours[name] == arrays[name]).all() for name in arrays),
        "step": attempt.step,
    }
    if ranks.is_first:
        shutil.rmtree(job)
    return found


ranks = start(threads=1)
found = {"resumed": resumed(), "trained": trained("bfloat16"), "overflow": overflowed()}
if ranks.is_first:
    print(json.dumps(found), flush=True)

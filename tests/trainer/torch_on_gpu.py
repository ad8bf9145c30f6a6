"""Run by test_torch_on_gpu with an interpreter whose PyTorch has a GPU: facts about its trainer there, one JSON object.

Under mpirun, ranks that share the GPU say what they are by.
"""

import json
import time
from typing import Any

import numpy as np
import torch

from trainer.common.ranks.horovod_rank import Ranks
from trainer.resnet50_torch.config import TorchResNetConfig
from trainer.resnet50_torch.images import synthetic
from trainer.resnet50_torch.process_group import ProcessGroup, leave_ranks, start_ranks
from trainer.resnet50_torch.step import TorchLearner

COMMON: dict[str, Any] = {"model": "resnet18", "synthetic": True, "image_size": 64, "batch_size": 16, "num_batches": 1}
LATE_S = 0.4
CYCLES = 500_000_000  # of a GPU, by which a delay is made


def trained(device: str, steps: int = 3, **flags: Any) -> tuple[dict[str, np.ndarray], list[float]]:
    """Its tensors and losses after a few steps alone."""
    learner = TorchLearner(
        TorchResNetConfig(**{**COMMON, **flags}), 10, ProcessGroup(Ranks(0, 1, 0, 1, threads=4), torch.device(device))
    )
    batches = synthetic(batch=16, size=64, classes=10, seed=1, rank=0)
    losses = [learner.result(learner.train(next(batches), 0.01, step=n)).loss for n in range(steps)]
    return learner.arrays(), losses


def beside_the_processor(**flags: Any) -> dict[str, float]:
    """How far what a GPU trains is from what the processor trains: of weights that moved together, and the losses."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    (found, losses), (wanted, theirs) = (trained(device, **flags) for device in ("cuda:0", "cpu"))
    begun, _ = trained("cpu", steps=0, **flags)
    moved = [n for n in wanted if n.rpartition("/")[2] not in ("momentum", "ema", "loss_scale")]
    far = sum(float(np.square(found[n] - wanted[n]).sum()) for n in moved)
    way = sum(float(np.square(wanted[n] - begun[n]).sum()) for n in moved)
    return {
        "weights": (far / way) ** 0.5,
        "losses": max(abs(a - b) / abs(b) for a, b in zip(losses, theirs, strict=True)),
    }


def late(where: str) -> dict[str, float]:
    """The two spans of a step whose GPU is late before or after its gradients, and how long the host queued it."""
    world = ProcessGroup(Ranks(0, 1, 0, 1, threads=4), torch.device("cuda:0"))
    learner = TorchLearner(TorchResNetConfig(**COMMON), 10, world)
    batches = synthetic(batch=16, size=64, classes=10, seed=1, rank=0)
    for _ in range(3):
        learner.result(learner.train(next(batches), 0.01))
    seconds = _slept(CYCLES)
    own = getattr(learner, where)

    def held_up(*arguments: Any) -> Any:
        torch.cuda._sleep(round(CYCLES * LATE_S / seconds))
        return own(*arguments)

    setattr(learner, where, held_up)
    began = time.monotonic()
    pending = learner.train(next(batches), 0.01)
    queued_s = time.monotonic() - began
    result = learner.result(pending)
    return {"compute_s": result.compute_s, "reduce_s": result.reduce_s, "queued_s": queued_s}


def _slept(cycles: int) -> float:
    """How long this GPU takes for so many."""
    first, then = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    torch.cuda._sleep(cycles)
    then.record()
    then.synchronize()
    return first.elapsed_time(then) / 1e3


def among_ranks(world: ProcessGroup) -> dict[str, Any]:
    """What ranks that share a GPU exchange by, and how many different values they have after steps on their own data."""
    learner = TorchLearner(TorchResNetConfig(**{**COMMON, "precision": "bfloat16"}), 10, world)
    learner.broadcast()
    batches = synthetic(batch=16, size=64, classes=10, seed=1, rank=world.ranks.rank)
    for step in range(3):
        result = learner.result(learner.train(next(batches), 0.01, step=step))
    sums = [float(np.abs(v).sum()) for v in learner.arrays().values()]
    values = set(world.gather(json.dumps(sums).encode()))
    own = set(world.gather(json.dumps(result.own_loss).encode()))
    return {"backend": world.backend, "gpu": world.ranks.gpu, "values": len(values), "own losses": len(own)}


world = start_ranks(TorchResNetConfig(**{**COMMON, "threads": 1}))
if world.ranks.size > 1:
    found = among_ranks(world)
    leave_ranks(world)
else:
    found = {
        "device": str(world.device),
        "pinned": next(synthetic(batch=1, size=8, classes=1, seed=1, rank=0, is_pinned=True)).images.is_pinned(),
        "float32": beside_the_processor(),
        "planar": beside_the_processor(channels_last=False, ema_decay=0.9),
        "bfloat16": beside_the_processor(precision="bfloat16"),
        "float16": trained("cuda:0", precision="float16", loss_scale="dynamic")[1],
        "late gradients": late("_forward"),
        "late update": late("_update"),
    }
if world.ranks.is_first:
    print(json.dumps(found), flush=True)

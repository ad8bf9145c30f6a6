"""Run by test_torch under mpirun: trains on other data on each rank and compares the ranks' values."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from trainer.resnet50_torch.config import TorchResNetConfig
from trainer.resnet50_torch.dist_env import DistEnv
from trainer.resnet50_torch.images import synthetic
from trainer.resnet50_torch.process_group import common_backend, start_ranks
from trainer.resnet50_torch.step import TorchLearner

STEPS = 2


def config(**flags: Any) -> TorchResNetConfig:
    """A small run."""
    common = {"model": "resnet18", "synthetic": True, "image_size": 32, "batch_size": 4, "num_batches": 1}
    return TorchResNetConfig(**{**common, **flags})


def kinds(arrays: Iterable[Any]) -> int:
    """How many different values the ranks have, bit by bit; only checksums travel."""
    own = hashlib.sha256()
    for array in arrays:
        own.update(array.tobytes())
    return len(set(world.gather(own.digest())))


def trained(**flags: Any) -> dict[str, Any]:
    """What a few steps on different data make of different weights."""
    ours = TorchLearner(config(**flags), 10, world)
    ours.load({name: array + np.float32(0.1 * world.ranks.rank) for name, array in ours.arrays().items()})
    apart = kinds(ours.arrays().values())
    ours.broadcast(1)
    together = kinds(ours.arrays().values())
    batches = synthetic(batch=4, size=32, classes=10, seed=1, rank=world.ranks.rank)
    asks = world.ranks.rank == 1, world.ranks.rank == 2, world.ranks.rank == 0
    for step in range(STEPS):
        result = ours.result(ours.train(next(batches), 0.1, asks, step))
    return {
        "apart": apart,
        "together": together,
        "state": kinds(ours.arrays().values()),
        "own_losses": kinds([np.array(result.own_loss)]),
        "requests": [result.asked, result.terminated, result.due],
        "times": min(result.compute_s, result.reduce_s) >= 0,
    }


def of_all_parts() -> dict[str, float]:
    """How far a step of all ranks is from one of a single rank that computes the same parts."""
    ranks = world.ranks.size
    batches = [next(synthetic(batch=4, size=32, classes=10, seed=1, rank=rank)) for rank in range(ranks)]
    ours = TorchLearner(config(), 10, world)
    ours.train(batches[world.ranks.rank], 0.1)
    alone = TorchLearner(config(batch_size=4 * ranks, accumulate=ranks), 10, type(world)(world.ranks, world.device))
    whole = type(batches[0])(*(cat([getattr(b, n) for b in batches]) for n in ("images", "labels", "seeds")))
    alone.train(whole, 0.1)
    found, wanted = ours.arrays(), alone.arrays()
    return {n: float(np.abs(found[n] - wanted[n]).max() / (np.abs(wanted[n]).max() + 1e-9)) for n in wanted}


def cat(parts: list[Any]) -> Any:
    """In one, of whichever kind."""
    return torch.cat(parts) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts)


world = start_ranks(config(threads=1))
rank, world_of_three = world.ranks.rank, DistEnv(world.ranks.rank, 3)
found = {
    "float32": trained(),
    "bfloat16": trained(precision="bfloat16", fp16_compression=True),
    "of_all_parts": of_all_parts(),
    "backends": [
        world.backend,  # without GPUs
        *(
            common_backend(world_of_three, own)
            for own in (f"GPU {rank}", f"GPU {rank // 2}", f"GPU {rank}" if rank else None)
        ),
    ],
    "gathered": [one.decode() for one in world.gather(f"rank {world.ranks.rank}".encode())],
}
if world.ranks.is_first:
    print(json.dumps(found), flush=True)

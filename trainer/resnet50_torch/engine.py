"""Engine of PyTorch with DDP."""

import torch

from trainer.resnet50.engine import Engine
from trainer.resnet50_torch.decoders import Decoders
from trainer.resnet50_torch.process_group import World
from trainer.resnet50_torch.source import Source
from trainer.resnet50_torch.step import Learner


def engine(world: World, decoders: Decoders) -> Engine:
    """Build the PyTorch engine. Call it after init_process_group."""
    return Engine(
        f"PyTorch{torch.__version__}",
        f"DDP over {world.backend}" if world.backend else "DDP",
        world.ranks,
        world.gather,
        lambda config, classes: Learner(config, classes, world),
        lambda config, classes, ranks, shards: Source(config, classes, ranks, shards, decoders),
    )

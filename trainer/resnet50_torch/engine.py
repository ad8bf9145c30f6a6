"""Engine of PyTorch with DDP."""

import torch

from trainer.resnet50.engine import Engine
from trainer.resnet50_torch.decoders import Decoders
from trainer.resnet50_torch.process_group import ProcessGroup
from trainer.resnet50_torch.source import TorchAttemptInput
from trainer.resnet50_torch.step import TorchLearner


def engine(world: ProcessGroup, decoders: Decoders) -> Engine:
    """Build the PyTorch engine. Call it after init_process_group."""
    return Engine(
        f"PyTorch{torch.__version__}",
        f"DDP over {world.backend}" if world.backend else "DDP",
        world.ranks,
        world.gather,
        lambda config, classes: TorchLearner(config, classes, world),
        lambda config, classes, ranks, shards: TorchAttemptInput(config, classes, ranks, shards, decoders),
    )

"""Flags of the PyTorch trainer. PyTorch is not imported here: checks must be quick."""

from dataclasses import dataclass

from trainer.common.files.commandline import flag
from trainer.resnet50.config import RunFlags


@dataclass(frozen=True, kw_only=True)
class TorchResNetConfig(RunFlags):
    """Flags of `python -m trainer.resnet50_torch`."""

    channels_last: bool = flag(True, "keep images and kernels with their channels last in memory, which is faster")

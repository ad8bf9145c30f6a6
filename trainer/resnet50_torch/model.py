"""PyTorch version of the network in trainer.resnet50.model, with the same initial weights.

Convolutions pad both sides alike, as PyTorch's users expect. TensorFlow's pad the right and the bottom more where the
stride is 2.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trainer.resnet50.network import BLOCKS, BN_EPSILON, BOTTLENECK, Init


class TorchBlock(nn.Module):
    """Residual block: two 3x3 convolutions (18, 34 layers) or 1x1, 3x3, 1x1 (50 and more), added to the input."""

    def __init__(self, init: Init, channels_in: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        sizes = (1, 3, 1) if bottleneck else (3, 3)
        self.channels = width * 4 if bottleneck else width
        outputs = (width,) * (len(sizes) - 1) + (self.channels,)
        strides = [1] * len(sizes)
        strides[1 if bottleneck else 0] = stride
        specs = zip(sizes, (channels_in, *outputs[:-1]), outputs, strides, strict=True)
        self.convs = nn.ModuleList(_conv(init, *spec) for spec in specs)
        self.norms = nn.ModuleList(_norm(n) for n in outputs)
        nn.init.constant_(self.norms[-1].weight, init.last_gamma)
        self.shortcut: nn.Module | None = None
        if stride != 1 or channels_in != self.channels:
            self.shortcut = nn.Sequential(_conv(init, 1, channels_in, self.channels, stride), _norm(self.channels))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block's sum, rectified."""
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(self.relu(y) if i else y))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.relu(y)


class TorchResNet(nn.Module):
    """Network from images to logits.

    Args:
        name: one of `BLOCKS`.
        classes: width of the last layer.
    """

    def __init__(self, name: str, classes: int, init: Init) -> None:
        super().__init__()
        self.stem, self.stem_norm, self.relu = _conv(init, 7, 3, 64, 2), _norm(64), nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[TorchBlock] = []
        channels = 64
        for stage, count in enumerate(BLOCKS[name]):
            for i in range(count):
                stride = 2 if stage and not i else 1
                blocks.append(TorchBlock(init, channels, 64 << stage, stride, bottleneck=BOTTLENECK[name]))
                channels = blocks[-1].channels
        self.blocks = nn.Sequential(*blocks)
        self.dense = nn.Linear(channels, classes)
        with torch.no_grad():
            self.dense.weight.copy_(torch.from_numpy(init.dense(channels, classes).T))
            self.dense.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits, [N, classes], in the type of the last layer's computation.

        Args:
            images: [N, 3, H, W], normalised.
        """
        x = self.pool(self.relu(self.stem_norm(self.stem(images))))
        return self.dense(self.blocks(x).mean((2, 3)))

    def kernels(self) -> list[Tensor]:
        """Return the weights of convolutions and of the last layer, which have weight decay."""
        return [m.weight for m in self.modules() if isinstance(m, nn.Conv2d | nn.Linear)]

    def norms(self) -> Iterator[tuple[str, nn.BatchNorm2d]]:
        """Return all batch normalisations, by name."""
        return ((name, m) for name, m in self.named_modules() if isinstance(m, nn.BatchNorm2d))


def _conv(init: Init, size: int, channels_in: int, channels: int, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(channels_in, channels, size, stride, size // 2, bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.from_numpy(init.kernel((size, size, channels_in, channels)).transpose(3, 2, 0, 1)))
    return conv


def _norm(channels: int) -> nn.BatchNorm2d:
    # Momentum 1: what it keeps is the last batch's; the learner averages that over parts, ranks and steps.
    return nn.BatchNorm2d(channels, eps=BN_EPSILON, momentum=1.0)

"""Update of the weights by reduced gradients: LARC, Nesterov's momentum, and the loss scale that follows them."""

import torch
from torch import Tensor

from trainer.common.ranks.precision import FIRST_SCALE, GROWS_AFTER, LARGEST_SCALE
from trainer.resnet50_torch.config import TorchResNetConfig


def hold_back(weights: list[Tensor], kernels: list[Tensor], config: TorchResNetConfig, lr: float) -> None:
    """Multiply gradients with weight decay by min(eta |w| / |g| / lr, 1). Source: You et al., arXiv:1708.03888."""
    for kernel in kernels:
        kernel.grad.add_(kernel, alpha=config.weight_decay)
    for weight in weights:
        own, change = weight.norm(), weight.grad.norm()
        factor = (config.larc_eta * own / change.clamp(min=1e-30) / lr).clamp(max=1)
        weight.grad.mul_(torch.where((own > 0) & (change > 0), factor, torch.ones_like(factor)))


class LossScale:
    """Loss scale: halved by an overflow, doubled after `GROWS_AFTER` steps without one; or fixed.

    All ranks have the same reduced gradients, so all change it alike.
    """

    def __init__(self, fixed: float | None) -> None:
        self._is_dynamic = fixed is None
        self.state = torch.tensor([FIRST_SCALE if fixed is None else fixed, 0.0])  # scale, and finite steps in a row

    @property
    def value(self) -> float:
        """Return the factor of the loss."""
        return float(self.state[0])

    def update(self, is_finite: bool) -> None:
        """Update the scale after a step."""
        if not self._is_dynamic:
            return
        value, good = self.state.tolist()
        good = good + 1 if is_finite else 0
        if not is_finite:
            value = max(value / 2, 1)
        elif good == GROWS_AFTER:
            value, good = min(value * 2, LARGEST_SCALE), 0
        self.state.copy_(torch.tensor([value, good]))


def make_optimizer(config: TorchResNetConfig, kernels: list[Tensor], weights: list[Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer: Nesterov's momentum and weight decay of the kernels, which LARC adds itself."""
    decayed = {id(kernel) for kernel in kernels}
    groups = [
        {"params": kernels, "weight_decay": 0.0 if config.larc else config.weight_decay},
        {"params": [w for w in weights if id(w) not in decayed], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=config.momentum, nesterov=config.momentum > 0)
    for weight in weights:
        optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return optimizer

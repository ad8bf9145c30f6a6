"""Statistics of the batch normalisations: those of the last batch, and averages over ranks and steps."""

import torch
from torch import Tensor

from trainer.resnet50.network import BN_DECAY
from trainer.resnet50_torch.model import TorchResNet


class Statistics:
    """Means and variances of all batch normalisations: of the last batch, as the layers store them, and averages.

    Each is one vector, so that one operation copies or reduces it.
    """

    def __init__(self, model: TorchResNet) -> None:
        norms = list(model.norms())
        device = next(model.parameters()).device
        self._names = [f"{name}/moving_{what}" for name, _ in norms for what in ("mean", "variance")]
        self._sizes = [norm.num_features for _, norm in norms for _ in range(2)]
        self.of_batch = torch.zeros(sum(self._sizes), device=device)
        parts = iter(self.of_batch.split(self._sizes))
        for _, norm in norms:
            norm.running_mean, norm.running_var, norm.num_batches_tracked = next(parts), next(parts), None
        self._averages = torch.zeros_like(self.of_batch)
        for variance in self._averages.split(self._sizes)[1::2]:
            variance.fill_(1)

    def averages(self) -> dict[str, Tensor]:
        """Return views of the averages by name, to be changed in place."""
        return dict(zip(self._names, self._averages.split(self._sizes), strict=True))

    def forget(self) -> None:
        """Set the last batch's statistics to zero.

        Otherwise a NaN would spread to the next batch, since 0 x NaN is NaN.
        """
        self.of_batch.zero_()

    def average(self, of_batch: Tensor) -> None:
        """Update the averages with a step's means over the ranks."""
        self._averages.lerp_(of_batch, 1 - BN_DECAY)

    def apply(self) -> None:
        """Copy the averages to where the layers read them."""
        self.of_batch.copy_(self._averages)

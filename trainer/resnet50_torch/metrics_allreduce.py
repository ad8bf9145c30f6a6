"""Values that the ranks average in a step beside gradients."""

from typing import Any

import torch
from torch import Tensor, distributed

from trainer.resnet50_torch.process_group import ProcessGroup


class Shared:
    """Vector that is averaged over the ranks while they compute gradients."""

    def __init__(self, world: ProcessGroup, requests: Tensor) -> None:
        self._world, self._requests = world, requests
        self._found: Tensor | None = None
        self._under_way: Any = None

    def add(self, loss: Tensor, hits: Tensor, statistics: Tensor) -> None:
        """Add one part's loss, hits and statistics."""
        found = torch.cat([torch.stack([loss, hits]), statistics])
        self._found = found if self._found is None else self._found + found

    def begin(self, parts: int) -> None:
        """Start the reduction in the background."""
        assert self._found is not None
        own = self._found / parts
        self.own_loss = own[0].clone()
        self._vector = torch.cat([own[:2], self._requests, own[2:]])
        if self._world.group is not None:
            self._under_way = distributed.all_reduce(self._vector, group=self._world.group, async_op=True)

    def finish(self) -> None:
        """Wait for the reduction and divide its sum by the number of ranks."""
        if self._under_way is not None:
            self._under_way.wait()
            self._vector /= self._world.ranks.size

    @property
    def numbers(self) -> Tensor:
        """Return [5]: loss, top-1 and the requests."""
        return self._vector[:5]

    @property
    def statistics(self) -> Tensor:
        """Return the statistics of all batch normalisations."""
        return self._vector[5:]

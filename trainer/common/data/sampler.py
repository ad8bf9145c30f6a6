"""Order of the training examples, as pure functions of the seed: each example exactly once per epoch.

The classifier draws a permutation per epoch and reads them one after the other. Position p of the run (step x global
batch + place in the batch) belongs to epoch p // N and indexes that epoch's permutation of all N examples. So a resumed
run continues at its image, and the order does not depend on the number of ranks. The detector needs images of one
orientation in a batch, so it draws whole groups.
"""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FILLER = -1
"""Placeholder where an epoch has no image left. Its weight is 0."""


@functools.lru_cache(maxsize=2)  # a batch touches at most two epochs, unless the data is smaller than the batch
def permutation(examples: int, epoch: int, seed: int) -> np.ndarray:
    """Return the order of one epoch, [examples] int64."""
    return np.random.default_rng((seed, epoch)).permutation(examples)


def positions(step: int, rank: int, batch: int, ranks: int) -> np.ndarray:
    """Return the run's positions that one rank computes in one step, [batch] int64. Ranks take consecutive parts."""
    first = (step * ranks + rank) * batch
    return np.arange(first, first + batch)


def examples_at(positions: np.ndarray, examples: int, seed: int) -> np.ndarray:
    """Return the example at each position, [len(positions)] int64 below `examples`."""
    epochs, places = np.divmod(positions, examples)
    out = np.empty(len(positions), np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        out[here] = permutation(examples, int(epoch), seed)[places[here]]
    return out


def epoch_order(is_wide: NDArray[np.bool_], *, batch: int, ranks: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the images of one epoch: [steps, ranks, batch] indices, `FILLER` where none is left.

    Images are shuffled again every epoch and then grouped by orientation. So a batch needs little padding and contains
    other images each time. The few left over of either orientation share batches. The same seed, epoch and batch give
    the same groups whatever the number of ranks.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(is_wide))
    groups = order[:, None] if batch == 1 else rng.permutation(_groups(order, is_wide, batch))
    steps = -(-len(groups) // ranks)
    groups = np.pad(groups, [(0, steps * ranks - len(groups)), (0, 0)], constant_values=FILLER)
    return groups.reshape(steps, ranks, batch)


def _groups(order: NDArray[np.int64], is_wide: NDArray[np.bool_], batch: int) -> NDArray[np.int64]:
    """Return [ceil(N / batch), batch]: whole groups of one orientation, then the rest together."""
    whole, rest = [], []
    for images in (order[is_wide[order]], order[~is_wide[order]]):
        cut = len(images) // batch * batch
        whole.append(images[:cut])
        rest.append(images[cut:])
    last = np.concatenate(rest)
    last = np.pad(last, (0, -len(last) % batch), constant_values=FILLER)
    return np.concatenate([*whole, last]).reshape(-1, batch)


@dataclass(frozen=True)
class DataPosition:
    """Position of the detector's run in the data order. Groups of images are dealt out to the ranks, step by step."""

    epoch: int = 0
    group: int = 0  # number in the epoch's order, whichever ranks computed the earlier ones

    def after(self, steps: int, *, groups: int, width: int) -> "DataPosition":
        """Return the place after so many steps of `width` groups. No step contains groups of two epochs."""
        first = -(-(groups - self.group) // width)
        if steps < first:
            return DataPosition(self.epoch, self.group + steps * width)
        epochs, more = divmod(steps - first, -(-groups // width))
        return DataPosition(self.epoch + 1 + epochs, more * width)

    def steps_to(self, end: "DataPosition", *, groups: int, width: int) -> int:
        """Return the steps of `width` groups until everything before `end` was learned from."""
        if (self.epoch, self.group) >= (end.epoch, end.group):
            return 0
        if self.epoch == end.epoch:
            return -(-(end.group - self.group) // width)
        whole = (end.epoch - self.epoch - 1) * -(-groups // width)
        return -(-(groups - self.group) // width) + whole - (-end.group // width)

    def steps(self, *, groups: int, width: int) -> int:
        """Return the whole steps of `width` groups from the run's beginning to here."""
        return self.epoch * -(-groups // width) + self.group // width


BEGINNING = DataPosition()


def own_images(count: int, rank: int, ranks: int) -> range:
    """Return the images this rank evaluates: each on exactly one rank. A rank may get none."""
    return range(rank, count, ranks)

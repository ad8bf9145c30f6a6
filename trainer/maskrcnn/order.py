"""Which image is learned from when and where: each once per epoch over all ranks. No TensorFlow."""

import numpy as np
from numpy.typing import NDArray

FILLER = -1
"""Stands where an epoch has no image left; it is fed with weight 0."""


def epoch_order(is_wide: NDArray[np.bool_], *, batch: int, ranks: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The images of one epoch: [steps, ranks, batch] indices, `FILLER` where none is left.

    Images are shuffled anew every epoch and then put together by orientation, so that a batch needs little padding
    and yet meets other images each time; the few left over of either orientation share batches. The same seed, epoch
    and batch give the same groups whatever the number of ranks.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(is_wide))
    groups = order[:, None] if batch == 1 else rng.permutation(_groups(order, is_wide, batch))
    steps = -(-len(groups) // ranks)
    groups = np.pad(groups, [(0, steps * ranks - len(groups)), (0, 0)], constant_values=FILLER)
    return groups.reshape(steps, ranks, batch)


def _groups(order: NDArray[np.int64], is_wide: NDArray[np.bool_], batch: int) -> NDArray[np.int64]:
    """[ceil(N / batch), batch]: whole groups of one orientation, then the rest together."""
    whole, rest = [], []
    for images in (order[is_wide[order]], order[~is_wide[order]]):
        cut = len(images) // batch * batch
        whole.append(images[:cut])
        rest.append(images[cut:])
    last = np.concatenate(rest)
    last = np.pad(last, (0, -len(last) % batch), constant_values=FILLER)
    return np.concatenate([*whole, last]).reshape(-1, batch)


def own_images(count: int, rank: int, ranks: int) -> range:
    """The images this rank evaluates: every image on exactly one rank; none where there are fewer images than ranks."""
    return range(rank, count, ranks)

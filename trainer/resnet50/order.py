"""Which example stands where: the whole run's data order as a pure function of seed and position.

Position p of the run (step x global batch + place in the batch) belongs to epoch p // N and shows a place in that
epoch's permutation of all N examples. So every example comes exactly once per epoch, every rank meets every example
over the epochs, a resumed run goes on at its step, and the order does not depend on the number of ranks.
"""

import functools

import numpy as np


@functools.lru_cache(maxsize=2)  # a batch touches at most two epochs, unless the data is smaller than the batch
def permutation(examples: int, epoch: int, seed: int) -> np.ndarray:
    """The order of one epoch, [examples] int64."""
    return np.random.default_rng((seed, epoch)).permutation(examples)


def positions(step: int, rank: int, batch: int, ranks: int) -> np.ndarray:
    """The run's positions that one rank computes in one step, [batch] int64; ranks take consecutive parts."""
    first = (step * ranks + rank) * batch
    return np.arange(first, first + batch)


def examples_at(positions: np.ndarray, examples: int, seed: int) -> np.ndarray:
    """The example at each position, [len(positions)] int64 below `examples`."""
    epochs, places = np.divmod(positions, examples)
    out = np.empty(len(positions), np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        out[here] = permutation(examples, int(epoch), seed)[places[here]]
    return out

"""Loader of batches in a fixed order, prepared by threads ahead of the training. No TensorFlow."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import cv2
import numpy as np
from numpy.typing import NDArray

from trainer.coco.annotations import AnnotatedImage, CocoSet
from trainer.common.data.sampler import BEGINNING, FILLER, DataPosition, epoch_order
from trainer.common.files.errors import ConfigError
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.examples import Example, collate, training_example

AHEAD = 4
"""Batches that are prepared ahead of the training."""


def training_pictures(sets: Sequence[CocoSet], config: Config) -> list[AnnotatedImage]:
    """Return the training pictures, without those that have no object if the configuration filters them.

    Raises:
        ConfigError: no picture is left.
    """
    pictures = [p for s in sets for p in s.pictures if p.objects or not config.data.filter_empty_annotations]
    if not pictures:
        raise ConfigError("DATA.TRAIN has no image with an object")
    return pictures


def batches(
    pictures: Sequence[AnnotatedImage],
    config: Config,
    *,
    rank: int,
    ranks: int,
    first: DataPosition = BEGINNING,
    parts: int = 1,
    origin_ranks: int | None = None,
) -> Iterator[tuple[NDArray[np.generic], ...]]:
    """Yield one rank's batches from `first` on, epoch after epoch without end.

    Decoding happens in DATA.NUM_WORKERS threads: the decoders release the interpreter, and nothing forks under MPI. A
    step's examples do not depend on the threads' timing.

    Args:
        parts: batches of this rank in a step, one after the other.
        origin_ranks: ranks of the job's first attempt; random draws are numbered by its steps.
    """
    cv2.setNumThreads(0)
    with ThreadPoolExecutor(config.data.num_workers, thread_name_prefix="loader") as pool:
        waiting: deque[tuple[int, NDArray[np.int64], list[Future[Example] | None], float]] = deque()
        plans = _plan(pictures, config, first, width=ranks * parts, origin_ranks=origin_ranks or ranks)
        own_parts = (
            (step, epoch, everyone, part)
            for step, epoch, everyone in plans
            for part in range(rank * parts, (rank + 1) * parts)
        )
        try:
            while True:
                while len(waiting) < AHEAD:
                    step, epoch, everyone, part = next(own_parts)
                    own = everyone[part]
                    jobs = [
                        None if i == FILLER else pool.submit(training_example, pictures[i], config, epoch=epoch)
                        for i in own
                    ]
                    waiting.append((step, own, jobs, len(everyone) / np.count_nonzero(everyone != FILLER)))
                step, own, jobs, weight = waiting.popleft()
                yield collate(
                    [j.result() if j else None for j in jobs],
                    config,
                    weight=weight,
                    seeds=_seeds(config.train.seed, step, own),
                )
        finally:
            for _, _, jobs, _ in waiting:
                for job in jobs:
                    if job:
                        job.cancel()


def _plan(
    pictures: Sequence[AnnotatedImage], config: Config, first: DataPosition, *, width: int, origin_ranks: int
) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Yield each step's number, epoch and images [width, batch], from `first` on.

    Steps are numbered for `origin_ranks`.
    """
    is_wide = np.array([p.width >= p.height for p in pictures])
    batch = config.train.batch_size_per_gpu
    groups = -(-len(pictures) // batch)
    place, epoch = first, -1
    while True:
        if place.epoch != epoch:
            epoch = place.epoch
            order = epoch_order(is_wide, batch=batch, ranks=1, seed=config.train.seed, epoch=epoch)[:, 0]
        everyone = order[place.group : place.group + width]
        everyone = np.pad(everyone, [(0, width - len(everyone)), (0, 0)], constant_values=FILLER)
        yield place.steps(groups=groups, width=origin_ranks), epoch, everyone
        place = place.after(1, groups=groups, width=width)


def _seeds(seed: int, step: int, images: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return [B, 2]: an image's random draws depend on seed, step and image, not on the rank that holds it."""
    return np.stack([np.full(len(images), (seed * 1_000_003 + step) % 2**31), images * 16 + 17], 1).astype(np.int32)

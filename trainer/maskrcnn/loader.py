"""Batches in a fixed order, prepared by threads ahead of the training. No TensorFlow."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import cv2
import numpy as np
from numpy.typing import NDArray

from trainer.coco.annotations import CocoSet, Picture
from trainer.errors import ConfigError
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.examples import Example, collate, training_example
from trainer.order import FILLER, epoch_order

AHEAD = 4
"""Batches in preparation while one is learned from."""


def training_pictures(sets: Sequence[CocoSet], config: Config) -> list[Picture]:
    """The pictures to learn from, those without objects left out if the configuration says so.

    Raises:
        ConfigError: none is left, or the sets do not have the same categories.
    """
    if len({s.category_ids for s in sets}) > 1:
        raise ConfigError("the sets of DATA.TRAIN have different categories: train on one kind at a time")
    pictures = [p for s in sets for p in s.pictures if p.objects or not config.data.filter_empty_annotations]
    if not pictures:
        raise ConfigError("DATA.TRAIN has no image with an object")
    return pictures


def batches(
    pictures: Sequence[Picture], config: Config, *, rank: int, ranks: int, first_step: int = 0
) -> Iterator[tuple[NDArray[np.generic], ...]]:
    """One rank's batches, epoch after epoch without end, from step `first_step` on.

    Decoding happens in DATA.NUM_WORKERS threads: the decoders release the interpreter, and nothing forks under MPI.
    What a step sees does not depend on their timing.
    """
    cv2.setNumThreads(0)
    with ThreadPoolExecutor(config.data.num_workers, thread_name_prefix="loader") as pool:
        waiting: deque[tuple[int, NDArray[np.int64], list[Future[Example] | None], float]] = deque()
        plans = _plan(pictures, config, ranks, first_step)
        try:
            while True:
                while len(waiting) < AHEAD:
                    step, epoch, everyone = next(plans)
                    own = everyone[rank]
                    jobs = [
                        None if i == FILLER else pool.submit(training_example, pictures[i], config, epoch=epoch)
                        for i in own
                    ]
                    waiting.append((step, own, jobs, ranks / np.count_nonzero(everyone != FILLER)))
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
    pictures: Sequence[Picture], config: Config, ranks: int, first_step: int
) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Step, epoch and the images of all ranks [ranks, batch], from `first_step` on."""
    is_wide = np.array([p.width >= p.height for p in pictures])
    batch = config.train.batch_size_per_gpu
    per_epoch = -(-len(pictures) // (batch * ranks))
    step = first_step
    while True:
        epoch = step // per_epoch
        order = epoch_order(is_wide, batch=batch, ranks=ranks, seed=config.train.seed, epoch=epoch)
        for everyone in order[step % per_epoch :]:
            yield step, epoch, everyone
            step += 1


def _seeds(seed: int, step: int, images: NDArray[np.int64]) -> NDArray[np.int32]:
    """[B, 2]: what is drawn for an image depends on seed, step and image, not on the rank that holds it."""
    return np.stack([np.full(len(images), (seed * 1_000_003 + step) % 2**31), images * 16 + 17], 1).astype(np.int32)

"""Input pipeline from records to batches of uint8 pixels, with processes that decode ahead of the training."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.common.data import sampler
from trainer.resnet50.reader import RecordReader
from trainer.resnet50_torch import rng
from trainer.resnet50_torch.decoders import Arena, Decoders, lost_ones_told
from trainer.resnet50_torch.decoding import CROPS, Pixels, random_crop

AHEAD = 2  # batches


@dataclass(frozen=True)
class ImageBatch:
    """Input of a learner's step."""

    images: Tensor  # [N, S, S, 3] uint8; in training mirrored at random
    labels: Tensor  # [N] int64 from 0
    seeds: NDArray[np.int64]  # [N, 2]


@dataclass(frozen=True, kw_only=True)
class TorchInputShare:
    """Part of the input that one rank reads, and the batches to make of it."""

    rank: int
    ranks: int
    batch: int  # images per rank and step
    size: int  # pixels of the square
    classes: int
    is_pinned: bool  # in pinned memory, which a GPU reads directly


def training(
    reader: RecordReader,
    share: TorchInputShare,
    decoders: Decoders,
    *,
    steps: range,
    first_image: int,
    crop_area: float,
    seed: int,
) -> Iterator[ImageBatch]:
    """Yield batches of random crops for these steps, in the order of `trainer.common.data.sampler`.

    Each image's seeds are (seed, position in the run), so its crop is the same whichever rank computes it.

    Args:
        first_image: the run's position at which the first of the steps begins.
    """

    def read(step: int) -> "Loading":
        where = first_image + sampler.positions(step - steps.start, share.rank, share.batch, share.ranks)
        seeds = np.stack([np.full(share.batch, seed, np.int64), where], axis=1)
        numbers = rng.crop_numbers(seeds)
        pixels = [partial(random_crop, numbers=own, least_area=crop_area) for own in numbers]
        found = reader(sampler.examples_at(where, len(reader), seed), replace=True)
        return Loading(found, pixels, rng.uniform(seeds, rng.FLIP) < 0.5, seeds)

    return _loaded(steps, read, share, decoders)


def evaluation(reader: RecordReader, share: TorchInputShare, decoders: Decoders, *, crop: str) -> Iterator[ImageBatch]:
    """Yield this rank's share of the images. Each image occurs once over all ranks. The last batch may be smaller.

    Args:
        crop: one of `CROPS`.
    """
    own = np.asarray(sampler.own_images(len(reader), share.rank, share.ranks))

    def read(begin: int) -> "Loading":
        found = reader(own[begin : begin + share.batch])
        return Loading(
            found, [CROPS[crop]] * len(found), np.zeros(len(found), bool), np.zeros((len(found), 2), np.int64)
        )

    return _loaded(range(0, len(own), share.batch), read, share, decoders)


def synthetic(
    *, batch: int, size: int, classes: int, seed: int, rank: int, is_pinned: bool = False
) -> Iterator[ImageBatch]:
    """Yield the same random batch for ever, in the same kind of memory as a real one."""
    rng = np.random.default_rng((seed, rank))
    images = torch.from_numpy(rng.integers(0, 256, (batch, size, size, 3), np.uint8))
    labels = torch.from_numpy(rng.integers(0, classes, batch))
    whole = ImageBatch(images.pin_memory() if is_pinned else images, labels, np.zeros((batch, 2), np.int64))
    while True:
        yield whole


@dataclass(frozen=True)
class Loading:
    """Records of a batch, and what to do with each."""

    serialized: NDArray[np.object_]
    pixels: Sequence[Pixels]
    mirrored: NDArray[np.bool_]
    seeds: NDArray[np.int64]


def _loaded(
    todo: Iterable[int], read: Callable[[int], Loading], share: TorchInputShare, decoders: Decoders
) -> Iterator[ImageBatch]:
    """Yield the batches in order. Some are read and decoded ahead of the consumer."""
    reading = ThreadPoolExecutor(1, "read")  # one thread: disks are faster with sequential reads
    collecting = ThreadPoolExecutor(1, "collect")
    arenas: list[Arena] = []  # that are free

    def begin(which: int) -> tuple[Loading, Arena, list[Future[list[int]]]]:
        work, arena = read(which), arenas.pop() if arenas else Arena()
        records, mirrored = work.serialized.tolist(), work.mirrored.tolist()
        return (
            work,
            arena,
            decoders.begin(arena, records, work.pixels, mirrored, side=share.size, classes=share.classes),
        )

    def collect(under_way: "Future[tuple[Loading, Arena, list[Future[list[int]]]]]") -> ImageBatch:
        with lost_ones_told():
            work, arena, decoded = under_way.result()
            labels = [label for one in decoded for label in one.result()]
        images = torch.empty((len(labels), share.size, share.size, 3), dtype=torch.uint8, pin_memory=share.is_pinned)
        np.copyto(images.numpy(), arena.pixels(len(labels), share.size))
        arenas.append(arena)
        return ImageBatch(images, torch.tensor(labels, dtype=torch.int64), work.seeds)

    pending: deque[Future[ImageBatch]] = deque()
    try:
        for which in todo:
            pending.append(collecting.submit(collect, reading.submit(begin, which)))
            if len(pending) > AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for pool in (reading, collecting):
            pool.shutdown(wait=False, cancel_futures=True)

"""Records to batches of uint8 pixels by threads of this process, which decode ahead of the training."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from trainer import order, records
from trainer.resnet50.reader import InputError, Reader
from trainer.resnet50_torch import draws

AHEAD = 2  # batches


@dataclass(frozen=True)
class Batch:
    """What a learner is given."""

    images: Tensor  # [N, S, S, 3] uint8; in training mirrored at random
    labels: Tensor  # [N] int64 from 0
    seeds: NDArray[np.int64]  # [N, 2]


@dataclass(frozen=True, kw_only=True)
class Share:
    """One rank's part of the input."""

    rank: int
    ranks: int
    batch: int  # images per rank and step
    size: int  # pixels of the square
    threads: int
    classes: int
    is_pinned: bool  # in memory that a GPU reads by itself


Pixels = Callable[[bytes, int], NDArray[np.uint8]]  # of a JPEG, [S, S, 3] of this size


def training(
    reader: Reader, share: Share, *, steps: range, first_image: int, crop_area: float, seed: int
) -> Iterator[Batch]:
    """Batches of random crops for these steps, in the order of `trainer.order`.

    Each image's seeds are (seed, position in the run), so its crop is the same whichever rank computes it.

    Args:
        first_image: the run's position at which the first of the steps begins.
    """

    def read(step: int) -> "Loading":
        where = first_image + order.positions(step - steps.start, share.rank, share.batch, share.ranks)
        seeds = np.stack([np.full(share.batch, seed, np.int64), where], axis=1)
        numbers = draws.crop_numbers(seeds)
        pixels = [partial(random_crop, numbers=own, least_area=crop_area) for own in numbers]
        found = reader(order.examples_at(where, len(reader), seed), replace=True)
        return Loading(found, pixels, draws.uniform(seeds, draws.FLIP) < 0.5, seeds)

    return _loaded(steps, read, share)


def evaluation(reader: Reader, share: Share, *, crop: str) -> Iterator[Batch]:
    """This rank's share of the images, each once over all ranks; the last batch may be smaller.

    Args:
        crop: one of `CROPS`.
    """
    own = np.asarray(order.own_images(len(reader), share.rank, share.ranks))

    def read(begin: int) -> "Loading":
        found = reader(own[begin : begin + share.batch])
        return Loading(
            found, [CROPS[crop]] * len(found), np.zeros(len(found), bool), np.zeros((len(found), 2), np.int64)
        )

    return _loaded(range(0, len(own), share.batch), read, share)


def synthetic(*, batch: int, size: int, classes: int, seed: int, rank: int) -> Iterator[Batch]:
    """The same random batch for ever."""
    rng = np.random.default_rng((seed, rank))
    images = torch.from_numpy(rng.integers(0, 256, (batch, size, size, 3), np.uint8))
    labels = torch.from_numpy(rng.integers(0, classes, batch))
    whole = Batch(images, labels, np.zeros((batch, 2), np.int64))
    while True:
        yield whole


@dataclass(frozen=True)
class Loading:
    """A batch's records as they were read, and what becomes of each."""

    serialized: NDArray[np.object_]
    pixels: Sequence[Pixels]
    mirrored: NDArray[np.bool_]
    seeds: NDArray[np.int64]


def _loaded(todo: Iterable[int], read: Callable[[int], Loading], share: Share) -> Iterator[Batch]:
    """The batches in their order, some read and decoded ahead of who asks."""
    reading = ThreadPoolExecutor(1, "read")  # records are read one after the other: a disk likes that
    decoding = ThreadPoolExecutor(share.threads, "decode")

    def begin(which: int) -> tuple[Batch, list[Future[None]]]:
        work = read(which)
        count = len(work.serialized)
        images = torch.empty((count, share.size, share.size, 3), dtype=torch.uint8, pin_memory=share.is_pinned)
        labels = torch.empty(count, dtype=torch.int64)
        seen, classes = images.numpy(), labels.numpy()

        def decode(i: int) -> None:
            classes[i] = _decode(work.serialized[i], work.pixels[i], share.classes, seen[i], work.mirrored[i])

        return Batch(images, labels, work.seeds), [decoding.submit(decode, i) for i in range(count)]

    def finished(under_way: "Future[tuple[Batch, list[Future[None]]]]") -> Batch:
        batch, decoded = under_way.result()
        for one in decoded:
            one.result()
        return batch

    pending: deque[Future[tuple[Batch, list[Future[None]]]]] = deque()
    try:
        for which in todo:
            pending.append(reading.submit(begin, which))
            if len(pending) > AHEAD:
                yield finished(pending.popleft())
        while pending:
            yield finished(pending.popleft())
    finally:
        for pool in (reading, decoding):
            pool.shutdown(wait=False, cancel_futures=True)


def _decode(serialized: bytes, pixels: Pixels, classes: int, seen: NDArray[np.uint8], is_mirrored: bool) -> int:
    """Fills in what is seen, [S, S, 3]; the label, from 0. Raises InputError."""
    try:
        example = records.parse(serialized)
        label, encoded = example["image/class/label"][0], example["image/encoded"][0]
        if not isinstance(encoded, bytes):
            raise TypeError("an image is no number")
        fitted = pixels(encoded, seen.shape[0])
    except (ValueError, KeyError, IndexError, TypeError) as e:
        raise InputError(
            "a record holds no readable JPEG image with a label: python -m trainer.verify --decode names it"
        ) from e
    if not isinstance(label, int) or not 1 <= label <= classes:
        raise InputError(f"a label lies outside 1 to {classes}: give the --classes of the data")
    seen[:] = fitted[:, ::-1] if is_mirrored else fitted
    return label - 1


def random_crop(encoded: bytes, size: int, numbers: NDArray[np.float32], least_area: float) -> NDArray[np.uint8]:
    """As TensorFlow's: no antialiasing, and nothing from outside of the crop."""
    image = _decoded(encoded)
    height, width = image.shape[:2]
    crop = draws.random_crop(height, width, numbers, least_area)
    window = image[crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
    return _interpolated(window, (0, 0, crop.width, crop.height), size)


def central_crop(encoded: bytes, size: int) -> NDArray[np.uint8]:
    """`draws.central_view`, of a JPEG decoded as exactly as it can be."""
    image = _decoded(encoded, is_fast=False)
    height, width = image.shape[:2]
    box = draws.central_view(height, width, size)
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR, box))


def stretched_crop(encoded: bytes, size: int) -> NDArray[np.uint8]:
    """`draws.stretched_view`."""
    image = _decoded(encoded)
    height, width = image.shape[:2]
    return _interpolated(image, draws.stretched_view(height, width, size), size)


CROPS: dict[str, Pixels] = {"centre": central_crop, "reference": stretched_crop}


def _decoded(encoded: bytes, *, is_fast: bool = True) -> NDArray[np.uint8]:
    return simplejpeg.decode_jpeg(encoded, "RGB", fastdct=is_fast, fastupsample=is_fast)


def _interpolated(image: NDArray[np.uint8], box: draws.Box, size: int) -> NDArray[np.uint8]:
    extent, bilinear = Image.Transform.EXTENT, Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(image).transform((size, size), extent, box, bilinear))

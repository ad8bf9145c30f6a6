"""Decoding of JPEGs in separate processes, which import no PyTorch: the rank's interpreter stays free.

A batch's records and pixels lie in memory that both share (`trainer.resnet50_torch.decoders`).
"""

import mmap
import multiprocessing
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from trainer.common.data import records
from trainer.resnet50.reader import InputError
from trainer.resnet50_torch import rng

Pixels = Callable[[bytes, int], NDArray[np.uint8]]  # of a JPEG, [S, S, 3] of this size
_KEPT = 8  # mapped batches per process: training and evaluation use four each


@dataclass(frozen=True)
class SharedBatch:
    """Address of a batch in shared memory, for another process."""

    path: str
    identity: int  # its inode: the path may be reused for other memory
    size: int  # bytes


@dataclass(frozen=True, kw_only=True)
class DecodeTask:
    """Task of decoding consecutive images of a batch."""

    memory: SharedBatch
    first: int  # its number in the batch
    records: Sequence[tuple[int, int]]  # offset and length of each
    pixels: Sequence[Pixels]
    mirrored: Sequence[bool]
    side: int  # of the square
    classes: int


def prepare() -> None:
    """Prepare a new process, so that it ends when the rank ends."""
    threading.Thread(target=_end_with_the_rank, daemon=True).start()


def _end_with_the_rank() -> None:
    rank = multiprocessing.parent_process()
    if rank is not None:
        connection.wait([rank.sentinel])
    os._exit(1)


def decode(task: DecodeTask) -> list[int]:
    """Decode the task's images into the shared memory. Returns the labels, from 0. Raises InputError."""
    memory = _at(task.memory)
    shape = (len(task.records), task.side, task.side, 3)
    offset = task.first * task.side * task.side * 3
    seen: NDArray[np.uint8] = np.ndarray(shape, np.uint8, memory, offset)
    labels = []
    for i, (begin, length) in enumerate(task.records):
        serialized = memory[begin : begin + length]
        labels.append(decode_one(serialized, task.pixels[i], task.classes, seen[i], task.mirrored[i]))
    return labels


_memories: "OrderedDict[int, mmap.mmap]" = OrderedDict()


def _at(wanted: SharedBatch) -> mmap.mmap:
    """Return the mapped memory. Maps it again if it has grown."""
    found = _memories.pop(wanted.identity, None)
    if found is None or len(found) < wanted.size:
        fd = os.open(wanted.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            found = mmap.mmap(fd, wanted.size)
        finally:
            os.close(fd)
    _memories[wanted.identity] = found
    while len(_memories) > _KEPT:
        _memories.popitem(last=False)
    return found


def decode_one(serialized: bytes, pixels: Pixels, classes: int, seen: NDArray[np.uint8], is_mirrored: bool) -> int:
    """Decode one image into `seen`, [S, S, 3]. Returns its label, from 0. Raises InputError."""
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
    """Return a random crop as TensorFlow computes it: no antialiasing, and no pixels from outside the crop."""
    image = _decoded(encoded)
    height, width = image.shape[:2]
    crop = rng.random_crop(height, width, numbers, least_area)
    window = image[crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
    return _interpolated(np.ascontiguousarray(window), (0, 0, crop.width, crop.height), size)


def central_crop(encoded: bytes, size: int) -> NDArray[np.uint8]:
    """Return the crop of `draws.central_view`, from a JPEG decoded as exactly as possible."""
    image = _decoded(encoded, is_fast=False)
    height, width = image.shape[:2]
    box = rng.central_view(height, width, size)
    return _colours(_picture(image).resize((size, size), Image.Resampling.BILINEAR, box))


def stretched_crop(encoded: bytes, size: int) -> NDArray[np.uint8]:
    """Return the crop of `draws.stretched_view`."""
    image = _decoded(encoded)
    height, width = image.shape[:2]
    return _interpolated(image, rng.stretched_view(height, width, size), size)


CROPS: dict[str, Pixels] = {"centre": central_crop, "reference": stretched_crop}
_room = (
    bytearray()
)  # of the image that was decoded last: new memory for each costs as much as a quarter of its decoding


def _decoded(encoded: bytes, *, is_fast: bool = True) -> NDArray[np.uint8]:
    """Decode to [H, W, 4], Pillow's layout of pixels. The next call overwrites the result."""
    global _room
    height, width, *_ = simplejpeg.decode_jpeg_header(encoded)
    if len(_room) < height * width * 4:
        _room = bytearray(height * width * 4)
    return simplejpeg.decode_jpeg(encoded, "RGBA", fastdct=is_fast, fastupsample=is_fast, buffer=_room)


def _picture(image: NDArray[np.uint8]) -> Image.Image:
    """Return the same memory as a Pillow image."""
    height, width = image.shape[:2]
    return Image.frombuffer("RGBX", (width, height), image, "raw", "RGBX", 0, 1)


def _interpolated(image: NDArray[np.uint8], box: rng.Box, size: int) -> NDArray[np.uint8]:
    extent, bilinear = Image.Transform.EXTENT, Image.Resampling.BILINEAR
    return _colours(_picture(image).transform((size, size), extent, box, bilinear))


def _colours(picture: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(picture)[..., :3]

"""Random draws for an image. Its seeds alone decide them, whichever rank computes it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FLIP, BRIGHTNESS, HUE, SATURATION, CONTRAST = range(5)  # streams of random numbers, as in trainer.resnet50.augment
CROPS = 5  # the first stream of crops
TRIES = 10
Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels; edges need not lie between two of them
ASPECTS = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class Crop:
    """Part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def uniform(seeds: NDArray[np.int64], stream: int | NDArray[np.int64]) -> NDArray[np.float32]:
    """Return [N] float32 in [0, 1), equal to the bit to those of `trainer.resnet50.augment.uniform`.

    Args:
        seeds: [N, 2].
        stream: which number of the image; [N] or a broadcast of it.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    x = seeds.astype(np.uint64)
    with np.errstate(over="ignore"):
        mixed = _mix(_mix(x[..., 0] + golden * (np.asarray(stream, np.uint64) + np.uint64(1))) + x[..., 1])
    return (mixed >> np.uint64(40)).astype(np.float32) / np.float32(2**24)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def crop_numbers(seeds: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return [N, TRIES, 4] in [0, 1), the numbers that `random_crop` uses."""
    streams = CROPS + np.arange(TRIES * 4)
    return uniform(seeds[:, None], streams[None]).reshape(-1, TRIES, 4)


def random_crop(height: int, width: int, numbers: NDArray[np.float32], least_area: float) -> Crop:
    """Return a random part of the image, with `least_area` to all of its area and an aspect of 3/4 to 4/3.

    Returns the whole image if no try fits.

    Args:
        numbers: [TRIES, 4] in [0, 1).

    Source: sample_distorted_bounding_box of TensorFlow, which the other trainer uses.
    """
    for aspect_number, height_number, top_number, left_number in numbers.tolist():
        aspect = ASPECTS[0] + aspect_number * (ASPECTS[1] - ASPECTS[0])  # width / height
        most = min(round((height * width / aspect) ** 0.5), height, int((width + 0.5) / aspect))
        least = min(round((least_area * height * width / aspect) ** 0.5), most)
        tall = least + int(height_number * (most - least + 1))
        wide = min(round(tall * aspect), width)
        if tall * wide >= least_area * height * width * 0.99 and tall and wide:
            return Crop(int(top_number * (height - tall + 1)), int(left_number * (width - wide + 1)), tall, wide)
    return Crop(0, 0, height, width)


def central_view(height: int, width: int, size: int) -> Box:
    """Return the image's box that the central crop shows, after the shorter side is resized to 256/224 of `size`.

    Source: torchvision's Resize and CenterCrop, by which accuracies are published. The resizing is antialiased.
    """
    shorter = min(height, width)
    tall, wide = (round(size * 256 / 224) * side // shorter for side in (height, width))
    top, left = round((tall - size) / 2), round((wide - size) / 2)
    down, across = height / tall, width / wide
    return left * across, top * down, (left + size) * across, (top + size) * down


def stretched_view(height: int, width: int, size: int) -> Box:
    """Return the central 80% of both sides, whatever the aspect: the reference's points, from corner to corner."""
    edges = []
    for side in (width, height):
        step = 0.8 * (side - 1) / (size - 1)
        first = 0.1 * (side - 1) + 0.5 - step / 2  # a pixel's middle is half a pixel from its edge
        edges.append((first, first + size * step))
    (left, right), (top, bottom) = edges
    return left, top, right, bottom

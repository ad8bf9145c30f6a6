"""Checks of an annotation file's sizes, names, boxes and masks, made before any native code reads them.

pycocotools trusts its input. It writes outside its memory if a coordinate is far away or not a number, or if lengths do
not add up.
"""

import math
from collections.abc import Sequence
from pathlib import PurePosixPath
from reprlib import repr as short
from typing import Any

import numpy as np

from trainer.common.data import jpeg

LONGEST_OUTLINE_PX = 2_000_000
"""pycocotools allocates memory for five points per pixel of an outline, before clipping."""


class InvalidValue(ValueError):
    """Error for a value that the format does not allow. Its text names the value."""


def identity(value: Any, what: str) -> int:
    """Return the value if it is a valid id of an image, a category or an annotation. Raises Damaged otherwise."""
    if type(value) is not int or value < 0:
        raise InvalidValue(f"{what} is {short(value)}, not a whole number from 0")
    return value


def image_size(height: Any, width: Any) -> tuple[int, int]:
    """Return height and width of an image, in pixels. Raises Damaged if they are impossible."""
    if type(height) is not int or type(width) is not int:
        raise InvalidValue(f"height and width are {short(height)} and {short(width)}, not whole numbers")
    try:
        jpeg.check_size(height, width)
    except jpeg.Unusable as e:
        raise InvalidValue(f"{width} x {height} pixels is no picture's size") from e
    return height, width


def file_name(value: Any) -> str:
    """Return the value if it names a file below the folder of its set. Raises Damaged otherwise."""
    if not isinstance(value, str) or not value or "\0" in value or len(value) > 4000:
        raise InvalidValue(f"file_name is {short(value)}, not a file's name")
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or not path.name:
        raise InvalidValue(f"file_name {short(value)} leads out of the folder of its set")
    return value


def number(value: Any, what: str) -> float:
    """Return the value as a finite float. Raises Damaged otherwise."""
    if type(value) is float and -math.inf < value < math.inf:  # nearly always
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise InvalidValue(f"{what} is {short(value)}, not a number")
    try:
        return float(value)
    except OverflowError as e:
        raise InvalidValue(f"{what} is {short(value)}") from e


def is_yes(value: Any, what: str) -> bool:
    """Return the value as a bool if it is 0, 1, false or true. Raises Damaged otherwise."""
    if not isinstance(value, int) or value not in (0, 1):
        raise InvalidValue(f"{what} is {short(value)}, neither 0 nor 1")
    return bool(value)


def box(value: Any) -> tuple[float, float, float, float]:
    """Return x, y, width and height in pixels, wherever they lie. Raises Damaged if they are not four numbers."""
    if not isinstance(value, list) or len(value) != 4:
        raise InvalidValue(f"bbox is {short(value)}, not four numbers")
    x, y, width, height = (number(v, "bbox") for v in value)
    return x, y, width, height


def segmentation(value: Any, height: int, width: int) -> None:
    """Check for polygons near the image, or a run-length code of exactly its pixels.

    Raises:
        Damaged: it is neither.
    """
    if isinstance(value, list):
        for polygon in value:
            _polygon(polygon, height, width)
    elif isinstance(value, dict):
        _run_lengths(value, height, width)
    else:
        raise InvalidValue(f"segmentation is {short(value)}, neither polygons nor a run-length code")


def _polygon(value: Any, height: int, width: int) -> None:
    if not isinstance(value, list):
        raise InvalidValue(f"a polygon is {short(value)}, not a list of numbers")
    if not value:
        return
    reach = max(height, width)
    try:
        low, high, total = min(value), max(value), sum(value)  # a NaN among the values makes the sum NaN
    except (TypeError, OverflowError) as e:
        raise InvalidValue(f"a polygon is {short(value)}, not a list of numbers") from e
    if not (-reach <= low and high <= 2 * reach and total == total):
        raise InvalidValue(
            f"a polygon reaches from {short(low)} to {short(high)}, its sum is {short(total)}: far outside"
        )
    if len(value) * reach > LONGEST_OUTLINE_PX and len(value) % 2 == 0:
        corners = np.asarray(value, np.float64).reshape(-1, 2)
        outline = float(np.abs(corners - np.roll(corners, 1, axis=0)).sum())
        if outline > LONGEST_OUTLINE_PX:
            raise InvalidValue(f"a polygon of {len(corners)} corners has an outline of {outline:.0f} pixels")


def _run_lengths(value: dict[str, Any], height: int, width: int) -> None:
    size, counts = value.get("size"), value.get("counts")
    if size != [height, width]:
        raise InvalidValue(f"a run-length code of size {short(size)} for an image of [{height}, {width}]")
    if isinstance(counts, str):
        lengths: Sequence[int] = _uncompressed(counts)
    elif isinstance(counts, list) and all(type(n) is int for n in counts):
        lengths = counts
    else:
        raise InvalidValue(f"a run-length code of {short(counts)}")
    if any(n < 0 for n in lengths) or sum(lengths) != height * width:
        raise InvalidValue(f"a run-length code whose lengths make {short(sum(lengths))} pixels, not {height * width}")


def _uncompressed(text: str) -> list[int]:
    """Decode the lengths from pycocotools' compressed form.

    Each character holds five bits. From the third length on, each is the difference to the last but one. Source:
    cocoapi, maskApi.c, rleFrString.
    """
    lengths: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 30:
            raise InvalidValue(f"a run-length code with {character!r} in it")
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            value -= (1 << shift) if bits & 16 else 0
            lengths.append(value + lengths[-2] if len(lengths) > 2 else value)
            value = shift = 0
    if shift:
        raise InvalidValue("a run-length code that is cut off")
    return lengths

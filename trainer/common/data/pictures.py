"""Strict reader of image files in any known format. Damaged files are refused with the reason."""

from pathlib import Path

import numpy as np

from trainer.common.data import jpeg, other_formats
from trainer.common.data.jpeg import Unusable

LARGEST_FILE = 1 << 28  # bytes


def check_length(data: bytes) -> None:
    """Raise Unusable for a file of impossible length. A reader may stop one byte after LARGEST_FILE.

    Raises:
        Unusable: it is empty or too long.
    """
    if not data:
        raise Unusable("empty file")
    if len(data) > LARGEST_FILE:
        raise Unusable(f"more than {LARGEST_FILE >> 20} MiB")


def read(file: Path) -> bytes:
    """Return the file's content.

    Raises:
        OSError: it cannot be read.
        Unusable: it is empty or too long.
    """
    with file.open("rb") as stream:
        data = stream.read(LARGEST_FILE + 1)
    check_length(data)
    return data


def decode(data: bytes) -> np.ndarray:
    """Decode the image as stored, [height, width, 3] uint8, blue green red. Ignores a rotation in its metadata.

    Damaged images are refused, where OpenCV would fill them with gray.

    Raises:
        Unusable: truncated, damaged, of an impossible size, or not an image.
    """
    header = jpeg.read_header(data)
    if header and header.components in (1, 3):
        return jpeg.decode(data, header)
    return np.ascontiguousarray(other_formats.decode(data, header)[0])


def check(data: bytes) -> tuple[int, int]:
    """Return height and width as stored, after decoding the image to its end.

    Raises:
        Unusable: as `decode`.
    """
    header = jpeg.read_header(data)
    if header and header.components in (1, 3):
        jpeg.check(data, header)
        return header.height, header.width
    image, _ = other_formats.decode(data, header)
    return image.shape[0], image.shape[1]

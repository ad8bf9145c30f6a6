"""A picture in a file of any format that is known: whole, or refused with the reason."""

from pathlib import Path

import numpy as np

from trainer import jpeg, other_formats
from trainer.jpeg import Unusable

LARGEST_FILE = 1 << 28  # bytes


def check_length(data: bytes) -> None:
    """Refuses what cannot be a picture's file. A reader may stop one byte after LARGEST_FILE.

    Raises:
        Unusable: it is empty or too long.
    """
    if not data:
        raise Unusable("empty file")
    if len(data) > LARGEST_FILE:
        raise Unusable(f"more than {LARGEST_FILE >> 20} MiB")


def read(file: Path) -> bytes:
    """The file's content.

    Raises:
        OSError: it cannot be read.
        Unusable: it is empty or too long.
    """
    with file.open("rb") as stream:
        data = stream.read(LARGEST_FILE + 1)
    check_length(data)
    return data


def decode(data: bytes) -> np.ndarray:
    """The picture as stored, [height, width, 3] uint8, blue green red; a rotation noted in it is ignored. What is
    damaged is refused, where OpenCV would fill it with gray.

    Raises:
        Unusable: truncated, damaged, of an absurd size, or no picture at all.
    """
    header = jpeg.read_header(data)
    if header and header.components in (1, 3):
        return jpeg.decode(data, header)
    return np.ascontiguousarray(other_formats.decode(data, header)[0])


def check(data: bytes) -> tuple[int, int]:
    """Height and width as stored, of a picture that decodes to its end.

    Raises:
        Unusable: as `decode`.
    """
    header = jpeg.read_header(data)
    if header and header.components in (1, 3):
        jpeg.check(data, header)
        return header.height, header.width
    image, _ = other_formats.decode(data, header)
    return image.shape[0], image.shape[1]

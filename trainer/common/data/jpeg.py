"""Strict JPEG decoder.

Every warning of libjpeg-turbo is an error: damaged or truncated files are refused, not filled in.
"""

import re
from dataclasses import dataclass
from textwrap import shorten

import numpy as np
import simplejpeg

NO_SIZE = (0xC4, 0xC8, 0xCC)  # markers between C0 and CF that start no frame
ALONE = (0x01, *range(0xD0, 0xD9))  # markers without a segment
SCAN = 0xDA
END = 0xD9
END_OF_IMAGE = bytes((0xFF, END))
MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")  # not a stuffed FF, a restart or a fill byte
PROGRESSIVE, LOSSLESS = (0xC2, 0xCA), 0xC3
MOST_SCANS = 500  # encoders make ten; each of them costs a pass over all pixels, however short it is
COEFFICIENTS = 64  # of a block
CMYK = 4  # components
LARGEST_SIDE = 65500  # libjpeg's own limit
MOST_PIXELS = 1 << 27  # of any image: 400 MB in memory
MOST_PIXELS_PER_BYTE = 512  # a block of 64 pixels takes at least one bit


class Unusable(Exception):
    """Error for a file that holds no complete image. Its text gives the reason."""


@dataclass(frozen=True)
class Header:
    """Image size and coding, from the markers of a JPEG file."""

    height: int
    width: int
    components: int
    frame: int  # its marker, C0 to CF: baseline, progressive, …
    scan: int  # byte at which the first scan's header begins; 0: no scan


def check_size(height: int, width: int) -> None:
    """Raise Unusable for an impossible image size. Call it before anything is decoded.

    Raises:
        Unusable: there are no pixels, or more than a reader should allocate memory for.
    """
    if height < 1 or width < 1:
        raise Unusable(f"its header says {width} x {height} pixels")
    if height * width > MOST_PIXELS:
        raise Unusable(f"its header says {width} x {height} pixels, more than {MOST_PIXELS:,}")


def read_header(data: bytes) -> Header | None:
    """Read size and components from the frame header; None if the data is not a JPEG. Source: ITU T.81, B.2."""
    if data[:2] != b"\xff\xd8":
        return None
    found: tuple[int, int, int, int] | None = None
    position = 2
    while position + 9 < len(data):
        if data[position] != 0xFF:
            return None
        marker = data[position + 1]
        if marker == 0xFF or marker in ALONE:  # a fill byte, or a marker by itself
            position += 1 if marker == 0xFF else 2
            continue
        if marker == SCAN and found:
            return Header(*found, position)
        if 0xC0 <= marker <= 0xCF and marker not in NO_SIZE:
            height, width = (int.from_bytes(data[i : i + 2]) for i in (position + 5, position + 7))
            found = height, width, data[position + 9], marker
        position += 2 + int.from_bytes(data[position + 2 : position + 4])
    return Header(*found, 0) if found else None


def check_ends(data: bytes, header: Header) -> None:
    """Check size and end of the image, without decoding it.

    Raises:
        Unusable: the size is impossible, the coding is lossless, or the last scan has no end.
    """
    check_size(header.height, header.width)
    if header.frame == LOSSLESS:
        raise Unusable("a lossless JPEG, which trainings cannot read")
    if header.height * header.width > MOST_PIXELS_PER_BYTE * len(data):
        raise Unusable(f"its header says {header.width} x {header.height} pixels, but the file has {len(data)} bytes")
    if not header.scan or not _has_end(data, header.scan):  # an end before the scans is a thumbnail's
        raise Unusable("truncated: the end of the image is missing")


def _has_end(data: bytes, begin: int) -> bool:
    usual = max(begin, len(data) - 4096)  # the end is nearly always here, which makes the search short
    return data.find(END_OF_IMAGE, usual) >= 0 or data.find(END_OF_IMAGE, begin, usual + 1) >= 0


def check(data: bytes, header: Header) -> None:
    """Decode every bit of the scans, to an eighth of the size, which is faster.

    Raises:
        Unusable: truncated, or something in it is damaged so that libjpeg-turbo warns.
    """
    _decoded(data, header, "CMYK" if header.components == CMYK else "GRAY", eighths=1)


def decode(data: bytes, header: Header) -> np.ndarray:
    """Decode the image as stored, [height, width, 3] uint8 in OpenCV's channel order.

    Ignores a rotation in its metadata.

    Raises:
        Unusable: truncated, or something in it is damaged so that libjpeg-turbo warns.
    """
    return _decoded(data, header, "BGR", eighths=8)


def _decoded(data: bytes, header: Header, colours: str, eighths: int) -> np.ndarray:
    check_ends(data, header)
    if header.frame in PROGRESSIVE and data.count(bytes((0xFF, SCAN)), header.scan) > MOST_SCANS:
        raise Unusable(f"more than {MOST_SCANS} scans")
    size = tuple(-(-side * eighths // 8) for side in (header.height, header.width))
    try:
        pixels = simplejpeg.decode_jpeg(data, colours, min_height=size[0], min_width=size[1])
        is_whole = _has_all_scans(data, header)
    except (ValueError, IndexError, MemoryError) as e:
        raise Unusable(f"truncated or damaged: {shorten(str(e) or 'too large', 100)}") from e
    if pixels.shape[:2] != size:
        raise Unusable("damaged: its headers contradict each other")
    if not is_whole:
        raise Unusable("truncated: scans are missing, though it has an end")
    return np.asarray(pixels)


def _has_all_scans(data: bytes, header: Header) -> bool:
    """Return True if the scans contain every bit of each coefficient.

    libjpeg reports no error if a picture is cut off between two scans: it is complete, only coarser. Source: ITU T.81,
    B.2.3.
    """
    missing_bits: dict[int, list[int]] = {}
    position = header.scan
    while data[position + 1] == SCAN:
        begin = position + 5 + 2 * data[position + 4]
        first, last, bits = data[begin : begin + 3]
        for component in data[position + 5 : begin : 2]:
            of_component = missing_bits.setdefault(component, [1] * COEFFICIENTS)
            of_component[first : last + 1] = [bits & 15] * (last + 1 - first)
        if not any(map(any, missing_bits.values())) and len(missing_bits) == header.components:
            return True
        position = _next_marker(data, begin + 3)
        while data[position + 1] not in (SCAN, END):
            position = _next_marker(data, position + 2 + int.from_bytes(data[position + 2 : position + 4]))
    return False


def _next_marker(data: bytes, position: int) -> int:
    found = MARKER.search(data, position)
    if not found:
        raise Unusable("damaged: its scans have no end")
    return found.start()

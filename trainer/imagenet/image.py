"""Conversion of one image file for training: to an RGB or grayscale JPEG that decodes to its end, shrunk on request."""

from dataclasses import dataclass

import cv2
import numpy as np

from trainer.common.data import jpeg, other_formats
from trainer.common.data.jpeg import Unusable
from trainer.common.data.pictures import check_length

CHECKS = ("decode", "header")


@dataclass(frozen=True)
class Jpeg:
    """Converted image for a record, and the repair that was needed."""

    encoded: bytes
    height: int
    width: int
    repair: str | None  # original kind if converted: `png`, `cmyk`, …; None: unchanged kind


def make_jpeg(data: bytes, shorter_side: int, quality: int, check: str = "decode") -> Jpeg:
    """Return the file's image as a JPEG for training. A suitable file stays unchanged.

    Args:
        data: the file; see `pictures.check_length`.
        shorter_side: pixels to shrink to, 0 to keep the size; never enlarges.
        quality: of JPEGs that are encoded again.
        check: check of images that are not encoded again: `decode` reads to the last pixel, `header` reads only the
            first and last bytes.

    Raises:
        Unusable: empty, truncated, damaged, of an impossible size, or not an image.
    """
    check_length(data)
    header = jpeg.read_header(data)
    if header is None or header.components not in (1, 3):
        pixels, kind = other_formats.decode(data, header)
        return _encoded(_shrink(pixels, shorter_side), quality, kind)
    if 0 < shorter_side < min(header.height, header.width):
        return _encoded(_shrink(jpeg.decode(data, header), shorter_side), quality, None)
    if check == "header":
        jpeg.check_ends(data, header)
    else:
        jpeg.check(data, header)
    return Jpeg(data, header.height, header.width, None)


def _encoded(pixels: np.ndarray, quality: int, repair: str | None) -> Jpeg:
    height, width = pixels.shape[:2]
    if max(height, width) > jpeg.LARGEST_SIDE:
        raise Unusable(f"{width} x {height} pixels: a JPEG has at most {jpeg.LARGEST_SIDE} on a side")
    done, encoded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])
    assert done
    return Jpeg(encoded.tobytes(), height, width, repair)


def _shrink(pixels: np.ndarray, shorter_side: int) -> np.ndarray:
    height, width = pixels.shape[:2]
    scale = shorter_side / min(height, width)
    if not 0 < scale < 1:
        return pixels
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)

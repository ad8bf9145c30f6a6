"""One image file made fit for training: an RGB or grayscale JPEG that decodes to its end, shrunk where asked."""

import io
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

Image.MAX_IMAGE_PIXELS = None  # ImageNet has larger pictures than Pillow trusts

CHECKS = ("decode", "header")
NO_SIZE = (0xC4, 0xC8, 0xCC)  # markers between C0 and CF that start no frame
ALONE = (0x01, *range(0xD0, 0xD9))  # markers without a segment
END_WITHIN = 4096  # bytes from the end in which the end marker must stand
READ = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION


@dataclass(frozen=True)
class Jpeg:
    """What goes into a record, and what was done to get it."""

    encoded: bytes
    height: int
    width: int
    repair: str | None  # `png`, `cmyk`, …: what the file was instead; None: as expected


@dataclass(frozen=True)
class Header:
    """What a JPEG file says of itself."""

    height: int
    width: int
    components: int


class Unusable(Exception):
    """The file holds no whole image; the text says why."""


def make_jpeg(data: bytes, shorter_side: int, quality: int, check: str = "decode") -> Jpeg:
    """The file's image, untouched when it already is as wanted.

    Args:
        shorter_side: pixels to shrink to, 0 to leave the size alone; never enlarges.
        quality: of JPEGs that are encoded anew.
        check: how far an image is looked at that is not encoded anew: `decode` to its last pixel, `header` only at its
            first and last bytes.

    Raises:
        Unusable: empty, truncated, or no image at all.
    """
    if not data:
        raise Unusable("empty file")
    header = read_header(data)
    if header is None or header.components not in (1, 3):
        return _repaired(data, shorter_side, quality)
    if data.find(b"\xff\xd9", max(0, len(data) - END_WITHIN)) < 0:
        raise Unusable("truncated: the end of the image is missing")
    shrinks = 0 < shorter_side < min(header.height, header.width)
    if check == "header" and not shrinks:
        return Jpeg(data, header.height, header.width, None)
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), READ)
    if pixels is None or pixels.shape[:2] != (header.height, header.width):
        raise Unusable("truncated or damaged: it cannot be decoded to its end")
    if not shrinks:
        return Jpeg(data, header.height, header.width, None)
    return _encoded(_shrink(pixels, shorter_side), quality, None)


def read_header(data: bytes) -> Header | None:
    """Size and components from the frame header; None if this is no JPEG. Source: ITU T.81, B.2."""
    if data[:2] != b"\xff\xd8":
        return None
    position = 2
    while position + 9 < len(data):
        if data[position] != 0xFF:
            return None
        marker = data[position + 1]
        if marker == 0xFF or marker in ALONE:  # a fill byte, or a marker by itself
            position += 1 if marker == 0xFF else 2
            continue
        if 0xC0 <= marker <= 0xCF and marker not in NO_SIZE:
            height, width = (int.from_bytes(data[i : i + 2]) for i in (position + 5, position + 7))
            return Header(height, width, data[position + 9])
        position += 2 + int.from_bytes(data[position + 2 : position + 4])
    return None


def _repaired(data: bytes, shorter_side: int, quality: int) -> Jpeg:
    """Whatever else Pillow knows, as an RGB JPEG."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()  # decodes to the end: a truncated file raises here
            kind = "cmyk" if image.mode == "CMYK" else (image.format or "?").lower()
            pixels = np.asarray(image.convert("RGB"))[:, :, ::-1]
    except UnidentifiedImageError as e:
        raise Unusable("no image") from e
    except (OSError, SyntaxError, ValueError) as e:  # what Pillow raises for damage differs by format
        raise Unusable(str(e)) from e
    return _encoded(_shrink(pixels, shorter_side), quality, kind)


def _encoded(pixels: np.ndarray, quality: int, repair: str | None) -> Jpeg:
    done, encoded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])
    assert done
    return Jpeg(encoded.tobytes(), pixels.shape[0], pixels.shape[1], repair)


def _shrink(pixels: np.ndarray, shorter_side: int) -> np.ndarray:
    height, width = pixels.shape[:2]
    scale = shorter_side / min(height, width)
    if not 0 < scale < 1:
        return pixels
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)

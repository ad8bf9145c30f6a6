"""Decoder of the images that are not RGB or gray JPEGs, with Pillow: PNG, GIF, BMP, WebP, TIFF, and JPEG in CMYK."""

import io

import numpy as np
from PIL import Image, UnidentifiedImageError

from trainer.common.data import jpeg
from trainer.common.data.jpeg import Header, Unusable

Image.MAX_IMAGE_PIXELS = None  # jpeg.check_size judges sizes, of all formats

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")  # formats whose decoders refuse truncated files

JPEG_IN_TIFF = ("jpeg", "tiff_jpeg")  # as Pillow calls it


def decode(data: bytes, header: Header | None) -> tuple[np.ndarray, str]:
    """Decode the image as stored, [height, width, 3] uint8 in OpenCV's channel order.

    Also returns its kind: `png`, `cmyk`, ….

    Args:
        header: that of a JPEG, if it is one.

    Raises:
        Unusable: truncated, damaged, of an impossible size, or of an unknown format.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            jpeg.check_size(image.height, image.width)
            if header:
                jpeg.check(data, header)  # Pillow ignores what libjpeg warns about
            elif image.format in ("JPEG", "MPO"):
                raise Unusable("damaged: something stands between its headers")
            if image.info.get("compression") in JPEG_IN_TIFF:
                raise Unusable("a TIFF with JPEG inside, of which nobody says whether it is damaged")
            if image.format == "PNG":
                _check_sums(data)
            image.load()  # decodes to the end: a truncated file raises here
            kind = "cmyk" if image.mode == "CMYK" else (image.format or "?").lower()
            return _blue_green_red(image), kind
    except Unusable:
        raise
    except UnidentifiedImageError as e:
        raise Unusable("no image") from e
    except Exception as e:  # Pillow raises different types for damage, depending on the format
        raise Unusable(f"damaged: {e or type(e).__name__}") from e


def _check_sums(data: bytes) -> None:
    """Verify a PNG's checksums. Pillow compares them only on request, and then decodes nothing."""
    with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
        image.verify()


def _blue_green_red(image: Image.Image) -> np.ndarray:
    if image.mode.startswith("I;16"):  # Pillow's own conversion makes everything above 255 white
        gray = np.asarray(image).astype(np.float32) / 257
        return np.repeat(np.round(gray).astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise Unusable(f"{image.format} with 32 bits per pixel: nobody knows which of its values is white")
    return np.asarray(image.convert("RGB"))[:, :, ::-1]

"""Damaged image files: each is refused by name or whole, and never the end of a conversion."""

import functools
import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image

from tests import fuzzing
from trainer.common.data.jpeg import LARGEST_SIDE, Unusable
from trainer.imagenet.image import make_jpeg

pytestmark = [pytest.mark.fuzz, pytest.mark.slow]

JPEGS = {
    "baseline": {},
    "progressive": {"progressive": True},
    "optimized": {"optimize": True, "quality": 30},
    "full colour": {"subsampling": 0},
    "restarts": {"restart_marker_blocks": 2},
}
OTHERS = {
    "png": ("RGB", "PNG", {}),
    "palette": ("P", "PNG", {}),
    "transparent": ("RGBA", "PNG", {}),
    "gif": ("P", "GIF", {}),
    "bmp": ("RGB", "BMP", {}),
    "webp": ("RGB", "WEBP", {}),
    "lossless": ("RGB", "WEBP", {"lossless": True}),
    "tiff": ("RGB", "TIFF", {}),
    "lzw": ("RGB", "TIFF", {"compression": "tiff_lzw"}),
    "deflate": ("RGB", "TIFF", {"compression": "tiff_deflate"}),
}


def picture(height: int = 90, width: int = 120) -> Any:
    """Something with edges, slopes and noise."""
    rng = np.random.default_rng(5)
    slopes = cv2.resize(rng.uniform(0, 255, (5, 6, 3)).astype(np.float32), (width, height))
    cv2.circle(slopes, (width // 2, height // 2), height // 3, (10, 200, 90), -1)
    return Image.fromarray(np.clip(slopes + rng.normal(0, 8, slopes.shape), 0, 255).astype(np.uint8))


def saved(image: Any, form: Any, **options: Any) -> Any:
    """The file's bytes."""
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


@functools.cache
def corpus() -> Any:
    """Whole files by name: JPEGs that are copied, and what is made into one."""
    drawn = picture()
    found = {name: saved(drawn, "JPEG", **options) for name, options in JPEGS.items()}
    found["gray"] = saved(drawn.convert("L"), "JPEG")
    found["cmyk"] = saved(drawn.convert("CMYK"), "JPEG")
    found["thumbnail"] = (
        found["baseline"][:2] + b"\xff\xe1" + (1002).to_bytes(2) + found["optimized"][:1000].ljust(1000, b"\0")
    )
    found["thumbnail"] += found["baseline"][2:]
    found["16 bits"] = saved(Image.fromarray(np.asarray(drawn.convert("L")).astype(np.uint16) * 257), "PNG")
    found |= {name: saved(drawn.convert(mode), form, **more) for name, (mode, form, more) in OTHERS.items()}
    return found


def pixels(encoded: Any) -> Any:
    """Decoded with every warning an error."""
    return simplejpeg.decode_jpeg(encoded, "BGR", strict=True)


def test_the_whole_files_are_all_used() -> None:
    """Or damaging them would show nothing."""
    wanted = np.asarray(picture())[:, :, ::-1].astype(int)
    for name, data in corpus().items():
        made = make_jpeg(data, 0, 95)
        found = pixels(made.encoded)
        assert (found.shape[:2], (90, 120)) == ((made.height, made.width), (made.height, made.width)), name
        is_gray = name in ("gray", "16 bits")
        expected = np.repeat(wanted @ [[0.114], [0.587], [0.299]], 3, axis=2) if is_gray else wanted
        assert np.abs(found - expected).mean() < 16, name


def one_damaged_image(rng: Any) -> None:
    """Refused as `Unusable`, or what comes out is a JPEG without a warning and of the size that is said."""
    names = sorted(corpus())
    data = fuzzing.damaged(corpus()[names[rng.integers(len(names))]], rng)
    if rng.integers(4) == 0:
        data = fuzzing.damaged(data or b"x", rng)
    try:
        made = make_jpeg(data, int(rng.choice([0, 0, 32])), 85)
    except Unusable as e:
        assert str(e)
        return
    if data[:2] == b"\xff\xd8":
        simplejpeg.decode_jpeg(data, "GRAY" if simplejpeg.decode_jpeg_header(data)[2] != "CMYK" else "CMYK")
    assert pixels(made.encoded).shape[:2] == (made.height, made.width)
    assert max(made.height, made.width) <= LARGEST_SIDE


def test_a_damaged_image_is_unusable_or_decodes_without_a_warning(tmp_path: Path) -> None:
    """Whatever was changed in it: no other exception, no crash, nothing accepted that libjpeg-turbo warns about."""
    fuzzing.survives(one_damaged_image, tmp_path, least=100)


def one_cut_image(rng: Any) -> None:
    """A part of a file is never used, unless all pixels were in it; nor with an end put to it."""
    names = sorted(corpus())
    name = names[rng.integers(len(names))]
    whole = corpus()[name]
    cut = whole[: int(rng.integers(1, len(whole)))]
    is_jpeg = whole[:2] == b"\xff\xd8"
    if is_jpeg and rng.integers(2) and len(cut) < len(whole) - 10:
        cut += b"\xff\xd9"
    try:
        made = make_jpeg(cut, 0, 85)
    except Unusable:
        return
    assert not is_jpeg, f"{name}: {len(cut)} of {len(whole)} bytes were taken for the whole"
    assert (pixels(made.encoded) == pixels(make_jpeg(whole, 0, 85).encoded)).all(), f"{name}: {len(cut)} bytes"


def test_a_cut_image_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    """Wherever it was cut, of all formats."""
    fuzzing.survives(one_cut_image, tmp_path, least=100)

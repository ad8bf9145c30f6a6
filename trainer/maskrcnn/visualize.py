"""Gallery of a few small validation pictures with their detections, in the job's folder. No TensorFlow."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2

from trainer.coco.annotations import CocoSet
from trainer.common.data import pictures
from trainer.common.data.jpeg import Unusable
from trainer.maskrcnn.draw import Image, draw_results

FOLDER = "pictures"
COUNT = 6
SIDE = 320  # pixels, of the longer side
_QUALITY = 72  # of the JPEG, which has about 15 kB then
_MOST_OBJECTS = 20  # on one picture, the best


def write_gallery(job_dir: Path, data: CocoSet, entries: Sequence[dict[str, Any]], least_score: float) -> None:
    """Write the set's first pictures as JPEG, with their results drawn. Replaces earlier ones.

    A picture that cannot be read or written only causes a warning.

    Args:
        entries: results in COCO's form.
    """
    labels = {category: label for label, category in enumerate(data.category_ids, start=1)}
    for picture in data.pictures[:COUNT]:
        own = [e for e in entries if e["image_id"] == picture.id and e["score"] >= least_score]
        best = sorted(own, key=lambda e: -float(e["score"]))[:_MOST_OBJECTS]
        try:
            image = pictures.decode(pictures.read(picture.path))
            drawn = draw_results(image, best, labels, data.class_names)
            _write(job_dir / FOLDER / f"{picture.path.stem}.jpg", _small(drawn))
        except (OSError, Unusable, ValueError, cv2.error) as e:
            print(f"warning: {picture.path.name} is not drawn: {e}", file=sys.stderr, flush=True)


def _small(image: Image) -> Image:
    scale = SIDE / max(image.shape[:2])
    if scale >= 1:
        return image
    size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def _write(path: Path, image: Image) -> None:
    """Write the picture as JPEG, atomically."""
    ok, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    if not ok:
        raise ValueError("it cannot be packed as JPEG")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data.tobytes())
    partial.replace(path)

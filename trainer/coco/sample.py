"""Small synthetic set in COCO's layout, for demo and tests: `python -m trainer.coco.sample --out DIR`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from trainer.coco.draw import SHAPES, DrawnObject, as_polygon, scene
from trainer.common.files.commandline import TrainerParser
from trainer.common.files.errors import ConfigError, TrainerError, entry
from trainer.common.files.plural import counted
from trainer.common.files.progress_lines import ProgressLines

CROWD_EVERY, EMPTY_EVERY = 8, 10
"""Every 8th picture has a crowd region, every 10th has no object."""


def write_sample(out: Path, *, train: int, val: int, size: int, seed: int, max_objects: int = 4) -> None:
    """Write train2017/, val2017/ and annotations/ into an absent or empty folder.

    Raises:
        ConfigError: the folder is not empty, or a number is too small for a set.
        TrainerError: the folder cannot be written.
    """
    check(out, train=train, val=val, size=size, seed=seed, max_objects=max_objects)
    try:
        (out / "annotations").mkdir(parents=True, exist_ok=True)
        progress = ProgressLines(counted(train + val, "image"))
        for part, (name, count) in enumerate((("train2017", train), ("val2017", val))):
            _write_set(out, name, count, size, np.random.default_rng([seed, part]), max_objects, progress)
    except OSError as e:
        raise TrainerError(f"{out} cannot be written ({e}): remove what is there and start again") from e


def check(out: Path, *, train: int, val: int, size: int, seed: int, max_objects: int) -> None:
    """Check that `write_sample` could run. Raises the same ConfigErrors and changes nothing."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty: give a new folder")
    if min(train, val, max_objects) < 1 or size < 64 or seed < 0:
        raise ConfigError(
            "a set needs at least 1 image each with 1 object, a --size of at least 64 pixels and a --seed from 0"
        )


def _write_set(
    out: Path,
    name: str,
    count: int,
    size: int,
    rng: np.random.Generator,
    max_objects: int,
    progress: ProgressLines,
) -> None:
    (out / name).mkdir()
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        height, width = ((size, size), (size * 3 // 4, size), (size, size * 3 // 4))[number % 3]
        is_empty = number % EMPTY_EVERY == 0
        picture, drawn = scene(
            rng,
            height,
            width,
            objects=0 if is_empty else int(rng.integers(1, max_objects + 1)),
            crowd=number % CROWD_EVERY == 0 and not is_empty,
        )
        file = f"{number:012d}.jpg"
        if not cv2.imwrite(str(out / name / file), picture, [cv2.IMWRITE_JPEG_QUALITY, 95]):
            raise ConfigError(f"{out / name / file} cannot be written: is the disk full?")
        images.append({"id": number, "file_name": file, "height": height, "width": width, "license": 1})
        annotations += [_annotation(len(annotations) + i + 1, number, d) for i, d in enumerate(drawn)]
        progress.add()
    value = {
        "info": {"description": "drawn shapes"},
        "licenses": [{"id": 1, "name": "drawn", "url": ""}],
        "images": images,
        "annotations": annotations,
        "categories": [{"id": i + 1, "name": n, "supercategory": "shape"} for i, n in enumerate(SHAPES)],
    }
    (out / "annotations" / f"instances_{name}.json").write_text(json.dumps(value))


def _annotation(number: int, image: int, drawn: DrawnObject) -> dict[str, Any]:
    """Return an object's annotation: a polygon if it is whole; a run-length code if it is partly hidden or a crowd."""
    code = coco_mask.encode(np.asfortranarray(drawn.mask))
    return {
        "id": number,
        "image_id": image,
        "category_id": SHAPES.index(drawn.shape) + 1,
        "iscrowd": int(drawn.is_crowd),
        "area": float(coco_mask.area(code)),
        "bbox": [float(v) for v in coco_mask.toBbox(code)],
        "segmentation": (run_lengths(drawn.mask) if drawn.is_hidden or drawn.is_crowd else [as_polygon(drawn.outline)]),
    }


def run_lengths(mask: NDArray[np.uint8]) -> dict[str, Any]:
    """Return COCO's uncompressed run-length code for crowds: column by column, starting with a run of zeros."""
    flat = np.concatenate([[0], mask.ravel(order="F"), [2]])
    edges = np.flatnonzero(np.diff(flat))
    return {"size": list(mask.shape), "counts": np.diff(np.concatenate([[0], edges])).tolist()}


@entry
def main(argv: Sequence[str]) -> None:
    """Draw the set and print its folder, or with `--check` only check that it could be drawn."""
    p = TrainerParser(prog="python -m trainer.coco.sample", description="Draws a small set in COCO's layout.")
    p.add_argument("--out", type=Path, required=True, help="absent or empty folder")
    p.add_argument("--train", type=int, default=96, help="images to learn from")
    p.add_argument("--val", type=int, default=24, help="images to evaluate on")
    p.add_argument("--size", type=int, default=192, help="longer side in pixels")
    p.add_argument("--max-objects", type=int, default=4, help="at most so many objects on one image, crowds aside")
    p.add_argument("--seed", type=int, default=0, help="of the drawing (default 0)")
    p.add_argument("--check", action="store_true", help="only look whether it could be done")
    a = p.parse_args(argv)
    if a.check:
        check(a.out, train=a.train, val=a.val, size=a.size, seed=a.seed, max_objects=a.max_objects)
        print(
            f"{a.out} would get {counted(a.train, 'image')} to learn from and {a.val} to evaluate on, "
            f"{', '.join(SHAPES)}"
        )
        return
    print(f"drawing {counted(a.train + a.val, 'image')} into {a.out}", flush=True)
    write_sample(a.out, train=a.train, val=a.val, size=a.size, seed=a.seed, max_objects=a.max_objects)
    print(f"{a.out}: {counted(a.train, 'image')} to learn from and {a.val} to evaluate on, {', '.join(SHAPES)}")


if __name__ == "__main__":
    sys.exit(main())

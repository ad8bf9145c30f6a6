"""Pictures drawn for the tests, in the layout of the real ones, for a clone that has none beside it."""

import json
import os
import shutil
from itertools import cycle
from pathlib import Path
from typing import Any

from cluster.inventory import ROOT
from trainer import sample
from trainer.coco.sample import write_sample

LONGER_SIDES = (640, 128)  # pixels; COCO's scores tell small, medium and large objects apart
# The first ten as COCO names them, and its ids, which leave out ten of the first ninety.
NAMES = ("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light")
IDS = sorted({*range(1, 91)} - {12, 26, 29, 30, 45, 66, 68, 69, 71, 83})


def photographs() -> Path | None:
    """The folder of real images: DLAMI_TEST_DATA, or `shared/data` beside the checkout; None where there is none."""
    folder = Path(os.environ.get("DLAMI_TEST_DATA") or ROOT.parent / "shared/data")
    return folder if folder.is_dir() else None


def draw(folder: Path) -> Path:
    """The folder with `imagenet-mini/` and `coco-mini/`: as many pictures, classes and layouts as the tests count on."""
    sample.write_set(folder / "imagenet-mini", train=130, validation=27, seed=5)
    draw_coco(folder / "coco-mini")
    return folder


def draw_coco(out: Path) -> None:
    """48 and 24 pictures of two sizes with COCO's 80 categories, crowds among them."""
    parts = [out.with_name(f"{out.name}-{side}") for side in LONGER_SIDES]
    for part, side in zip(parts, LONGER_SIDES, strict=True):
        write_sample(part, train=24, val=12, size=side, seed=side)
    for name in ("train2017", "val2017"):
        (out / name).mkdir(parents=True)
        merged = merge([json.loads((p / f"annotations/instances_{name}.json").read_text()) for p in parts])
        for image, source in zip(
            merged["images"], [p for p in parts for _ in range(len(merged["images"]) // 2)], strict=True
        ):
            shutil.copy(source / name / image.pop("source"), out / name / image["file_name"])
        (out / "annotations").mkdir(exist_ok=True)
        (out / f"annotations/instances_{name}.json").write_text(json.dumps(merged))
    for part in parts:
        shutil.rmtree(part)


def merge(sets: list[dict[str, Any]]) -> dict[str, Any]:
    """One set of several: ids run on, and the objects go through all categories in turn, people at every other place."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    categories = cycle([c for other in IDS[1:] for c in (IDS[0], other)])
    for one in sets:
        first = len(images)
        for image in one["images"]:
            number = first + image["id"]
            images.append({**image, "id": number, "file_name": f"{number:012d}.jpg", "source": image["file_name"]})
        for entry in one["annotations"]:
            number = len(annotations) + 1
            annotations.append(
                {**entry, "id": number, "image_id": first + entry["image_id"], "category_id": next(categories)}
            )
    named = dict(zip(IDS, NAMES, strict=False))
    return {
        **sets[0],
        "images": images,
        "annotations": annotations,
        "categories": [{"id": i, "name": named.get(i, f"kind {i}"), "supercategory": "drawn"} for i in IDS],
    }

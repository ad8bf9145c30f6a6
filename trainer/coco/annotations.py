"""COCO's instances_*.json as plain values, every oddity counted and none of them fatal by surprise."""

import json
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import ConfigError

Segmentation = list[list[float]] | dict[str, Any]
"""Polygons as x y x y ... in pixels, or a run-length code with `size` and `counts`."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One annotated object."""

    id: int
    label: int
    """Class number: 1 .. number of categories, in the order of the category ids; 0 is the background."""
    box: tuple[float, float, float, float]
    """x1 y1 x2 y2 in pixels, clipped to the image."""
    area: float
    is_crowd: bool
    segmentation: Segmentation


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One image and its objects."""

    id: int
    path: Path
    height: int
    width: int
    instances: tuple[Instance, ...] = ()

    @property
    def objects(self) -> tuple[Instance, ...]:
        """What a detector should find: everything but crowd regions."""
        return tuple(i for i in self.instances if not i.is_crowd)


@dataclass(frozen=True, kw_only=True)
class CocoSet:
    """All images of one annotation file, in the file's order."""

    file: Path
    pictures: tuple[Picture, ...]
    category_ids: tuple[int, ...]
    """COCO's id of class 1, 2, ..."""
    class_names: tuple[str, ...]
    odd: Counter[str] = field(default_factory=Counter)
    """How often each kind of oddity was met: box outside the image, box without area, unusable polygon."""

    @cached_property
    def raw(self) -> dict[str, Any]:
        """The annotation file as it is, for pycocotools."""
        value: dict[str, Any] = json.loads(self.file.read_text())
        return value


def read_set(basedir: Path, name: str) -> CocoSet:
    """The set `coco_NAME` or `NAME` of a folder in COCO's layout.

    Raises:
        ConfigError: folder or annotations missing, or not in COCO's format.
    """
    name = name.removeprefix("coco_")
    file = basedir / "annotations" / f"instances_{name}.json"
    if not file.is_file():
        raise ConfigError(f"{file} is missing: DATA.BASEDIR needs annotations/instances_{name}.json and {name}/")
    return read_annotations(file, basedir / name)


def read_annotations(file: Path, image_dir: Path) -> CocoSet:
    """The set of one annotation file whose images lie in `image_dir`; the images are not opened.

    Raises:
        ConfigError: the file is not COCO's format; the message names what is missing.
    """
    try:
        raw = json.loads(file.read_text())
        return parse(raw, file, image_dir)
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{file} is not JSON ({e}): copy it again") from e
    except (KeyError, TypeError, AttributeError) as e:
        raise ConfigError(f"{file} is not in COCO's instances format: missing or wrong {e}") from e


def parse(raw: dict[str, Any], file: Path, image_dir: Path) -> CocoSet:
    """`read_annotations` on a loaded file."""
    categories = sorted(raw["categories"], key=lambda c: c["id"])
    label_of = {c["id"]: i + 1 for i, c in enumerate(categories)}
    sizes = {i["id"]: (i["height"], i["width"]) for i in raw["images"]}
    odd: Counter[str] = Counter()
    by_image: dict[int, list[Instance]] = {image: [] for image in sizes}
    for entry in raw["annotations"]:
        if entry["image_id"] not in sizes:
            odd["annotation of an unknown image"] += 1
        elif entry["category_id"] not in label_of:
            odd["annotation of an unknown category"] += 1
        else:
            instance = _instance(entry, label_of[entry["category_id"]], sizes[entry["image_id"]], odd)
            if instance:
                by_image[entry["image_id"]].append(instance)
    pictures = tuple(
        Picture(
            id=i["id"],
            path=image_dir / i["file_name"],
            height=i["height"],
            width=i["width"],
            instances=tuple(by_image[i["id"]]),
        )
        for i in raw["images"]
    )
    return CocoSet(
        file=file,
        pictures=pictures,
        category_ids=tuple(c["id"] for c in categories),
        class_names=tuple(c["name"] for c in categories),
        odd=odd,
    )


def _instance(entry: dict[str, Any], label: int, size: tuple[int, int], odd: Counter[str]) -> Instance | None:
    height, width = size
    x, y, w, h = (float(v) for v in entry["bbox"])
    x1, x2 = np.clip([x, x + w], 0, width)
    y1, y2 = np.clip([y, y + h], 0, height)
    if x1 > x or y1 > y or x2 < x + w or y2 < y + h:
        odd["box reaches outside the image"] += 1
    if x2 <= x1 or y2 <= y1:
        odd["box without area"] += 1
        return None
    segmentation = entry.get("segmentation", [])
    if isinstance(segmentation, list):
        usable = [p for p in segmentation if len(p) >= 6 and len(p) % 2 == 0]
        odd["polygon with fewer than three corners"] += len(segmentation) - len(usable)
        segmentation = usable
        if not usable:
            odd["object without a mask"] += 1
            return None
    return Instance(
        id=entry["id"],
        label=label,
        box=(float(x1), float(y1), float(x2), float(y2)),
        area=float(entry.get("area", w * h)),
        is_crowd=bool(entry.get("iscrowd", 0)),
        segmentation=segmentation,
    )

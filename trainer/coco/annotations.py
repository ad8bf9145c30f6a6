"""Reader of COCO's instances_*.json. Counts every oddity, and refuses only files that it cannot use."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trainer.coco import checks
from trainer.coco.checks import InvalidValue
from trainer.common.files.errors import ConfigError

MASK, AREA, POLYGON_LOST = "object without a mask", "box without area", "object that loses some of its polygons"
IMAGE, CATEGORY = "annotation of an unknown image", "annotation of an unknown category"
"""Oddities for which an object, or a part of it, is left out."""

Segmentation = list[list[float]] | dict[str, Any]
"""Polygons as x y x y ... in pixels, or a run-length code with `size` and `counts`."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """Annotated object: its label, box, area and mask."""

    id: int
    label: int
    """Class number: 1 .. number of categories, in the order of the category ids; 0 is the background."""
    box: tuple[float, float, float, float]
    """x1 y1 x2 y2 in pixels, clipped to the image."""
    area: float
    is_crowd: bool
    segmentation: Segmentation


@dataclass(frozen=True, kw_only=True)
class AnnotatedImage:
    """Image of the set, with its annotated objects."""

    id: int
    path: Path
    height: int
    width: int
    instances: tuple[Instance, ...] = ()

    @property
    def objects(self) -> tuple[Instance, ...]:
        """Return the objects that a detector should find: all except crowd regions."""
        return tuple(i for i in self.instances if not i.is_crowd)


@dataclass(frozen=True, kw_only=True)
class CocoSet:
    """Images of one annotation file, in the file's order."""

    file: Path
    pictures: tuple[AnnotatedImage, ...]
    category_ids: tuple[int, ...]
    """COCO's id of class 1, 2, ..."""
    class_names: tuple[str, ...]
    odd: Counter[str] = field(default_factory=Counter)
    """Number of oddities of each kind: box outside the image, box without area, unusable polygon."""
    odd_images: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """The images that have each kind of oddity."""
    annotated: int = 0
    """Annotations in the file, including those that are left out."""
    damaged: tuple[str, ...] = ()
    """One sentence for each annotation with impossible values, which is in no picture."""

    @cached_property
    def raw(self) -> dict[str, Any]:
        """Return the annotation file unchanged, for pycocotools."""
        value: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8-sig"))
        return value


class _Odd:
    """Counts of the oddities, by kind."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self.images: dict[str, set[int]] = {}

    def note(self, what: str, image: int, times: int = 1) -> None:
        """Count an oddity of an annotation of this image."""
        self.times[what] += times
        self.images.setdefault(what, set()).add(image)


def read_set(basedir: Path, name: str, *, with_masks: bool = True) -> CocoSet:
    """Read the set `coco_NAME` or `NAME` of a folder in COCO's layout, for training or evaluation.

    Args:
        with_masks: leave out objects without a mask. Otherwise a box is enough.

    Raises:
        ConfigError: folder or annotations are missing, not in COCO's format, or damaged.
    """
    name = name.removeprefix("coco_")
    file = basedir / "annotations" / f"instances_{name}.json"
    if not file.is_file():
        raise ConfigError(f"{file} is missing: DATA.BASEDIR needs annotations/instances_{name}.json and {name}/")
    data = read_annotations(file, basedir / name, with_masks=with_masks)
    if data.damaged:
        raise ConfigError(
            f"{file}: {len(data.damaged)} annotations are damaged, the first: {data.damaged[0]}; mend or remove them: "
            f"python -m trainer.coco.verify {basedir} names all"
        )
    return data


def read_annotations(file: Path, image_dir: Path, *, with_masks: bool = True) -> CocoSet:
    """Read the set of one annotation file whose images lie in `image_dir`. The images are not opened.

    Args:
        with_masks: leave out objects without a mask. Otherwise a box is enough.

    Raises:
        ConfigError: the file is not in COCO's format; the message names what is missing.
    """
    try:
        raw = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as e:
        raise ConfigError(f"{file} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{file} is not JSON ({e}): copy it again") from e
    try:
        return parse(raw, file, image_dir, with_masks=with_masks)
    except (KeyError, TypeError, AttributeError, InvalidValue) as e:
        raise ConfigError(f"{file} is not in COCO's instances format: missing or wrong {e}") from e


def parse(raw: dict[str, Any], file: Path, image_dir: Path, *, with_masks: bool = True) -> CocoSet:
    """Parse a loaded annotation file, as `read_annotations` does."""
    labels, names = _categories(raw["categories"])
    pictures = [_picture(entry, image_dir) for entry in raw["images"]]
    sizes = {p.id: (p.height, p.width) for p in pictures}
    if len(sizes) < len(pictures):
        raise InvalidValue(f"images: {len(pictures)} of them have {len(sizes)} ids")
    odd = _Odd()
    damaged: list[str] = []
    by_image: dict[int, list[Instance]] = {image: [] for image in sizes}
    ids: set[int] = set()
    for place, entry in enumerate(raw["annotations"]):
        try:
            instance = _instance(entry, labels, sizes, odd, with_masks)
        except InvalidValue as e:
            damaged.append(f"{_name(entry, place)}: {e}")
        else:
            if entry["id"] in ids:
                damaged.append(f"{_name(entry, place)}: its id occurs twice")
            elif instance:
                by_image[entry["image_id"]].append(instance)
            ids.add(entry["id"])
    return CocoSet(
        file=file,
        pictures=tuple(replace(p, instances=tuple(by_image[p.id])) for p in pictures),
        category_ids=tuple(labels),
        class_names=names,
        odd=odd.times,
        odd_images={what: frozenset(images) for what, images in odd.images.items()},
        annotated=len(raw["annotations"]),
        damaged=tuple(damaged),
    )


def _categories(entries: list[dict[str, Any]]) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return the class number by COCO's id, and the names, both in the order of the ids."""
    names = {checks.identity(c["id"], "a category's id"): str(c["name"]) for c in entries}
    if len(names) < len(entries):
        raise InvalidValue(f"categories: {len(entries)} of them have {len(names)} ids")
    in_order = sorted(names)
    return {id: label for label, id in enumerate(in_order, start=1)}, tuple(names[id] for id in in_order)


def _picture(entry: dict[str, Any], image_dir: Path) -> AnnotatedImage:
    id = checks.identity(entry["id"], "an image's id")
    try:
        height, width = checks.image_size(entry["height"], entry["width"])
        return AnnotatedImage(id=id, path=image_dir / checks.file_name(entry["file_name"]), height=height, width=width)
    except InvalidValue as e:
        raise InvalidValue(f"image {id}: {e}") from e


def _name(entry: Any, place: int) -> str:
    id = entry.get("id") if isinstance(entry, dict) else None
    return f"annotation {id}" if type(id) is int else f"annotation number {place + 1} of the file"


def _instance(
    entry: Any, labels: dict[int, int], sizes: dict[int, tuple[int, int]], odd: _Odd, with_masks: bool
) -> Instance | None:
    if not isinstance(entry, dict):
        raise InvalidValue("it is no object")
    for key in ("id", "image_id", "category_id", "bbox"):
        if key not in entry:
            raise InvalidValue(f"{key} is missing")
    image, category = (checks.identity(entry[key], key) for key in ("image_id", "category_id"))
    checks.identity(entry["id"], "id")
    if image not in sizes or category not in labels:
        odd.note(CATEGORY if image in sizes else IMAGE, image)
        return None
    height, width = sizes[image]
    x, y, w, h = checks.box(entry["bbox"])
    segmentation = entry.get("segmentation", [])
    checks.segmentation(segmentation, height, width)
    instance = Instance(
        id=entry["id"],
        label=labels[category],
        box=(_clipped(x, width), _clipped(y, height), _clipped(x + w, width), _clipped(y + h, height)),
        area=checks.number(entry.get("area", w * h), "area"),
        is_crowd=checks.is_yes(entry.get("iscrowd", 0), "iscrowd"),
        segmentation=segmentation,
    )
    if instance.box != (x, y, x + w, y + h):
        odd.note("box reaches outside the image", image)
    if instance.box[2] <= instance.box[0] or instance.box[3] <= instance.box[1]:
        odd.note(AREA, image)
        return None
    return _with_usable_polygons(instance, image, odd, with_masks)


def _clipped(value: float, most: int) -> float:
    """Return the value, limited to 0 .. `most`."""
    return min(max(value, 0.0), float(most))


def _with_usable_polygons(instance: Instance, image: int, odd: _Odd, with_masks: bool) -> Instance | None:
    if not isinstance(instance.segmentation, list):
        return instance
    usable = [p for p in instance.segmentation if len(p) >= 6 and len(p) % 2 == 0]
    if len(usable) < len(instance.segmentation):
        odd.note("polygon with fewer than three corners", image, len(instance.segmentation) - len(usable))
        instance = replace(instance, segmentation=usable)
        if usable and with_masks:
            odd.note(POLYGON_LOST, image)
    if not usable and with_masks:
        odd.note(MASK, image)
        return None
    return instance

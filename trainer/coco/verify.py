"""`python -m trainer.coco.verify DIR`: every image and every annotation looked at, what is wrong named."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from trainer.coco import masks
from trainer.coco.annotations import CocoSet, Instance, Picture, read_annotations
from trainer.errors import ConfigError, TrainerError, entry

SHOWN = 20
"""Problems printed one by one; the rest is counted."""


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with one file."""

    file: Path
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


def find_sets(folder: Path) -> list[CocoSet]:
    """The sets of a folder in COCO's layout.

    Raises:
        ConfigError: there is none.
    """
    files = sorted((folder / "annotations").glob("instances_*.json"))
    if not files:
        raise ConfigError(f"{folder} is not in COCO's layout: annotations/instances_*.json is missing")
    return [read_annotations(f, folder / f.stem.removeprefix("instances_")) for f in files]


def problems(data: CocoSet, *, threads: int = 4) -> Iterator[Problem]:
    """Everything wrong with a set: images missing, cut off, of another size; files nobody annotated; empty masks."""
    with ThreadPoolExecutor(threads) as pool:
        for found in pool.map(_picture_problems, data.pictures):
            yield from found
    folders = {p.path.parent for p in data.pictures}
    known = {p.path for p in data.pictures}
    for folder in folders:
        for extra in sorted(set(folder.glob("*.jpg")) - known):
            yield Problem(extra, f"is not mentioned in {data.file.name}")
    ids = [p.id for p in data.pictures]
    if len(set(ids)) < len(ids):
        yield Problem(data.file, f"{len(ids) - len(set(ids))} image ids occur twice")
    for what in ("annotation of an unknown image", "annotation of an unknown category"):
        if data.odd[what]:
            yield Problem(data.file, f"{data.odd[what]} times: {what}")


def counts(data: CocoSet) -> str:
    """One line on what a set holds, oddities that training copes with among it."""
    objects = sum(len(p.objects) for p in data.pictures)
    crowds = sum(len(p.instances) - len(p.objects) for p in data.pictures)
    empty = sum(not p.objects for p in data.pictures)
    odd = "".join(f"; {n} x {what}" for what, n in sorted(data.odd.items()) if n)
    return (
        f"{data.file.stem.removeprefix('instances_')}: {len(data.pictures)} images ({empty} without objects), "
        f"{objects} objects and {crowds} crowd regions of {len(data.category_ids)} categories{odd}"
    )


def _picture_problems(picture: Picture) -> list[Problem]:
    found = [_image_problem(picture), *(_mask_problem(picture, i) for i in picture.instances)]
    return [Problem(picture.path, what) for what in found if what]


def _image_problem(picture: Picture) -> str | None:
    try:
        data = picture.path.read_bytes()
    except OSError as e:
        return f"cannot be read ({e.strerror})"
    if data[:2] == b"\xff\xd8" and b"\xff\xd9" not in data[-64:]:  # OpenCV fills what is cut off with gray
        return "is cut off: its JPEG has no end"
    as_stored = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(np.frombuffer(data, np.uint8), as_stored) if data else None
    if image is None:
        return "is no image that can be decoded"
    if image.shape[:2] != (picture.height, picture.width):
        return f"is {image.shape[1]} x {image.shape[0]}, annotated as {picture.width} x {picture.height}"
    return None


def _mask_problem(picture: Picture, instance: Instance) -> str | None:
    try:
        mask = masks.decode(instance.segmentation, picture.height, picture.width)
    except (ValueError, TypeError, KeyError) as e:
        return f"annotation {instance.id} has a mask that cannot be decoded ({e})"
    if mask.shape != (picture.height, picture.width):
        return f"annotation {instance.id} has a mask of {mask.shape[1]} x {mask.shape[0]} pixels"
    return None if mask.any() else f"annotation {instance.id} has an empty mask"


@entry
def main(argv: Sequence[str]) -> None:
    """Prints what each set holds, then what is wrong; exit code 1 if anything is."""
    p = argparse.ArgumentParser(prog="python -m trainer.coco.verify", description=__doc__)
    p.add_argument("folder", type=Path)
    p.add_argument("--threads", type=int, default=4)
    a = p.parse_args(argv)
    wrong = 0
    for data in find_sets(a.folder):
        print(counts(data))
        for problem in problems(data, threads=a.threads):
            wrong += 1
            if wrong <= SHOWN:
                print(f"  {problem}")
    if wrong:
        raise TrainerError(f"{a.folder}: {wrong} problems, the first {min(wrong, SHOWN)} above; copy these files again")
    print("everything is as annotated")


if __name__ == "__main__":
    sys.exit(main())

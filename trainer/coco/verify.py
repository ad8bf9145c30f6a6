"""Verification of every image and annotation of a COCO folder: `python -m trainer.coco.verify DIR`."""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from trainer.coco import masks
from trainer.coco.annotations import CATEGORY, IMAGE, AnnotatedImage, CocoSet, Instance, read_annotations
from trainer.coco.categories import check_categories
from trainer.coco.losses import add_share_flag, check_share, losses
from trainer.common.data import pictures
from trainer.common.data.jpeg import Unusable
from trainer.common.files.commandline import TrainerParser
from trainer.common.files.errors import ConfigError, TrainerError, entry
from trainer.common.files.plural import counted
from trainer.common.files.progress_lines import ProgressLines

SHOWN = 20
"""Problems printed one by one; the rest is counted."""


@dataclass(frozen=True)
class FileProblem:
    """Problem of one file."""

    file: Path
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


def find_sets(folder: Path, *, with_masks: bool = True) -> list[CocoSet]:
    """Return the sets of a folder in COCO's layout.

    Args:
        with_masks: leave out objects without a mask. Otherwise a box is enough.

    Raises:
        ConfigError: the folder has no annotation file.
    """
    files = sorted((folder / "annotations").glob("instances_*.json"))
    if not files:
        raise ConfigError(f"{folder} is not in COCO's layout: annotations/instances_*.json is missing")
    places = {f: folder / f.stem.removeprefix("instances_") for f in files}
    return [read_annotations(f, place, with_masks=with_masks) for f, place in places.items()]


def problems(data: CocoSet, *, threads: int = 4) -> Iterator[FileProblem]:
    """Yield everything wrong with a set.

    These are images that are missing, damaged or of another size, files that no annotation mentions, duplicates,
    annotations with impossible values, and empty masks.
    """
    with ThreadPoolExecutor(threads) as pool:
        progress = ProgressLines(counted(len(data.pictures), "image"), sys.stderr)
        for found in pool.map(_picture_problems, data.pictures):
            yield from found
            progress.add()
    folders = {p.path.parent for p in data.pictures}
    known = {p.path for p in data.pictures}
    for folder in sorted(folders):
        for extra in sorted(set(folder.glob("*.jpg")) - known):
            yield FileProblem(extra, f"is not mentioned in {data.file.name}")
    for what in data.damaged:
        yield FileProblem(data.file, what)
    yield from _twice(data)
    for what in (IMAGE, CATEGORY):
        if data.odd[what]:
            yield FileProblem(data.file, f"{data.odd[what]} times: {what}")


def _twice(data: CocoSet) -> Iterator[FileProblem]:
    """Yield a problem for each file that two images of the set name: each has only part of the file's objects."""
    first: dict[Path, int] = {}
    for picture in data.pictures:
        if first.setdefault(picture.path, picture.id) != picture.id:
            yield FileProblem(picture.path, f"is both image {first[picture.path]} and image {picture.id}")


def counts(data: CocoSet) -> str:
    """Return one line that counts a set's content, including oddities that do not disturb training."""
    objects = sum(len(p.objects) for p in data.pictures)
    crowds = sum(len(p.instances) - len(p.objects) for p in data.pictures)
    empty = sum(not p.objects for p in data.pictures)
    odd = "".join(f"; {n} x {what}" for what, n in sorted(data.odd.items()) if n)
    return (
        f"{data.file.stem.removeprefix('instances_')}: {counted(len(data.pictures), 'image')} ({empty} without "
        "objects), "
        f"{counted(objects, 'object')} and {counted(crowds, 'crowd region')} of {len(data.category_ids)} "
        f"categories{odd}"
    )


def _picture_problems(picture: AnnotatedImage) -> list[FileProblem]:
    found = [_image_problem(picture), *(_mask_problem(picture, i) for i in picture.instances)]
    return [FileProblem(picture.path, what) for what in found if what]


def _image_problem(picture: AnnotatedImage) -> str | None:
    try:
        height, width = pictures.check(pictures.read(picture.path))
    except OSError as e:
        return f"cannot be read ({e.strerror})"
    except Unusable as e:
        return f"is no image that can be used: {e}"
    if (height, width) != (picture.height, picture.width):
        return f"is {width} x {height}, annotated as {picture.width} x {picture.height}"
    return None


def _mask_problem(picture: AnnotatedImage, instance: Instance) -> str | None:
    if instance.segmentation == []:  # kept only if masks are not needed
        return None
    is_empty = not masks.decode(instance.segmentation, picture.height, picture.width).any()
    return f"annotation {instance.id} has an empty mask" if is_empty else None


@entry
def main(argv: Sequence[str]) -> None:
    """Print the counts of each set, then its problems. Raises TrainerError, exit code 1, if there are any."""
    p = TrainerParser(prog="python -m trainer.coco.verify", description="Looks at every image and every annotation.")
    p.add_argument("folder", type=Path, help="in COCO's layout")
    p.add_argument("--threads", type=int, default=4, help="that decode (default 4)")
    p.add_argument(
        "--boxes-only", action="store_true", help="objects need no mask: for a training with MODE_MASK=False"
    )
    add_share_flag(p)
    a = p.parse_args(argv)
    if a.threads < 1:
        raise ConfigError(f"--threads is {a.threads}, but must be at least 1")
    wrong, sets = 0, find_sets(a.folder, with_masks=not a.boxes_only)
    lost = {data.file: losses(data) for data in sets}
    for data in sets:
        print(counts(data))
        for loss in lost[data.file]:
            print(f"  {loss}")
        for problem in problems(data, threads=a.threads):
            wrong += 1
            if wrong <= SHOWN:
                print(f"  {problem}")
    if wrong:
        raise TrainerError(
            f"{a.folder}: {counted(wrong, 'problem')}, the first {min(wrong, SHOWN)} above; copy these files again"
        )
    check_categories(sets)
    for data in sets:
        check_share(data, lost[data.file], a.most_left_out)
    print("everything is as annotated" + (", but for what is left out" if any(lost.values()) else ""))


if __name__ == "__main__":
    sys.exit(main())

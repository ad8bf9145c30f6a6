"""Report of the objects that a training leaves out or that contradict themselves: number, images and reason."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.coco.annotations import AREA, CATEGORY, IMAGE, MASK, POLYGON_LOST, CocoSet, Instance
from trainer.common.files.errors import ConfigError
from trainer.common.files.plural import counted

MOST_LEFT_OUT = 0.01
"""Share of a set's objects that may be left out, unless the operator gives another."""
LEAST_FIT = 0.5
"""Minimum intersection over union of an annotated box and the box around its polygons. Below it they are two boxes."""
REASONS = {
    MASK: "have no mask",
    AREA: "have a box without area",
    IMAGE: "are on an unknown image",
    CATEGORY: "are of an unknown category",
    POLYGON_LOST: "lose polygons with fewer than three corners",
}
NO_FIT = "have a box that does not fit their polygons"


@dataclass(frozen=True)
class Loss:
    """Objects that are left out of a set for one reason."""

    why: str
    objects: int
    images: int

    def __str__(self) -> str:
        verb, _, rest = self.why.partition(" ")
        verb = {"have": "has", "are": "is", "lose": "loses"}[verb] if self.objects == 1 else verb
        return f"{counted(self.objects, 'object')} on {counted(self.images, 'image')} {verb} {rest}"


def losses(data: CocoSet) -> list[Loss]:
    """Return the objects that each rule leaves out, and those whose box and polygons contradict each other."""
    found = [Loss(why, data.odd[rule], len(data.odd_images.get(rule, ()))) for rule, why in REASONS.items()]
    unfit = [sum(not fits(i) for i in picture.instances) for picture in data.pictures]
    return [loss for loss in [*found, Loss(NO_FIT, sum(unfit), sum(n > 0 for n in unfit))] if loss.objects]


def fits(instance: Instance) -> bool:
    """Return True unless the annotated box and the box around the polygons are clearly two different boxes."""
    if not isinstance(instance.segmentation, list) or not instance.segmentation:
        return True
    polygons = instance.segmentation
    xs = [edge(p[0::2]) for edge in (min, max) for p in polygons]
    ys = [edge(p[1::2]) for edge in (min, max) for p in polygons]
    x1, y1, x2, y2 = instance.box
    left, top, right, bottom = min(xs), min(ys), max(xs), max(ys)
    shared = max(0.0, min(x2, right) - max(x1, left)) * max(0.0, min(y2, bottom) - max(y1, top))
    both = (x2 - x1) * (y2 - y1) + (right - left) * (bottom - top) - shared
    # Boxes smaller than 4 pixels differ by rounding: a line has no area of its own.
    return shared >= LEAST_FIT * both or max(x2 - x1, y2 - y1, right - left, bottom - top) < 4


def add_share_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag that sets the share of objects that may be left out."""
    parser.add_argument(
        "--most-left-out",
        type=share,
        default=MOST_LEFT_OUT,
        metavar="SHARE",
        help=f"of a set's objects that may be left out, from 0 to 1 (default {MOST_LEFT_OUT})",
    )


def share(text: str) -> float:
    """Parse a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share like 0.01") from e
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share: give a number from 0 to 1")
    return value


def check_share(data: CocoSet, found: Sequence[Loss], most: float) -> None:
    """Raise ConfigError if more than this share of the set's objects is left out.

    Raises:
        ConfigError: the message counts the objects and images per reason.
    """
    total = data.annotated
    lost = sum(loss.objects for loss in found)
    if lost <= most * total:
        return
    allowed = min(1.0, math.ceil(100 * lost / max(total, 1)) / 100)
    remedy = "train with MODE_MASK=False, " if any(loss.why == REASONS[MASK] for loss in found) else ""
    raise ConfigError(
        f"{data.file}: " + ", ".join(map(str, found)) + f", of {total} in all: more than a share of {most:g}. "
        f"Annotate them, {remedy}or allow more with --most-left-out {allowed:g}"
    )

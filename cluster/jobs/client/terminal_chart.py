"""Line chart drawn with Braille characters, each a grid of 2 by 4 dots, or with plain characters."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row and column within a character; ISO 11548-1
_BRAILLE = 0x2800


@dataclass(frozen=True)
class ChartPoint:
    """Value at a step."""

    step: float
    value: float


def drawn(points: Sequence[ChartPoint], columns: int, rows: int, *, plain: bool = False) -> list[str]:
    """Return the lines of a chart of these points, the oldest first. plain: draw with `*` only.

    If all values are equal, the curve runs through the middle.
    """
    dots_x, dots_y = (columns, rows) if plain else (2 * columns, 4 * rows)
    signs = [[0] * columns for _ in range(rows)]
    for x, y in _pixels(points, dots_x, dots_y):
        if plain:
            signs[y][x] = 1
        else:
            signs[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    mark = (lambda dots: "*" if dots else " ") if plain else (lambda dots: chr(_BRAILLE | dots) if dots else " ")
    return ["".join(mark(dots) for dots in row) for row in signs]


def _pixels(points: Sequence[ChartPoint], width: int, height: int) -> set[tuple[int, int]]:
    """Return the dots of the curve, with the gaps between neighbouring points filled."""
    if not points:
        return set()
    first, last = points[0].step, points[-1].step
    low, high = min(p.value for p in points), max(p.value for p in points)

    def place(p: ChartPoint) -> tuple[int, int]:
        x = (p.step - first) / (last - first) if last > first else 0.0
        y = (p.value - low) / (high - low) if high > low else 0.5
        return round(x * (width - 1)), round((1 - y) * (height - 1))

    found = {place(points[0])}
    for one, next_one in itertools.pairwise(points):
        (x0, y0), (x1, y1) = place(one), place(next_one)
        count = max(abs(x1 - x0), abs(y1 - y0), 1)
        found |= {(round(x0 + (x1 - x0) * n / count), round(y0 + (y1 - y0) * n / count)) for n in range(count + 1)}
    return found

"""Curves as SVG: a line of means in a band from least to largest, attempts as bands behind, axes with numbers.

Drawings lie in a plot of SCALE by SCALE units, to which `data-` attributes give the values. The page's script can zoom
and read it without a second copy of the numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.jobs.curves.curves import Curve, StepSummary
from cluster.report.markup import Markup, joined, table, tag
from cluster.terminal import counted

SCALE = 10_000
_LEFT, _TOP, _WIDTH, _HEIGHT = 62, 8, 646, 190  # of the plot within the picture, which is 720 wide
_ROWS = 16  # about so many rows per curve in the table of numbers


@dataclass(frozen=True, kw_only=True)
class Line:
    """Curve with its label on this chart."""

    curve: Curve
    label: str
    dots: bool = False  # draw dots, for sparse values


@dataclass(frozen=True, kw_only=True)
class Band:
    """Attempt on the axis of steps."""

    number: int
    first: int
    last: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Range:
    """Value range of an axis."""

    low: float
    high: float

    def place(self, value: float) -> int:
        """Return the position of a value, from 0 to SCALE."""
        return round((value - self.low) / (self.high - self.low) * SCALE)


def figure(title: str, lines: Sequence[Line], bands: Sequence[Band], steps: Range) -> Markup:
    """Return a chart with its caption, its keys and a table of the same numbers."""
    values = _values(lines)
    words = f"{title}. " + " ".join(described(line) for line in lines)
    picture = tag(
        "svg",
        _bands(bands, steps),
        _x_axis(steps),
        _y_axis(values),
        _area("plot", *(_line(line, number, steps, values) for number, line in enumerate(lines, start=1))),
        tag("line", class_="cursor", x1=_LEFT, x2=_LEFT, y1=_TOP, y2=_TOP + _HEIGHT, visibility="hidden"),
        viewBox="0 0 720 230",
        role="img",
        aria_label=words,
        tabindex="0",
        data_x0=steps.low,
        data_x1=steps.high,
        data_y0=values.low,
        data_y1=values.high,
    )
    keys = tag("ul", *(_key(line, number) for number, line in enumerate(lines, start=1)), class_="keys")
    read = tag("output", class_="readout", aria_live="polite")
    return tag("figure", tag("figcaption", title), keys, picture, read, _numbers(title, lines), class_="chart")


def described(line: Line) -> str:
    """Describe a curve in words."""
    c = line.curve
    if len(c.buckets) == 1 and c.newest.count == 1:
        return f"{line.label}: {number(c.newest.mean)} at step {c.newest.last:,}."
    return (
        f"{line.label}: {number(c.buckets[0].mean)} at step {c.buckets[0].first:,}, {number(c.newest.mean)} at step "
        f"{c.newest.last:,}, between {number(c.lowest.least)} and {number(c.highest.largest)}."
    )


def number(value: float) -> str:
    """Format a value with four significant digits."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        rounded = float(f"{value:.4g}")
        return f"{rounded:,.0f}" if rounded == int(rounded) else f"{rounded:,}"
    return f"{value:.3e}"


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers between two values, at most `most`: apart by 1, 2 or 5 times a power of ten."""
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999999)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [round((first + n) * step, 12) + 0.0 for n in range(max(0, count))]


def steps_of(lines: Sequence[Line]) -> Range:
    """Return the range from the first step of all curves to the last."""
    low = min(line.curve.buckets[0].first for line in lines)
    high = max(line.curve.newest.last for line in lines)
    return Range(low=low, high=high if high > low else low + 1)


def _values(lines: Sequence[Line]) -> Range:
    low = min(line.curve.lowest.least for line in lines)
    high = max(line.curve.highest.largest for line in lines)
    if low > 0 and low < 0.4 * high:
        low = 0.0
    if high <= low:
        return Range(low=low - (abs(low) or 1.0) / 2, high=low + (abs(low) or 1.0) / 2)
    return Range(low=low, high=high)


def _line(line: Line, number_: int, steps: Range, values: Range) -> Markup:
    def x(bucket: StepSummary) -> int:
        return steps.place((bucket.first + bucket.last) / 2)

    def y(value: float) -> int:
        return SCALE - values.place(value)

    buckets, own = line.curve.buckets, f"c{number_}"
    if line.dots or len(buckets) == 1:
        path = "".join(f"M{x(b)} {y(b.mean)}h0" for b in buckets)
        return tag("path", class_=f"dots {own}", d=path)
    mean = "M" + " ".join(f"{x(b)} {y(b.mean)}" for b in buckets)
    drawn = tag("path", class_=f"mean {own}", d=mean)
    if line.curve.width == 1:
        return drawn
    upper = [f"{x(b)} {y(b.largest)}" for b in buckets]
    lower = [f"{x(b)} {y(b.least)}" for b in reversed(buckets)]
    return joined(tag("path", class_=f"range {own}", d=f"M{' '.join(upper + lower)}Z"), drawn)


def _bands(bands: Sequence[Band], steps: Range) -> Markup:
    """Draw a band per attempt with its description. The style sheet distinguishes odd and even ones."""
    drawn = []
    for band in bands if len(bands) > 1 else ():
        left, right = (min(max(steps.place(s), 0), SCALE) for s in (band.first, band.last))
        shape = tag("rect", x=left, y=0, width=max(right - left, 20), height=SCALE)
        own = f"band b{band.number % 2}"
        drawn.append(tag("g", tag("title", band.text), shape, class_=own))
    return _area("bands", *drawn)


def _area(name: str, *drawn: Markup) -> Markup:
    """Return the area between the axes, in coordinates of 0 to SCALE."""
    return tag(
        "svg",
        *drawn,
        class_=name,
        x=_LEFT,
        y=_TOP,
        width=_WIDTH,
        height=_HEIGHT,
        viewBox=f"0 0 {SCALE} {SCALE}",
        preserveAspectRatio="none",
    )


def _x_axis(steps: Range) -> Markup:
    marks = []
    for value in ticks(steps.low, steps.high, 6):
        at = round(_LEFT + steps.place(value) / SCALE * _WIDTH, 1)
        marks.append(tag("text", f"{value:,.0f}", x=at, y=_TOP + _HEIGHT + 16, text_anchor="middle"))
    name = tag("text", "step", x=_LEFT + _WIDTH, y=_TOP + _HEIGHT + 30, text_anchor="end")
    base = tag("line", x1=_LEFT, x2=_LEFT + _WIDTH, y1=_TOP + _HEIGHT, y2=_TOP + _HEIGHT)
    return joined(tag("g", *marks, class_="x"), tag("g", base, name, class_="axis"))


def _y_axis(values: Range) -> Markup:
    marks = []
    for value in ticks(values.low, values.high, 5):
        at = round(_TOP + _HEIGHT - values.place(value) / SCALE * _HEIGHT, 1)
        marks.append(tag("line", x1=_LEFT, x2=_LEFT + _WIDTH, y1=at, y2=at))
        marks.append(tag("text", number(value), x=_LEFT - 6, y=at + 4, text_anchor="end"))
    return tag("g", *marks, class_="y")


def _key(line: Line, number_: int) -> Markup:
    sign = tag("span", "●" if line.dots else "━", class_=f"sign c{number_}", aria_hidden="true")
    return tag("li", sign, " ", line.label)


def _numbers(title: str, lines: Sequence[Line]) -> Markup:
    """Return some of the chart's buckets as a table."""
    rows: list[list[object]] = []
    for line in lines:
        buckets = line.curve.buckets
        every = max(1, math.ceil(len(buckets) / _ROWS))
        for b in sorted({*buckets[::every], buckets[-1]}, key=lambda b: b.first):
            at = f"{b.first:,}" if b.first == b.last else f"{b.first:,} to {b.last:,}"
            rows.append([line.label, at, number(b.mean), number(b.least), number(b.largest)])
    width = max(line.curve.width for line in lines)
    of = f", each of {counted(width, 'step')}" if width > 1 else ""
    shown = table(
        f"{title}: some of the values{of}",
        ["", "steps", "mean", "least", "largest"],
        rows,
        numbers=frozenset({1, 2, 3, 4}),
    )
    return tag("details", tag("summary", "Numbers"), shown)

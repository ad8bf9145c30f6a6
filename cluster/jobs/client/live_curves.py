"""Live charts of a job's metrics in the terminal, for `inv jobs.watch`."""

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.errors import ClusterError, ConfigError
from cluster.jobs.client.client import JobsClient
from cluster.jobs.client.show import colour_of, progress_of
from cluster.jobs.client.terminal_chart import ChartPoint, drawn
from cluster.jobs.record import JobView
from cluster.terminal import painted, terminal_size, unfiltered

if TYPE_CHECKING:
    from cluster.jobs.curves.curves import Curve
    from cluster.jobs.curves.metrics import Measured

_WANTED = (  # curves to draw if the job has them, in this order: kind of record, name
    ("train", "loss"), ("train", "total_loss"), ("eval", "top1"), ("eval", "box_ap"), ("train", "images_per_s"),
    ("train", "top1"), ("train", "lr"), ("train", "learning_rate"),
)  # fmt: skip
_MOST = 4  # curves at once
_SCALE = 11  # width of the labels beside a curve
_AWAY_S = 120.0  # limit on the wait for a master that does not answer
_LOOK_S = 0.2  # interval of checks of the terminal's size


def watch(jobs: JobsClient, which: str, *, once: bool, every_s: float) -> int:
    """Draw the job's charts until it has ended, or once. Return 1 if it ended badly, else 0.

    Ctrl-C ends the drawing, not the job. A master that does not answer is queried again for two minutes.
    """
    if every_s < 1:
        raise ConfigError(f"--watch is {every_s:g}, at least a second is wanted")
    screen, answered = _Screen(sys.stdout.isatty() and not once), time.monotonic()
    while True:
        try:
            view, measured = jobs.curves(which)
            which, answered = view.id, time.monotonic()  # `last` may mean another job later
        except ConfigError:
            raise
        except ClusterError as e:
            if once or time.monotonic() - answered > _AWAY_S:
                raise
            print(painted(f"{e}; it is asked again", "yellow", sys.stderr), file=sys.stderr)
        else:
            screen.show(functools.partial(picture, view, measured))
            if once or not view.state.is_going:
                return 1 if view.state.is_bad else 0
        screen.rest(every_s)


class _Screen:
    """Output of pictures: on a terminal each replaces the last one, elsewhere they follow one another."""

    def __init__(self, on_terminal: bool) -> None:
        self._on_terminal = on_terminal
        self._shown: Callable[[int, int], str] | None = None
        self._size = terminal_size((100, 40))

    def show(self, drawn: Callable[[int, int], str]) -> None:
        """Draw this picture and print it. drawn: returns it for a number of columns and rows."""
        self._shown, self._size = drawn, terminal_size((100, 40))
        text = drawn(*self._size)
        if self._on_terminal:
            screen = unfiltered(sys.stdout)
            screen.write("\x1b[H\x1b[2J")
            screen.flush()
        print(text, flush=True)

    def rest(self, seconds: float) -> None:
        """Wait so long. If the terminal is resized meanwhile, draw the picture again."""
        due = time.monotonic() + seconds
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(_LOOK_S, left))
            if self._on_terminal and self._shown and terminal_size((100, 40)) != self._size:
                self.show(self._shown)


def picture(view: JobView, measured: "Measured", columns: int, rows: int) -> str:
    """Return the job's status line and its charts, one below the other, in this many columns and rows."""
    found = [c for kind, name in _WANTED if (c := measured.curve(kind, name)) and c.buckets][:_MOST]
    found = found or [c for c in measured.curves if c.buckets][:_MOST]
    colour = colour_of(view)
    state = painted(view.state, colour) if colour else str(view.state)
    head = [f"{view.id}  {state}  {progress_of(view)}".rstrip()]
    head += [painted(f"warning: {text}", "yellow") for text in view.status.warnings]
    head += [view.status.cause] if view.status.cause else []
    if not found:
        return "\n".join([*head, "no numbers yet" if view.state.is_going else "it wrote no numbers"])
    each = max(2, (rows - len(head) - 2) // len(found) - 2)
    return "\n".join([*head, *(line for curve in found for line in chart(curve, columns, each))])


def chart(curve: "Curve", columns: int, rows: int) -> list[str]:
    """Return the lines of a chart: a title with the newest value and the steps, and the curve with its value range."""
    points = [ChartPoint((b.first + b.last) / 2, b.mean) for b in curve.buckets]
    low, high = min(p.value for p in points), max(p.value for p in points)
    beside = [f"{high:.5g}", *[""] * (rows - 2), f"{low:.5g}"][:rows]
    lines = drawn(points, max(1, columns - _SCALE - 2), rows, plain=not _has_braille())
    steps = f"steps {curve.buckets[0].first:,} to {curve.buckets[-1].last:,}"
    title = f"{curve.kind} {curve.name}: {curve.newest.mean:.5g}"
    return [
        f"{title}  ({steps})",
        *(f"{label:>{_SCALE}} │{painted(line, 'green')}".rstrip() for label, line in zip(beside, lines, strict=True)),
        "",
    ]


def _has_braille() -> bool:
    """Return True if the terminal can show Braille characters."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return encoding == "utf8" and os.environ.get("TERM") != "linux"

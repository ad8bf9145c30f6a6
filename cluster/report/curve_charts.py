"""Charts of a job's curves: one for each kind of value, attempts as bands behind them."""

from collections.abc import Sequence

from cluster.hostset import fold
from cluster.jobs.curves.metrics import Measured
from cluster.jobs.master.facts import JobFacts
from cluster.recovery.history import AttemptRecord
from cluster.report.chart import Band, Line, Range, figure, steps_of
from cluster.report.markup import Markup, joined, tag
from cluster.terminal import counted

CHARTS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    ("Loss", (("train", "loss", "training"), ("eval", "loss", "validation"))),
    (
        "Accuracy, %",
        (("train", "top1", "top-1, training batch"), ("eval", "top1", "top-1"), ("eval", "top5", "top-5")),
    ),
    ("Average precision", (("eval", "box_ap", "boxes"), ("eval", "mask_ap", "masks"))),
    ("Learning rate", (("train", "lr", "learning rate"),)),
    ("Images per second, all ranks", (("train", "images_per_s", "images/s"),)),
    (
        "Seconds per step, mean of the ranks",
        (
            ("train", "input_s", "waiting for input"),
            ("train", "compute_s", "computing"),
            ("train", "reduce_s", "until all gradients are reduced"),
        ),
    ),
)
"""Title of each chart, and its curves: kind of record, name in it, label."""
_PLACED = {(kind, name) for _, curves in CHARTS for kind, name, _ in curves}
_NOT_SHOWN = {"epoch", "ranks", "input_wait", "total_loss", "loss_scale"}
_MOST_FURTHER = 4  # most charts of values without a predefined title


def bands_of(history: Sequence[AttemptRecord]) -> list[Band]:
    """Return the attempts on the axis of steps. Steps that were done twice belong to the later attempt."""
    known = [a for a in history if a.first_step is not None and a.step is not None]
    found = []
    for place, a in enumerate(known):
        following = known[place + 1].first_step if place + 1 < len(known) else None
        assert a.first_step is not None and a.step is not None
        last = min(a.step, following) if following is not None else a.step
        if last >= a.first_step:
            found.append(
                Band(
                    number=a.number,
                    first=a.first_step,
                    last=last,
                    text=f"attempt {a.number}: steps {a.first_step:,} to {a.step:,} on {fold(a.hosts)}",
                )
            )
    return found


def charts(found: JobFacts) -> Markup | None:
    """Return charts of all curves, over one axis of steps; None if there are none."""
    bands = bands_of(found.view.attempts)
    drawn = [(title, lines_of(found.measured, curves)) for title, curves in (*CHARTS, *_further(found.measured))]
    drawn = [(title, lines) for title, lines in drawn if lines]
    if not drawn:
        return None
    steps = steps_of([line for _, lines in drawn for line in lines])
    return joined(*(figure(title, lines, bands, steps) for title, lines in drawn), *_how_reduced(found, steps))


def lines_of(measured: Measured, curves: Sequence[tuple[str, str, str]]) -> list[Line]:
    """Return those of these curves that have values."""
    return [
        Line(curve=curve, label=label, dots=kind == "eval" and len(curve.buckets) < 30)
        for kind, name, label in curves
        if (curve := measured.curve(kind, name))
    ]


def _further(measured: Measured) -> list[tuple[str, tuple[tuple[str, str, str], ...]]]:
    """Return charts for other values of an operator's own program.

    Those that matter of our trainers are all in CHARTS.
    """
    if any((c.kind, c.name) in _PLACED and c.name != "loss" for c in measured.curves):
        return []
    others = [c for c in measured.curves if (c.kind, c.name) not in _PLACED and c.name not in _NOT_SHOWN]
    return [(f"{c.name} ({c.kind})", ((c.kind, c.name, c.name),)) for c in others[:_MOST_FURTHER]]


def _how_reduced(found: JobFacts, steps: Range) -> list[Markup]:
    measured = found.measured
    width = max(c.width for c in measured.curves)
    text = f"{counted(measured.records, 'record')} of steps {steps.low:,.0f} to {steps.high:,.0f}."
    if width > 1:
        text += (
            f" Each point stands for up to {counted(width, 'step')}: the line is the mean of the values in them, "
            "the band behind it goes from the least to the largest."
        )
    if measured.not_numbers:
        text += f" {counted(measured.not_numbers, 'value')} that were infinite, or no numbers, are not drawn."
    if measured.damaged:
        text += f" {counted(measured.damaged, 'damaged line')} passed over."
    return [tag("p", text, class_="note")]

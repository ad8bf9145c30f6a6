"""Comparison of several jobs: their different settings, their outcomes, and their curves over each other."""

from collections.abc import Sequence
from typing import Any

from cluster.errors import ConfigError
from cluster.jobs.master.facts import JobFacts
from cluster.report.chart import Line, figure, steps_of
from cluster.report.markup import Markup, joined, table, tag
from cluster.report.page import document
from cluster.report.sections import outcome
from cluster.report.settings import Row, outcomes, settings
from cluster.terminal import counted, terminal_size

_CHARTS = (
    ("Loss, training", "train", "loss"),
    ("Loss, validation", "eval", "loss"),
    ("Top-1 of the validation set, %", "eval", "top1"),
    ("Average precision of boxes", "eval", "box_ap"),
    ("Average precision of masks", "eval", "mask_ap"),
    ("Learning rate", "train", "lr"),
    ("Images per second, all ranks", "train", "images_per_s"),
)
_NAME = 24  # characters of a setting's name in the terminal
_LEAST = 16  # fewest characters of a value


def require_different(ids: Sequence[str]) -> None:
    """Raise ConfigError if a job is named twice."""
    if twice := [one for one in ids if ids.count(one) > 1]:
        raise ConfigError(f"{twice[0]} is named twice: give another job to compare it with")


def record(found: Sequence[JobFacts]) -> dict[str, Any]:
    """Return differences and outcomes as JSON data: for each name a list with a value per job."""
    return {
        "jobs": [one.view.id for one in found],
        "outcomes": {name: list(values) for name, values in outcomes(found)},
        "settings": {name: list(values) for name, values in settings(found)},
    }


def differences_text(found: Sequence[JobFacts], width: int | None = None) -> str:
    """Format differences and outcomes for a terminal: a column per job."""
    width = width or terminal_size().columns
    most = max(_LEAST, (width - _NAME) // len(found) - 2)
    rows: list[Row] = [("", tuple(_short([one.view.id for one in found]))), *outcomes(found), *settings(found)]

    def cell(value: str) -> str:
        value = "".join(c for c in value if c.isprintable())
        return (value if len(value) <= most else f"{value[: most - 1]}…").ljust(most)

    return "\n".join("  ".join([name[:_NAME].ljust(_NAME), *map(cell, values)]).rstrip() for name, values in rows)


def compared(found: Sequence[JobFacts]) -> str:
    """Return the page of the comparison."""
    ids = _short([one.view.id for one in found])
    titles = ["", *ids]
    lead = joined(
        *(tag("p", tag("strong", one.view.id), ": ", outcome(one.view), " ", one.view.status.cause) for one in found)
    )
    parts = [("outcomes", "What came of them", table("Outcome of each job", titles, _cells(outcomes(found))))]
    differ = settings(found)
    said = table("Settings that differ", titles, _cells(differ)) if differ else tag("p", "They were asked for alike.")
    parts.append(("settings", "Settings that differ", said))
    if curves := _charts(found, ids):
        parts.append(("curves", "Curves", curves))
    return document(counted(len(found), "job") + " compared", lead, parts, f"As they were at {found[0].made}.")


def _charts(found: Sequence[JobFacts], ids: Sequence[str]) -> Markup | None:
    drawn = []
    for title, kind, name in _CHARTS:
        curves = [(label, one.measured.curve(kind, name)) for label, one in zip(ids, found, strict=True)]
        lines = [Line(curve=curve, label=label) for label, curve in curves if curve]
        if lines:
            drawn.append((title, lines))
    if not drawn:
        return None
    steps = steps_of([line for _, lines in drawn for line in lines])
    return joined(*(figure(title, lines, [], steps) for title, lines in drawn))


def _cells(rows: Sequence[Row]) -> list[list[str]]:
    return [[name, *values] for name, values in rows]


def _short(ids: Sequence[str]) -> list[str]:
    """Return the ids without the leading parts that all have in common."""
    parts = [one.split("-") for one in ids]
    while len({own[0] for own in parts}) == 1 and all(len(own) > 1 for own in parts):
        parts = [own[1:] for own in parts]
    return ["-".join(own) for own in parts]

"""Table of jobs, one line per job, fitted to the terminal's width. Columns without a value are left out."""

import datetime
import os
import sys
import time
from collections.abc import Sequence

from cluster.jobs.client.show import colour_of, duration, epoch_of, hosts_of, score_of, trains
from cluster.jobs.record import JobView
from cluster.terminal import Colour, painted, terminal_size

_TITLES = (
    "job", "state", "attempt", "ranks", "began", "duration", "step", "epoch", "images/s", "left", "score", "USD",
    "owner", "hosts",
)  # fmt: skip
_TO_THE_LEFT = frozenset(("job", "state", "began", "owner", "hosts"))
# Columns left out first on a narrow terminal. `jobs.show` and --json have all of them.
_GOES_FIRST = ("epoch", "ranks", "owner", "score", "USD", "attempt", "images/s", "left", "step", "began")
_LEAST_NOTES = 20  # least width of the last column
_QUIET_S = 120.0  # without metrics, after which a running training is reported as quiet


def table(jobs: Sequence[JobView], everything: bool, columns: int | None = None) -> str:
    """Return a table with a line per job, oldest first: its start, duration, progress and speed.

    everything: the list includes ended jobs. It only changes the text for an empty list.
    columns: width of the terminal. Lines are cut to it and columns are left out. None: nothing is cut.
    """
    if not jobs:
        return "no jobs" if everything else "no job is running; ended ones: inv jobs.list --all"
    rows = [_row(job) for job in jobs]
    shown = [n for n, title in enumerate(_TITLES) if n < 2 or title == "hosts" or any(row[n] for row in rows)]
    widths = [max(len(row[n]) for row in (_TITLES, *rows)) for n in range(len(_TITLES))]
    shown = _fitting(shown, widths, columns)

    def line(cells: Sequence[str], colour: Colour | None = None) -> str:
        texts = [cells[n].ljust(widths[n]) if _TITLES[n] in _TO_THE_LEFT else cells[n].rjust(widths[n]) for n in shown]
        whole = "  ".join(texts).rstrip()
        if columns and len(whole) > columns:
            whole = whole[: columns - 1] + "…"
        if not colour:
            return whole
        start = widths[0] + 2
        return whole[:start] + painted(whole[start : start + widths[1]], colour) + whole[start + widths[1] :]

    return "\n".join([line(_TITLES), *(line(row, colour_of(job)) for row, job in zip(rows, jobs, strict=True))])


def columns_of_output() -> int | None:
    """Return the width for a table: the terminal's, else $COLUMNS, else None (the output is a file or a pipe)."""
    if sys.stdout and sys.stdout.isatty():
        return terminal_size().columns
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if asked.isascii() and asked.isdigit() and int(asked) > 0 else None


def _fitting(shown: Sequence[int], widths: Sequence[int], columns: int | None) -> list[int]:
    """Return the columns that fit the width, without the least important ones."""
    kept = list(shown)
    notes = min(_LEAST_NOTES, widths[-1])
    for title in _GOES_FIRST if columns else ():
        if sum(widths[n] + 2 for n in kept[:-1]) + notes <= (columns or 0):
            break
        kept = [n for n in kept if _TITLES[n] != title]
    return kept


def _row(job: JobView) -> tuple[str, ...]:
    step, epoch, speed, left, score = "", "", "", "", ""
    if p := job.progress:
        epoch, score = epoch_of(p), score_of(p)
        step = f"{p.step}/{job.job.plan.steps}" if job.job.plan.steps else str(p.step)
        if trains(job):
            speed = f"{p.images_per_s:.1f}" if p.images_per_s is not None else ""
            left = duration(p.left_s) if p.left_s is not None else ""
    quiet = p.quiet_s if p and trains(job) else 0.0
    notes = [
        *([hosts_of(job)] if job.job.hosts else []),
        *([str(job.queue)] if job.queue else []),
        *([job.status.cause] if job.status.cause else []),
        *([f"no step for {duration(quiet)}"] if quiet > _QUIET_S else []),
        *(f"warning: {text}" for text in job.status.warnings),
        *([f"results {job.results}"] if job.results else []),
    ]
    lasted = duration(job.age_s) if job.status.started else ""
    return (
        job.id, str(job.state), str(job.status.attempt), str(job.job.np), _date(job), lasted, step, epoch, speed, left,
        score, "" if job.usd is None else f"{job.usd:,.2f}", job.owner, "   ".join(notes).replace("\n", " "),
    )  # fmt: skip


def _date(job: JobView) -> str:
    """Return when the job's first attempt began, or else when it was submitted, in this machine's local time."""
    try:
        at = datetime.datetime.fromtimestamp(job.began) if job.began else None
        at = at or datetime.datetime.fromisoformat(job.job.created).astimezone()
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{at:%m-%d %H:%M}" if at.year == time.localtime().tm_year else f"{at:%Y-%m-%d}"

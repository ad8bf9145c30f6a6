"""Time of a job by attempt and purpose: bars and a table."""

import dataclasses
from collections.abc import Sequence

from cluster.hostset import fold
from cluster.jobs.client.show import duration
from cluster.jobs.record import JobView
from cluster.recovery.goodput import TimeSplit
from cluster.recovery.history import AttemptRecord
from cluster.report.markup import Markup, joined, table, tag

SPENT = {
    "useful_s": "useful",
    "again_s": "done again",
    "detecting_s": "detecting",
    "clearing_s": "clearing",
    "waiting_s": "waiting",
    "gate_s": "gate",
    "start_s": "start",
    "unknown_s": "not known",
}
"""What time goes to, in the words of docs/jobs.md."""
MOST = 100  # most attempts that are shown


def attempts(job: JobView) -> Markup | None:
    """Return the bars and the table; None if the job has no attempts or no account."""
    if not job.attempts or job.account is None:
        return None
    pairs = list(zip(job.attempts, job.account.attempts, strict=True))
    left_out = max(0, len(pairs) - MOST)
    rows = [_attempt_row(a, spent, job) for a, spent in pairs[left_out:]]
    rows.append(["all", "", "", "", *_minutes(job.account.total)])
    caption = "Attempts, and minutes by what they went to"
    caption += f"; the first {left_out} are left out here and counted in the sum" if left_out else ""
    titles = ["attempt", "ranks", "steps", "how it ended", "minutes", *SPENT.values()]
    made = table(caption, titles, rows, numbers=frozenset(range(4, len(titles))))
    return joined(_time_bars(pairs[left_out:]), made)


def _attempt_row(a: AttemptRecord, spent: TimeSplit, job: JobView) -> list[object]:
    steps = f"{a.first_step:,} to {a.step:,}" if a.first_step is not None and a.step is not None else "none"
    how = a.text or (str(a.what) if a.what else "goes on" if job.state.is_going else "not known")
    return [f"{a.number}", f"{a.np} on {fold(a.hosts)}", steps, joined(how, _then(a)), *_minutes(spent)]


def _then(a: AttemptRecord) -> Markup | None:
    return tag("span", f" Then: {a.then}", class_="then") if a.then else None


def _minutes(spent: TimeSplit) -> list[object]:
    return [f"{seconds / 60:.1f}" for seconds in (spent.wall_s, *dataclasses.astuple(spent))]


def _time_bars(pairs: Sequence[tuple[AttemptRecord, TimeSplit]]) -> Markup:
    """Draw a bar per attempt, scaled to its duration and divided by how the time was used."""
    longest = max((spent.wall_s for _, spent in pairs), default=0.0) or 1.0
    bars = []
    for place, (a, spent) in enumerate(pairs):
        at, y = 0.0, 4 + 20 * place
        bars.append(tag("text", a.number, x=34, y=y + 12, text_anchor="end"))
        for name, seconds in dataclasses.asdict(spent).items():
            width = seconds / longest * 660
            if width > 0.2:
                shape = tag("rect", x=round(42 + at, 1), y=y, width=round(width, 1), height=14)
                bars.append(
                    tag("g", tag("title", f"{SPENT[name]}: {duration(seconds)}"), shape, class_=f"t-{name[:-2]}")
                )
            at += width
    keys = (
        tag("li", tag("span", "■", class_=f"sign t-{name[:-2]}", aria_hidden="true"), " ", word)
        for name, word in SPENT.items()
    )
    told = "The time of each attempt by what it went to; the table below has the numbers."
    picture = tag("svg", *bars, viewBox=f"0 0 720 {8 + 20 * len(pairs)}", role="img", aria_label=told)
    return tag(
        "figure",
        tag("figcaption", "Time of each attempt; the longest bar is ", duration(longest)),
        tag("ul", *keys, class_="keys"),
        picture,
    )

"""Section on stragglers: a map of ranks by time, and a table."""

import datetime

from cluster.jobs.client.show import duration
from cluster.jobs.curves.rank_map import SLOW, RankMap, stragglers
from cluster.jobs.master.facts import JobFacts
from cluster.jobs.master.host_facts import rank_hosts
from cluster.jobs.record import JobView
from cluster.report import heat
from cluster.report.attempts import MOST
from cluster.report.markup import Markup, joined, table, tag
from cluster.terminal import counted


def rank_map(found: JobFacts) -> Markup:
    """Return the map and table of ranks that the others waited for, or a note if the program reports no times."""
    ranks = found.measured.ranks
    if ranks is None:
        return tag("p", "This program tells nothing of the time that each rank takes by itself.", class_="note")
    hosts = _host_of_ranks(found.view)
    slow = stragglers(ranks)
    rows: list[list[object]] = [
        [
            str(s.rank),
            hosts.get(s.rank, ""),
            f"{s.mean:.2f}",
            f"{100 * s.slow:.0f} %",
            f"{s.worst:.2f}",
            f"{clock(s.worst_at)} UTC",
        ]
        for s in slow
    ]
    titles = ["rank", "host", "share, mean", "of the time slow", "worst", "at"]
    told = (
        table("Ranks that the others waited for", titles, rows, numbers=frozenset({2, 3, 4}))
        if rows
        else tag("p", f"No rank was slower than {SLOW:g} times the median.")
    )
    return joined(_map_figure(ranks, [s.rank for s in slow]), told)


def _map_figure(ranks: RankMap, slow: list[int]) -> Markup:
    end = ranks.start + ranks.columns * ranks.column_s
    words = (
        f"{counted(ranks.ranks, 'rank')} from {clock(ranks.start)} to {clock(end)} UTC, a column for each "
        f"{duration(ranks.column_s)}. "
        + (f"Slow at times: rank {', '.join(map(str, slow))}." if slow else "No rank stands out.")
    )
    height = min(512, max(ranks.ranks, min(18 * ranks.ranks, 144)))
    image = tag(
        "img",
        src=heat.picture(ranks),
        alt=words,
        class_="map",
        style=f"height:{height}px",
        data_start=ranks.start,
        data_column=ranks.column_s,
    )
    keys = (
        tag("li", tag("span", "■", class_="sign", style=f"color:{colour}", aria_hidden="true"), " ", meaning)
        for colour, meaning in heat.meanings()
    )
    return tag(
        "figure",
        tag("figcaption", "Each rank's own work per step (input and computing), in times the median of all ranks"),
        tag("ul", *keys, class_="keys"),
        tag("p", f"rank 0 above, rank {ranks.ranks - 1} below", class_="note") if ranks.ranks > 1 else None,
        image,
        tag("p", tag("span", clock(ranks.start)), tag("span", f"{clock(end)} UTC"), class_="ends"),
        tag("output", class_="readout", aria_live="polite"),
        tag("p", words, class_="note"),
    )


def _host_of_ranks(job: JobView) -> dict[int, str]:
    """Return each rank's hosts over all attempts."""
    found: dict[int, dict[str, None]] = {}
    for a in [a.number for a in job.attempts[-MOST:]] or [job.status.attempt]:
        for rank, host in rank_hosts(job, a).items():
            found.setdefault(rank, {})[host] = None
    return {rank: ", then ".join(hosts) for rank, hosts in found.items()}


def clock(at: float) -> str:
    """Format a time as date and time of day, UTC, to the minute."""
    try:
        return f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"

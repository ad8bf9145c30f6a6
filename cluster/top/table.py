"""Terminal view of a frame: a title, the jobs, and a line per host; outliers are marked, absent hosts grey."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from cluster import hostset
from cluster.printable import printable
from cluster.terminal import counted
from cluster.top.columns import Column, chosen, gpus, ranks
from cluster.top.snapshot import ClusterSnapshot, HostState, JobSeen, RankSnapshot

if TYPE_CHECKING:
    from rich.text import Text

KEYS = "q quit   sort: h host  o odd  c cpu  m memory  g gpu  n network  p ping  i img/s   r ranks   arrows scroll"
_NOTE = 24  # fewest characters for outliers, or for why a host is not seen
_MARK = "◀ "
_LAST = float("inf")


def _sum_of(name: str) -> Callable[[HostState], float]:
    return lambda h: sum(getattr(r, name) or 0.0 for r in ranks(h))


SORTS: dict[str, tuple[str, Callable[[HostState], float]]] = {
    "h": ("host", lambda h: h.host.rank),
    "o": ("odd", lambda h: -h.odd[0].distance if h.odd else _LAST),
    "c": ("cpu", lambda h: -h.rates.cpu if h.rates else _LAST),
    "m": ("memory", lambda h: -h.vitals.memory_used / h.vitals.memory_total if h.vitals else _LAST),
    "g": ("gpu", lambda h: -sum(g.use or 0.0 for g in gpus(h)) / len(gpus(h)) if gpus(h) else _LAST),
    "n": ("network", lambda h: -(h.rates.net_in + h.rates.net_out) if h.rates else _LAST),
    "p": ("ping", lambda h: -h.ping_s if h.ping_s is not None else _LAST),
    "i": ("img/s", lambda h: _sum_of("own_images_per_s")(h) if ranks(h) else _LAST),
}  # key -> name and sort value, smallest first


@dataclass(frozen=True, kw_only=True)
class View:
    """Display settings: sort order, rank lines and scroll position."""

    sort: str = "h"
    by_rank: bool = False  # show a line per rank, too
    offset: int = 0  # lines of the table that are scrolled out at the top


def lines(frame: ClusterSnapshot, view: View, width: int, height: int | None) -> list["Text"]:
    """Format the frame for this width and height; without a height, all of it."""
    head = [_title(frame, view), *(_job(job, frame.time) for job in frame.jobs)]
    if frame.jobs_trouble:
        head.append(_text(frame.jobs_trouble, "yellow"))
    address = min(max([4, *(len(h.host.address) for h in frame.hosts)]), max(4, width // 3))
    columns = chosen(frame.hosts, width - address - 1 - _NOTE)
    head.append(_text("HOST".ljust(address) + "".join(f" {c.title:>{c.width}}" for c in columns), "bold"))
    body = [line for h in in_order(frame.hosts, view) for line in _host(h, columns, address, by_rank=view.by_rank)]
    if height is not None:
        head = head[: max(2, height - 3)]
        room = max(1, height - len(head) - 2)
        first = min(view.offset, max(0, len(body) - room))
        hidden = len(body) - room
        shown = body[first : first + room]
        below = len(body) - first - len(shown)
        more = f"{first} above, {below} below   " if hidden > 0 else ""
        body = [*shown, *[_text("")] * (room - len(shown)), _text(""), _text(more + KEYS, "dim")]
    all_of_it = [line if line.plain.isprintable() else _text(printable(line.plain)) for line in (*head, *body)]
    for line in all_of_it:
        line.truncate(width)
    return all_of_it


def in_order(hosts: Sequence[HostState], view: View) -> list[HostState]:
    """Return the hosts in the view's order. Hosts that are not seen come last, except in the hostfile's order."""
    _, value = SORTS[view.sort]
    if view.sort == "h":
        return sorted(hosts, key=lambda h: h.host.rank)
    return sorted(hosts, key=lambda h: (not h.is_seen, value(h), h.host.rank))


def scrolled(view: View, by: int, frame: ClusterSnapshot) -> int:
    """Return the first line of the table after scrolling by this many lines."""
    length = len(frame.hosts) + (sum(len(ranks(h)) for h in frame.hosts) if view.by_rank else 0)
    return max(0, min(view.offset + by, length - 1))


def _text(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(text, style, no_wrap=True, end="")


def _title(frame: ClusterSnapshot, view: View) -> "Text":
    away = sum(not h.is_seen for h in frame.hosts)
    odd = sum(bool(h.odd) for h in frame.hosts)
    line = _text("")
    line.append(f"{frame.cluster}  ", "bold")
    line.append(f"{datetime.fromtimestamp(frame.time):%H:%M:%S}  {counted(len(frame.hosts), 'host')}")
    line.append(f", {away} not seen", "red" if away else "dim") if away else None
    line.append(f", {odd} odd", "yellow") if odd else None
    if view.sort != "h":
        line.append(f"   by {SORTS[view.sort][0]}", "dim")
    return line


def _job(job: JobSeen, now: float) -> "Text":
    line = _text("")
    line.append(job.id, "cyan")
    line.append(f"  {job.state}", "green" if job.state == "running" else "yellow")
    if job.attempt > 1:
        line.append(f", attempt {job.attempt}")
    line.append(f", {counted(job.np, 'rank')} on {counted(len(job.hosts), 'host')}" if job.hosts else "")
    if len(job.hosts) == 1 and (slots := job.slots.get(job.hosts[0])):
        line.append(f", slot {hostset.numbers(slots)}")
    if job.step is not None:
        line.append(f", step {job.step}" + (f" of {job.steps}" if job.steps else ""))
    if job.images_per_s is not None:
        line.append(f", {job.images_per_s:.1f} images/s", "bold")
    if job.cause:
        line.append(f": {job.cause}", "yellow")
    return line


def _host(seen: HostState, columns: Sequence[Column], address: int, *, by_rank: bool) -> list["Text"]:
    if not seen.is_seen:
        why = f"{seen.sight}: {seen.why}" if str(seen.sight) not in seen.why else seen.why
        return [_text(f"{seen.host.address[:address]:<{address}} {why}", "dim")]
    odd = {o.what for o in seen.odd}
    line = _text(f"{seen.host.address[:address]:<{address}}", "bold yellow" if odd else "")
    line.style = ""
    line.stylize("bold yellow" if odd else "", 0, address)
    for column in columns:
        is_odd = bool(odd & set(column.odd))
        line.append(f" {column.of_host(seen):>{column.width}}", "bold yellow" if is_odd else _style(column))
    if odd:
        line.append("  " + _MARK + "; ".join(o.text for o in seen.odd), "yellow")
    elif seen.vitals and seen.vitals.gpu_trouble:
        line.append("  " + seen.vitals.gpu_trouble, "red")
    below = [_rank(rank, seen, columns, address) for rank in ranks(seen)] if by_rank else []
    return [line, *below]


def _rank(rank: RankSnapshot, seen: HostState, columns: Sequence[Column], address: int) -> "Text":
    """Format a rank's line with the GPU at the rank's position among the job's ranks on this host."""
    own = sorted(r.rank for r in ranks(seen) if r.job == rank.job).index(rank.rank)
    found = gpus(seen)
    gpu = found[own] if own < len(found) else None
    line = _text(f"{'  rank ' + str(rank.rank):<{address}}", "dim")
    for column in columns:
        line.append(f" {column.of_rank(rank, gpu):>{column.width}}")
    return line


def _style(column: Column) -> str:
    return {"gpu": "green", "rank": "cyan"}.get(column.kind, "")

"""Outlier detection: hosts that differ from the others in a value that should be alike, and by how much.

Pure functions.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cluster.hosts import Host
from cluster.top.snapshot import GpuState, HostState, Odd

Value = Callable[[HostState], float | None]
Pick = Callable[[list[float]], float]
FEWEST = 3  # fewest values: of two, neither can be called the outlier
_SPREADS = 6.0  # multiple of the others' spread
_MAD = 1.4826  # factor from median deviation to standard deviation, for a normal distribution


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Value that hosts with the same work should have alike, and the difference that counts."""

    what: str  # name, as in the columns
    value: Value
    least: float  # smallest difference that matters
    share: float  # smallest difference that matters, as a share of the usual value
    shown: Callable[[float], str]
    is_of_job: bool = True  # compare only hosts of the same job
    side: int = 0  # 1: only larger values are outliers, -1: only smaller ones


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.{2 if seconds < 0.001 else 1 if seconds < 0.01 else 0}f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _gpu(value: Callable[[GpuState], float | None], pick: Pick) -> Value:
    def of_host(seen: HostState) -> float | None:
        told = [v for gpu in (seen.vitals.gpus if seen.vitals else ()) if (v := value(gpu)) is not None]
        return pick(told) if told else None

    return of_host


def _memory(seen: HostState) -> float | None:
    return seen.vitals.memory_used / seen.vitals.memory_total if seen.vitals else None


def _ranks(name: str, pick: Pick) -> Value:
    def of_host(seen: HostState) -> float | None:
        ranks = seen.vitals.ranks if seen.vitals else ()
        told = [float(v) for rank in ranks if (v := getattr(rank, name)) is not None]
        return pick(told) if told else None

    return of_host


MEASURES = (
    Measure(what="ping", value=lambda h: h.ping_s, least=0.002, share=1.0, shown=_ms, is_of_job=False, side=1),
    Measure(what="answer", value=lambda h: h.answer_s, least=0.25, share=2.0, shown=_ms, is_of_job=False, side=1),
    Measure(what="gpu", value=_gpu(lambda g: g.use, min), least=0.25, share=0.25, shown=_percent),
    Measure(
        what="heat", value=_gpu(lambda g: g.celsius, max), least=10, share=0.1, shown=lambda v: f"{v:.0f} °C", side=1
    ),
    Measure(what="watts", value=_gpu(lambda g: g.watts, min), least=50, share=0.25, shown=lambda v: f"{v:.0f} W"),
    Measure(what="cpu", value=lambda h: h.rates.cpu if h.rates else None, least=0.25, share=0.5, shown=_percent),
    Measure(what="memory", value=_memory, least=0.2, share=0.5, shown=_percent, side=1),
    Measure(
        what="own img/s",
        value=_ranks("own_images_per_s", min),
        least=0.0,
        share=0.15,
        shown=lambda v: f"{v:.1f}",
        side=-1,
    ),
    Measure(what="input", value=_ranks("input_share", max), least=0.15, share=0.3, shown=_percent, side=1),
    Measure(what="wait", value=_ranks("wait_share", min), least=0.15, share=0.3, shown=_percent, side=-1),
)


def with_odd(hosts: Sequence[HostState]) -> tuple[HostState, ...]:
    """Return the hosts with their outliers, the largest first.

    Hosts that are not seen are left out of the comparison.
    """
    found: dict[Host, list[Odd]] = {}
    seen = [h for h in hosts if h.is_seen]
    for measure in MEASURES:
        for group in _groups(seen, of_job=measure.is_of_job):
            values = {h.host: v for h in group if (v := measure.value(h)) is not None}
            for host, odd in odd_values(values, measure).items():
                found.setdefault(host, []).append(odd)
    return tuple(
        replace(h, odd=tuple(sorted(found[h.host], key=lambda o: -o.distance))) if h.host in found else h for h in hosts
    )


def odd_values(values: Mapping[Host, float], measure: Measure) -> dict[Host, Odd]:
    """Return the hosts that are further from the median than is ordinary, each with its distance."""
    if len(values) < FEWEST:
        return {}
    usual = statistics.median(values.values())
    spread = _MAD * statistics.median(abs(v - usual) for v in values.values())
    ordinary = max(measure.least, measure.share * abs(usual), _SPREADS * spread)
    found = {}
    for host, value in values.items():
        distance = abs(value - usual) / ordinary if ordinary > 0 else 0.0
        if distance > 1 and (measure.side == 0 or (value > usual) == (measure.side > 0)):
            text = f"{measure.what} {measure.shown(value)}, others {measure.shown(usual)}"
            found[host] = Odd(what=measure.what, value=value, usual=usual, distance=round(distance, 2), text=text)
    return found


def _groups(hosts: Sequence[HostState], *, of_job: bool) -> list[list[HostState]]:
    """Group hosts that should be alike: all of them, or those with ranks of the same jobs."""
    if not of_job:
        return [list(hosts)]
    groups: dict[tuple[str, ...], list[HostState]] = {}
    for one in hosts:
        jobs = tuple(sorted({rank.job for rank in one.vitals.ranks})) if one.vitals else ()
        groups.setdefault(jobs, []).append(one)
    return [group for jobs, group in groups.items() if jobs]

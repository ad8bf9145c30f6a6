"""Pairs of hosts to measure, and judges of the results for hosts and links: pure functions."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.health.verdict import Problem, Severity
from cluster.hosts import Host

SLOW_SHARE = 0.5  # of the median of all pairs: below it a host or link is reported; ours
DROP_SHARE = 0.85  # of this cluster's own baseline; peers' suites and our own runs vary by less


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Measurement between two hosts in one round."""

    a: Host
    b: Host
    to_b: float | None = None  # bytes per second; None: the measurement failed
    to_a: float | None = None
    latency_s: float | None = None
    error: str = ""

    @property
    def slowest(self) -> float:
        """Return the rate of the slower direction, 0 if it was not measured."""
        return min(self.to_a or 0.0, self.to_b or 0.0)


def rounds(hosts: Sequence[Host]) -> list[list[tuple[Host, Host]]]:
    """Return the rounds of pairs: log2 N, but at least three if there are partners enough.

    All pairs of a round run at once. The plan is the circle method of tournaments: no pair meets twice, and of an odd
    number of hosts one rests in each round.
    """
    if len(hosts) < 2:
        return []
    ring: list[Host | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    n = len(ring)
    plan = []
    for _ in range(max((n - 1).bit_length(), min(3, n - 1))):
        plan.append(
            [(a, b) for i in range(n // 2) if (a := ring[i]) is not None and (b := ring[n - 1 - i]) is not None]
        )
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return plan


def pair_problems(pairs: Sequence[Pair]) -> dict[Host, list[Problem]]:
    """Report hosts that are slow with every partner, and slow links between hosts that are well elsewhere.

    A host's rate is that with its best partner, so a slow host does not make its partners look slow.
    """
    hosts = sorted({h for p in pairs for h in (p.a, p.b)})
    best = {h: max(p.slowest for p in pairs if h in (p.a, p.b)) for h in hosts}
    usual = statistics.median(best.values()) if best else 0.0
    slow = {h for h in hosts if best[h] < SLOW_SHARE * usual or best[h] == 0.0}
    problems: dict[Host, list[Problem]] = {h: [_slow_host(best[h], usual)] for h in sorted(slow)}
    for pair in pairs:
        if pair.slowest < SLOW_SHARE * usual and not {pair.a, pair.b} & slow:
            for host, other in ((pair.a, pair.b), (pair.b, pair.a)):
                problems.setdefault(host, []).append(_slow_link(pair, other, usual))
    return problems


def _slow_host(best: float, usual: float) -> Problem:
    what = (
        f"at most {mbit(best)} with any partner; {mbit(usual)} is usual here"
        if best
        else "no partner could measure with it"
    )
    return Problem(
        check="pairs",
        what=what,
        means="every all-reduce waits for it",
        verdict=Severity.REPLACE,
        do="see its card's errors; replace it if there is nothing to mend",
        command="inv run --hosts {ranks} -- 'ip -s link; tc qdisc'",
    )


def _slow_link(pair: Pair, other: Host, usual: float) -> Problem:
    why = pair.error or f"{mbit(pair.slowest)}; {mbit(usual)} is usual here"
    return Problem(
        check="pairs",
        what=f"with {other} {why}, with others it is well",
        verdict=Severity.WATCH,
        means="the way between these two is bad",
        do="measure again; look at what is between them",
        unfit=False,
        command="inv health --net --hosts {ranks}," + str(other.rank),
    )


def summary(pairs: Sequence[Pair], line_gbit: float | None) -> str:
    """Return one line of numbers: the median rate, its share of the card's line rate, and the latency."""
    ways = [w for p in pairs for w in (p.to_a, p.to_b) if w]
    late = [p.latency_s for p in pairs if p.latency_s]
    if not ways:
        return "pairs: nothing was measured"
    middle = statistics.median(ways)
    of = f", {middle * 8 / 1e9 / line_gbit:.0%} of the card's {line_gbit:g} Gbit/s" if line_gbit else ""
    return (
        f"pairs: {mbit(middle)} (median of {len(ways)} ways{of}; {mbit(min(ways))} to {mbit(max(ways))}), "
        f"latency {statistics.median(late) * 1e6:.0f} us"
    )


def baseline_problems(name: str, now: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """Return a sentence for each size whose rate fell below the baseline."""
    return [
        f"{name} {size}: {mbit(rate)}, {rate / before[size]:.0%} of the baseline"
        for size, rate in now.items()
        if size in before and rate < DROP_SHARE * before[size]
    ]


def mbit(bytes_per_s: float) -> str:
    """Return a rate as a text in Mbit/s or Gbit/s."""
    bits = bytes_per_s * 8
    return f"{bits / 1e9:.2f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.1f} Mbit/s"

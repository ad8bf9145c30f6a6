"""Judge of the hosts' clocks: it names the one that is off, be it the master's, by which the others are measured."""

import math
import statistics
from collections.abc import Mapping

from cluster.health.system import CLOCK_FAILS_S, CLOCK_WARNS_S
from cluster.health.verdict import Problem, Severity, Unreadable
from cluster.hosts import Host
from cluster.terminal import counted


def offset_of(exchanges: list[list[float]]) -> tuple[float, float]:
    """Return a clock's offset from the master's by the quickest exchange, and the doubt: half of its duration."""
    sent, said, got = min(exchanges, key=lambda e: e[2] - e[0])
    if math.isnan(said):
        raise Unreadable("a clock that says no number")
    return said - (sent + got) / 2, (got - sent) / 2


def clock_problems(offsets: Mapping[Host, tuple[float, float]], master: Host) -> dict[Host, list[Problem]]:
    """Judge the clocks. Where most others agree with each other and not with the master, the master's clock is off."""
    off = {h: one for h, one in offsets.items() if abs(one[0]) - one[1] > CLOCK_WARNS_S}
    usual = statistics.median(one[0] for one in off.values()) if off else 0.0
    agree = [h for h, (offset, doubt) in off.items() if abs(offset - usual) - doubt <= CLOCK_WARNS_S]
    if len(agree) < 2 or 2 * len(agree) <= len(offsets):
        return {h: [_clock_problem(*one, "the master's")] for h, one in off.items()}
    others = f"that of {len(agree)} of the {counted(len(offsets), 'other host')}"
    found = {master: [_clock_problem(-usual, min(off[h][1] for h in agree), others)]}
    apart = {h: (offset - usual, doubt) for h, (offset, doubt) in offsets.items()}
    return found | {
        h: [_clock_problem(*one, "most others'")] for h, one in apart.items() if abs(one[0]) - one[1] > CLOCK_WARNS_S
    }


def _clock_problem(offset: float, doubt: float, than: str) -> Problem:
    """Return the problem of a clock that is off. Only the excess over the doubt counts."""
    least = abs(offset) - doubt
    fails = least > CLOCK_FAILS_S
    return Problem(
        check="clock",
        what=f"its clock is {offset:+.2f} s from {than} (to {doubt:.3f} s)",
        unfit=fails,
        means="logs, leases and make's time stamps do not fit",
        do="set it",
        verdict=Severity.RESTART_JOB if fails else Severity.WATCH,
        command="inv run --hosts {ranks} --sudo -- 'systemctl restart chrony*; chronyc makestep'",
    )

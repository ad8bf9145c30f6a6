"""Report of a health check, for a person and for a script.

It is one line if all is well, else the hosts grouped by problem.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.health.check import Finding
from cluster.health.history import QuickCheckRecord
from cluster.health.verdict import Problem
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.terminal import counted

MOST_SEEN = 2  # different texts that a group prints before it counts the rest


@dataclass(frozen=True, kw_only=True)
class HealthReport:
    """Result of a health check on each host. A host without problems is fit."""

    rung: str
    problems: Mapping[Host, tuple[Problem, ...]]
    findings: Mapping[Host, Mapping[str, Finding]]  # per check, also those that are well
    seconds: float
    before: Sequence[QuickCheckRecord] = ()  # earlier checks, oldest first
    notes: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()  # lines of numbers, for rungs that measure

    @property
    def is_ok(self) -> bool:
        """Return True if no host has a problem."""
        return not any(self.problems.values())

    @property
    def unfit(self) -> tuple[Host, ...]:
        """Return the hosts that must not train before something is done."""
        return tuple(h for h, problems in self.problems.items() if any(p.unfit for p in problems))

    @property
    def exit_code(self) -> int:
        """Return the exit code: 0 all is well, 1 something needs attention, 2 a host is unfit to train."""
        return 2 if self.unfit else 0 if self.is_ok else 1

    def unfit_before(self) -> dict[Host, int]:
        """Return how many of the latest earlier checks in a row already found each unfit host unfit."""
        times = {}
        for host in self.unfit:
            count = 0
            for look in reversed(self.before):
                if host.address not in look.unfit:
                    break
                count += 1
            if count:
                times[host] = count
        return times

    def __str__(self) -> str:
        lines = [self.heading, *self._groups()]
        again = self.unfit_before()
        for count in sorted(set(again.values()), reverse=True):
            who = fold(h.address for h, n in again.items() if n == count)
            lines.append(
                f"{who}: unfit in the look before too"
                if count == 1
                else f"{who}: unfit in the {count} looks before too: if it was repaired since, replace it"
            )
        return "\n".join([*lines, *self.measured, *self.notes])

    def record(self) -> dict[str, Any]:
        """Return the report as a dict for JSON."""
        return {
            "rung": self.rung,
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 3),
            "notes": list(self.notes),
            "measured": list(self.measured),
            "hosts": [
                {
                    "host": h.address,
                    "rank": h.rank,
                    "fit": h not in self.unfit,
                    "checks": {name: f.verdict.value for name, f in self.findings.get(h, {}).items()},
                    "why_not": {name: f.note for name, f in self.findings.get(h, {}).items() if f.note},
                    "problems": [as_record(p, h) for p in problems],
                }
                for h, problems in self.problems.items()
            ],
        }

    @property
    def heading(self) -> str:
        """Return the first line: how many hosts are unfit, to watch, and well."""
        total, sick = len(self.problems), sum(1 for p in self.problems.values() if p)
        took = f"({self.rung}, {self.seconds:.1f} s)"
        if not sick:
            return f"all {counted(total, 'host')} are well {took}" if total > 1 else f"the host is well {took}"
        unfit = len(self.unfit)
        parts = [f"{unfit} unfit to train"] * bool(unfit) + [f"{sick - unfit} to watch"] * bool(sick - unfit)
        return f"{counted(total, 'host')}: {', '.join(parts)}, {total - sick} well {took}"

    def _groups(self) -> list[str]:
        groups: dict[tuple[object, ...], list[tuple[Host, Problem]]] = {}
        for host, problems in self.problems.items():
            for problem in problems:
                groups.setdefault(problem.kind, []).append((host, problem))
        worst_first = sorted(
            groups.values(), key=lambda g: (not g[0][1].unfit, -g[0][1].verdict.rank, -len(g), g[0][0])
        )
        return [line for group in worst_first for line in _lines(group)]


def _lines(group: list[tuple[Host, Problem]]) -> list[str]:
    hosts, problem = sorted({h for h, _ in group}), group[0][1]
    seen = list(Counter(p.what for _, p in group))
    what = "; ".join(seen[:MOST_SEEN]) + (f"; and {len(seen) - MOST_SEEN} more" if len(seen) > MOST_SEEN else "")
    mark = "unfit" if problem.unfit else "watch"
    action = f"       {problem.verdict.value}: {problem.do}"
    command = problem.command.replace("{ranks}", ranks(hosts)).replace("{addresses}", " ".join(map(str, hosts)))
    return [
        f"{mark}  {fold(h.address for h in hosts)} (rank {ranks(hosts)}): {what}: {problem.means}",
        f"{action}:  {command}" if command else action,
    ]


def ranks(hosts: Sequence[Host]) -> str:
    """Return the hosts' ranks as --hosts accepts them: `0,2-4`."""
    spans: list[list[int]] = []
    for rank in sorted(h.rank for h in hosts):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    return ",".join("-".join(map(str, s)) for s in spans)


def as_record(problem: Problem, host: Host) -> dict[str, Any]:
    """Return a problem as a dict for JSON, with its command completed for the host."""
    return {
        "check": problem.check,
        "verdict": problem.verdict.value,
        "unfit": problem.unfit,
        "what": problem.what,
        "means": problem.means,
        "do": problem.do,
        "command": problem.command.replace("{ranks}", str(host.rank)).replace("{addresses}", str(host)),
    }

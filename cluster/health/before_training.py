"""Quick check before a training: unfit hosts are refused, or left out if the operator chose that."""

import sys
from collections.abc import Sequence

from cluster.errors import ClusterError
from cluster.health.failed_before import NAME
from cluster.health.quick_check import look_at_hosts
from cluster.health.report import HealthReport, ranks
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.launch.mpirun import ranks_on
from cluster.recovery.host_failures import spared
from cluster.ssh.fanout import Executor
from cluster.terminal import counted


class UnfitHosts(ClusterError):
    """Error for a training with hosts that must not train. Its text is the report and the next step."""

    exit_code = 2

    def __init__(self, report: HealthReport, advice: str) -> None:
        super().__init__(f"{report}\n{advice}")
        self.report = report


def fit_hosts(
    cluster: Cluster, hosts: Sequence[Host], *, np: int | None = None, skip_unfit: bool = False
) -> tuple[Host, ...]:
    """Return the hosts that may train: all of them, or with `skip_unfit` those that are fit. Print findings on stderr.

    Hosts that failed twice in a week are left out if the training can do without them. A master of 0 slots is checked,
    too, even if it holds no rank. Each host is judged with its slots from the hostfile, however many the training
    takes.

    Raises UnfitHosts in three cases: a host is unfit and `skip_unfit` is off; the master, where jobs start, is unfit;
    or no host is left.
    """
    with Executor(cluster) as reach:
        idle = [] if cluster.master.slots else [cluster.master]
        report = look_at_hosts(reach, cluster, tuple(dict.fromkeys([*idle, *as_in_hostfile(cluster, hosts)])))
    out = _failed_before(report, hosts, np)
    spared_addresses = {h.address for h in out}
    unfit = tuple(h for h in report.unfit if h.address not in spared_addresses)
    gone = spared_addresses | {h.address for h in unfit}
    left = tuple(h for h in hosts if h.address not in gone)
    if not unfit:
        if not report.is_ok:
            print(report, *([left_over(left, out, np)] if out else []), sep="\n", file=sys.stderr)
        return left
    if not skip_unfit:
        raise UnfitHosts(
            report,
            "nothing was started: mend them, train on the others with --skip-unfit, or look away with --unchecked",
        )
    if cluster.master in unfit:
        raise UnfitHosts(report, "nothing was started: the master is unfit, and every job starts and is kept there")
    if not left:
        raise UnfitHosts(report, "nothing was started: no host is fit")
    print(f"{report}\n{left_over(left, [h for h in hosts if h.address in gone], np)}", file=sys.stderr)
    return left


def as_in_hostfile(cluster: Cluster, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return the hosts with all their slots of the hostfile. A program started once per host has them with one slot."""
    known = {h.address: h for h in cluster.hosts}
    return tuple(known.get(h.address, h) for h in hosts)


def _failed_before(report: HealthReport, hosts: Sequence[Host], np: int | None) -> tuple[Host, ...]:
    """Return the hosts that failed too often, as many of them as a training of `np` ranks can do without."""
    found = {h.address: p.what for h, problems in report.problems.items() for p in problems if p.check == NAME}
    without = spared(hosts, found, np or 1)
    return tuple(h for h in hosts if h.address in without)


def left_over(left: Sequence[Host], out: Sequence[Host], np: int | None) -> str:
    """Return a text with the hosts left out, and the ranks of the training on the remaining hosts."""
    slots = sum(h.slots for h in left)
    counts = ranks_on(left, min(np or slots, slots))
    first, spans = 0, []
    for host, count in counts.items():
        spans.append(f"{host} {first}" if count == 1 else f"{host} {first}-{first + count - 1}")
        first += count
    shown = ", ".join(spans) if len(spans) <= 8 else f"0-{first - 1} on {fold(h.address for h in counts)}"
    return (
        f"left out: {fold(h.address for h in out)} (rank {ranks(out)} of the hostfile, "
        f"{counted(sum(h.slots for h in out), 'slot')})\n{counted(first, 'rank')} train: {shown}"
    )

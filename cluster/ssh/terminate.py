"""Termination of a run's processes on their hosts. Reports only what was seen there."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from cluster.hosts import Host
from cluster.interrupts import put_off
from cluster.ssh import tagged_processes
from cluster.ssh.failure import Reason
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import marked, output_between_marks, trouble
from cluster.ssh.result import FanOut
from cluster.terminal import counted

RUN_TAG = "DLAMI_RUN"  # in the environment of every process that a fan-out starts
_GRACE_S = 2
_LIMITS = Limits(connect_s=5, total_s=20)


@dataclass(frozen=True)
class Termination:
    """Result of ending a run's processes: all hosts, and those where processes are left or could not be checked."""

    hosts: Sequence[Host]
    left: Mapping[Host, str]  # the processes that stay, or why it is not known

    def __str__(self) -> str:
        count = f"its processes were ended on {len(self.hosts) - len(self.left)} of {counted(len(self.hosts), 'host')}"
        return "\n".join([count, *(f"  not on {host}: {what}" for host, what in self.left.items())])


class Runner(Protocol):
    """Interface to the connections that this module needs. `fanout.Executor` provides it."""

    def run(
        self, hosts: Sequence[Host], command: str, *, limits: Limits, sudo: bool = False, run_id: str | None
    ) -> FanOut:
        """Run a command on these hosts."""

    def apart(self, label: str) -> contextlib.AbstractContextManager[Self]:
        """Return the same hosts over separate connections."""


def end_processes(reach: Runner, hosts: Sequence[Host], run_id: str | None, *, sudo: bool = False) -> Termination:
    """End what a run started on these hosts, by its tag, and check that it is gone. Ctrl-C has to wait until then.

    If the run has taken the last session that a host's sshd allows, this uses a new connection to that host.
    """
    if not hosts or run_id is None:
        return Termination(hosts, {})
    script = marked(tagged_processes.end_script(RUN_TAG, run_id, grace_s=_GRACE_S))
    with undisturbed():
        results = dict(reach.run(hosts, script, limits=_LIMITS, sudo=sudo, run_id=None))
        full = [h for h, r in results.items() if r.failure and r.failure.reason is Reason.TURNED_AWAY]
        if full:
            with reach.apart(run_id) as apart:
                results |= apart.run(full, script, limits=_LIMITS, sudo=sudo, run_id=None)
    left = {h: trouble(r) or (output_between_marks(r) or "").strip() for h, r in results.items()}
    return Termination(hosts, {h: what for h, what in left.items() if what})


def undisturbed() -> contextlib.AbstractContextManager[None]:
    """Postpone Ctrl-C, TERM and HUP, and print a line when one arrives.

    Afterwards they take effect, but for a Ctrl-C without a handler of the program's own: it has had its effect.
    """
    return put_off("ending the processes on the hosts; that takes seconds, half a minute at most", forgets_ctrl_c=True)

"""What a job left on its hosts, ended; and whether it is stuck there."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.record import JOB_TAG
from cluster.ssh import tagged
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from cluster.ssh.result import FanOut

_HERE = Host(rank=-1, address="localhost", slots=1)


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What is still there after a job's processes were ended, with its host."""

    processes: tuple[str, ...] = ()  # that could not be ended
    unanswered: tuple[str, ...] = ()  # hosts that could not be looked at, with why

    @property
    def left(self) -> tuple[str, ...]:
        """Both."""
        return (*self.processes, *self.unanswered)


def sweep(hosts: Iterable[Host], job_id: str, grace_s: int = 2) -> Swept:
    """End what carries the job's id on these hosts and on this one."""
    results = _on_all(hosts, job_id, tagged.end_script(JOB_TAG, job_id, grace_s), Limits(total_s=grace_s + 20))
    return Swept(
        processes=tuple(f"{h}: {line}" for h, r in results.items() if r.ok for line in r.text.strip().splitlines()),
        unanswered=tuple(f"{h}: {r.problem}" for h, r in results.items() if not r.ok),
    )


def stopped_processes(hosts: Iterable[Host], job_id: str) -> tuple[str, ...]:
    """The job's processes that were stopped (SIGSTOP, a debugger) and answer no signal, with their hosts."""
    results = _on_all(hosts, job_id, tagged.list_script(JOB_TAG, job_id), Limits(connect_s=5, total_s=8))
    lines = [(h, line.split(None, 2)) for h, r in results.items() if r.ok for line in r.text.splitlines()]
    return tuple(f"{h}: {words[0]}" for h, words in lines if len(words) > 1 and words[1].startswith(("T", "t")))


def _on_all(hosts: Iterable[Host], job_id: str, script: str, limits: Limits) -> FanOut:
    reached = (_HERE, *(h for h in hosts if not h.is_local))
    with Reach(Cluster(name=job_id, hosts=reached, folder=Path(), shared="", project="")) as reach:
        return reach.run(reached, script, limits=limits)

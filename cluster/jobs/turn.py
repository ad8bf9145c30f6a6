"""FIFO queue of jobs for hosts. Pure: no clock, no hosts, no files.

A waiting job reserves every host that it could use against all later jobs, even if it needs only a few of them. A later
job starts first only on hosts that the waiting job cannot use. So each job starts once those before it have started and
enough of its hosts are free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.hosts import Host
from cluster.hostset import fold
from cluster.launch.mpirun import ranks_on


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Job in the queue."""

    job: str
    hosts: tuple[Host, ...]  # any of these will do
    np: int  # ranks, each of which needs a slot


@dataclass(frozen=True, kw_only=True)
class Place:
    """Position of a job in the queue, and what it waits for."""

    number: int  # 1: first in the queue
    hosts: tuple[Host, ...] = ()  # hosts that it gets now; () while it waits
    others: tuple[Host, ...] = ()  # free hosts that could replace one of those
    taken: Mapping[str, str]  # hosts that it could use but another job holds: address to that job
    awaited: Mapping[str, str]  # free hosts reserved for an earlier job: address to that job
    lost: tuple[str, ...] = ()  # jobs in `taken` that are lost, so that the operator has to stop them

    def __str__(self) -> str:
        if self.hosts:
            return f"its turn has come: {fold(h.address for h in self.hosts)}"
        reasons = [f"{hosts}, taken by {job}{self._remedy(job)}" for job, hosts in _by_job(self.taken).items()]
        reasons += [f"{hosts}, which {job} waits for before it" for job, hosts in _by_job(self.awaited).items()]
        return f"place {self.number} in the queue, waits for {'; '.join(reasons) or 'its hosts'}"

    def _remedy(self, job: str) -> str:
        return f" (lost: inv jobs.stop {job})" if job in self.lost else ""


def places(queue: Sequence[Waiting], taken: Mapping[str, str]) -> dict[str, Place]:
    """Return each waiting job's position, by its id.

    queue: first come, first. taken: the job that holds each host, by address.
    """
    found: dict[str, Place] = {}
    holders, awaited = dict(taken), dict[str, str]()
    for number, job in enumerate(queue, 1):
        free = [h for h in job.hosts if h.address not in holders and h.address not in awaited]
        can_go = sum(h.slots for h in free) >= job.np
        hosts = tuple(ranks_on(free, job.np)) if can_go else ()
        addresses = [h.address for h in job.hosts]
        found[job.job] = Place(
            number=number,
            hosts=hosts,
            others=tuple(h for h in free if h not in hosts) if can_go else (),
            taken={a: holders[a] for a in addresses if a in holders},
            awaited={a: awaited[a] for a in addresses if a in awaited and a not in holders},
        )
        if can_go:
            holders |= {h.address: job.job for h in hosts}
        else:
            awaited = dict.fromkeys(addresses, job.job) | awaited
    return found


def _by_job(hosts: Mapping[str, str]) -> dict[str, str]:
    """Return the hosts of each job, folded."""
    return {job: fold(a for a, one in hosts.items() if one == job) for job in dict.fromkeys(hosts.values())}

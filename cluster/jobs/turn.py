"""Whose turn it is: first in, first out, and no host goes past a job that waits for it. No clock, no hosts, no files.

A job that waits keeps every host that it may have from all that came after it, whether it needs all of them or any few;
one that came later starts before it only on hosts that it cannot use. So each has its turn once those before it had
theirs and enough of its hosts have come free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.hosts import Host
from cluster.hostset import fold
from cluster.launch.mpirun import ranks_on


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """One job of the queue."""

    job: str
    hosts: tuple[Host, ...]  # of which it may have any
    np: int  # ranks that it needs slots for


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a job is in the queue, and what it waits for."""

    number: int  # 1: nobody is before it
    hosts: tuple[Host, ...] = ()  # that it gets now; () while it has to wait
    others: tuple[Host, ...] = ()  # that it could have in the place of one of those
    taken: Mapping[str, str]  # of the hosts that it may have, those that are taken, by whom
    awaited: Mapping[str, str]  # those that are free, and left to a job before it
    lost: tuple[str, ...] = ()  # of the jobs that have taken some, those whose hosts somebody has to free

    def __str__(self) -> str:
        if self.hosts:
            return f"its turn has come: {fold(h.address for h in self.hosts)}"
        reasons = [f"{hosts}, taken by {job}{self._remedy(job)}" for job, hosts in _by_job(self.taken).items()]
        reasons += [f"{hosts}, which {job} waits for before it" for job, hosts in _by_job(self.awaited).items()]
        return f"place {self.number} in the queue, waits for {'; '.join(reasons) or 'its hosts'}"

    def _remedy(self, job: str) -> str:
        return f" (lost: inv jobs.stop {job})" if job in self.lost else ""


def places(queue: Sequence[Waiting], taken: Mapping[str, str]) -> dict[str, Place]:
    """Each waiting job's place, by its id.

    queue: who came first first. taken: hosts that jobs have, by address.
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
    """The hosts of each job, folded."""
    return {job: fold(a for a, one in hosts.items() if one == job) for job in dict.fromkeys(hosts.values())}

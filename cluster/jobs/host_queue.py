"""FIFO queue of jobs for hosts and their slots. Pure: no clock, no hosts, no files.

A job that needs fewer slots than a host has gets them on one host, beside others. Any other job gets whole hosts.

A waiting job reserves every host that it could use against all later jobs, even if it needs only a few of them. A later
job starts first only on hosts that the waiting job cannot use. So each job starts once those before it have started and
enough of its hosts are free.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.hosts import MOST_SLOTS, Host
from cluster.hostset import fold
from cluster.launch.mpirun import ranks_on

WHOLE = MOST_SLOTS  # slots that count as held where a job holds a whole host
Held = Mapping[str, Mapping[str, int]]  # by host address: how many slots each job holds there


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Job in the queue."""

    job: str
    hosts: tuple[Host, ...]  # any of these will do
    np: int  # ranks, each of which needs a slot
    exclusive: bool = True  # it takes whole hosts, however few ranks it has

    @property
    def shares(self) -> bool:
        """Return True if it gets some slots of one host: it is not exclusive, and needs fewer than a host has."""
        return not self.exclusive and any(h.slots > self.np for h in self.hosts)


@dataclass(frozen=True, kw_only=True)
class QueuePosition:
    """Position of a job in the queue, and what it waits for."""

    number: int  # 1: first in the queue
    hosts: tuple[Host, ...] = ()  # hosts that it gets now, with its slots of each; () while it waits
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


def places(queue: Sequence[Waiting], held: Held, of: str = "") -> dict[str, QueuePosition]:
    """Return each waiting job's position, by its id.

    queue: first come, first. of: return the position of this job only, which takes less time.
    """
    found: dict[str, QueuePosition] = {}
    used = {address: sum(jobs.values()) for address, jobs in held.items()}
    holders, awaited = {address: dict(jobs) for address, jobs in held.items()}, dict[str, str]()
    for number, one in enumerate(queue, 1):
        able = [h for h in one.hosts if h.address not in awaited and _has_room(one, h, used.get(h.address, 0))]
        hosts = _chosen(one, able, used)
        if not of or one.job == of:
            found[one.job] = _place(number, one, hosts, able, holders, awaited, used)
        if one.job == of:
            break
        if not hosts:
            awaited = dict.fromkeys((h.address for h in one.hosts), one.job) | awaited
        for host in hosts:
            slots = one.np if one.shares else WHOLE
            used[host.address] = used.get(host.address, 0) + slots
            holders.setdefault(host.address, {})[one.job] = slots
    return found


def _has_room(one: Waiting, host: Host, used: int) -> bool:
    """Return True if the job could use this host now: some of its slots, or all of it."""
    return host.slots - used >= one.np if one.shares else not used


def _chosen(one: Waiting, able: Sequence[Host], used: Mapping[str, int]) -> tuple[Host, ...]:
    """Return the hosts that the job gets now, or () if these do not suffice.

    One that shares gets the host with the fewest free slots that suffice, so that whole hosts stay free for others.
    """
    if one.shares:
        best = min(able, key=lambda h: (h.slots - used.get(h.address, 0), h), default=None)
        return (dataclasses.replace(best, slots=one.np),) if best else ()
    return tuple(ranks_on(able, one.np)) if sum(h.slots for h in able) >= one.np else ()


def _place(
    number: int, one: Waiting, hosts: Sequence[Host], able: Sequence[Host],
    holders: Held, awaited: Mapping[str, str], used: Mapping[str, int],
) -> QueuePosition:  # fmt: skip
    mine = {h.address for h in hosts}
    full = [h.address for h in one.hosts if not _has_room(one, h, used.get(h.address, 0))]
    return QueuePosition(
        number=number,
        hosts=tuple(hosts),
        others=tuple(h for h in able if h.address not in mine) if hosts else (),
        taken={a: next(iter(holders[a])) for a in full if holders.get(a)},
        awaited={h.address: awaited[h.address] for h in one.hosts if h.address in awaited and h.address not in full},
    )


def _by_job(hosts: Mapping[str, str]) -> dict[str, str]:
    """Return the hosts of each job, folded."""
    return {job: fold(a for a, one in hosts.items() if one == job) for job in dict.fromkeys(hosts.values())}

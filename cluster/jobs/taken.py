"""Occupancy by the jobs' records: which job holds which hosts, and which job waits for which."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from cluster.errors import ConfigError
from cluster.hosts import Host, parse_hostfile
from cluster.jobs.lease import read_lease
from cluster.jobs.record import Job, JobPaths, Records, Status
from cluster.jobs.state import JobState
from cluster.jobs.turn import Place, Waiting, places
from cluster.ssh.onhost import trusted_files

DAMAGED = "its record is damaged"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Job that holds hosts."""

    job: str
    how: str  # its state, or that its record is damaged
    hosts: tuple[Host, ...]


def holders(records: Records) -> tuple[Holder, ...]:
    """Return every job that holds hosts. For a damaged record, what can be read of it decides.

    Another user's job counts only while its supervisor is seen to live. Otherwise a record alone could block all hosts
    for ever. Whether a lost job still holds a host is decided by the claim on the host itself (jobs/claim.py).
    """
    damaged = [JobPaths(one.path.parent) for one in records.damaged]
    alive = [p for p in damaged if p.folder.name not in records.others and _may_live(p)]
    sure = [one for one in _on_record(records) if one.job not in records.others or one.how != JobState.LOST]
    return (*sure, *map(_damaged, alive))


def may_hold(records: Records) -> tuple[Holder, ...]:
    """Return every job that holds hosts or may hold some. A job with a damaged record may still run."""
    return (*_on_record(records), *(_damaged(JobPaths(one.path.parent)) for one in records.damaged))


def _may_live(paths: JobPaths) -> bool:
    lease = read_lease(paths)
    return lease is not None and lease.may_live(paths)


def _on_record(records: Records) -> list[Holder]:
    return [
        Holder(job=job.id, how=str(status.state), hosts=job.all_hosts)
        for job, status in records.jobs
        if status.state.holds_hosts
    ]


def _damaged(paths: JobPaths) -> Holder:
    return Holder(job=paths.folder.name, how=DAMAGED, hosts=hosts_of(paths))


def queue(jobs: Iterable[tuple[Job, Status]]) -> tuple[Waiting, ...]:
    """Return the waiting jobs, first come, first. A job whose supervisor is gone does not block others."""
    waiting = [job for job, status in jobs if status.state is JobState.QUEUED and job.waits_for_hosts]
    return tuple(Waiting(job=j.id, hosts=j.wanted, np=j.whole_np) for j in sorted(waiting, key=lambda j: j.ticket))


def places_of(records: Records) -> dict[str, Place]:
    """Return the queue position of each waiting job, by its id."""
    taken = {h.address: one.job for one in holders(records) for h in one.hosts}
    lost = tuple(job.id for job, status in records.jobs if status.state is JobState.LOST)
    found = places(queue(records.jobs), taken)
    return {
        job: dataclasses.replace(place, lost=tuple(one for one in lost if one in place.taken.values()))
        for job, place in found.items()
    }


def hosts_of(paths: JobPaths) -> tuple[Host, ...]:
    """Return the hosts of a job whose record is damaged, by its hostfile."""
    try:
        text = trusted_files.read_file(paths.hostfile).decode()
        return parse_hostfile(text, str(paths.hostfile))
    except (ConfigError, OSError, ValueError):
        return ()

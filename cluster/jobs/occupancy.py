"""Occupancy by the jobs' records: which job holds which hosts and slots, and which job waits for which."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.errors import ConfigError
from cluster.hosts import Host, parse_hostfile
from cluster.hostset import fold
from cluster.jobs.host_queue import WHOLE, QueuePosition, Waiting, places
from cluster.jobs.record import Job, JobPaths, JobRecords, JobStatus
from cluster.jobs.record_lease import read_lease
from cluster.jobs.state import JobState
from cluster.ssh.onhost import trusted_files

DAMAGED = "its record is damaged"


@dataclass(frozen=True, kw_only=True)
class HoldingJob:
    """Job that holds hosts."""

    job: str
    how: str  # its state, or that its record is damaged
    hosts: tuple[Host, ...]
    slots: Mapping[str, int] = field(default_factory=dict)  # how many it holds, by address; not of a whole host
    is_elsewhere: bool = False  # it is on no record of this shared folder


def held_by(all_holders: Iterable[HoldingJob], besides: str = "") -> dict[str, dict[str, int]]:
    """Return how many slots of each host the jobs hold, by address and job. besides: a job that does not count."""
    found: dict[str, dict[str, int]] = {}
    for one in all_holders:
        for host in one.hosts if one.job != besides else ():
            found.setdefault(host.address, {})[one.job] = one.slots.get(host.address, WHOLE)
    return found


def hosts_free_for(one: Waiting, before: Sequence[Waiting], all_holders: Sequence[HoldingJob]) -> tuple[Host, ...]:
    """Return the hosts that a job gets now, with its slots of each; () if they would not suffice even if free.

    before: jobs that wait for hosts. Raises ConfigError that names a job which holds, or waits for, what it wants.
    """
    place = places([*before, one], held_by(all_holders, besides=one.job), of=one.job)[one.job]
    known = {h.job: h for h in all_holders if h.hosts}
    in_the_way = {**place.awaited, **place.taken}
    for job in sorted({*in_the_way.values()}, key=lambda j: j not in known) if not place.hosts else ():
        hosts = fold(a for a, by in in_the_way.items() if by == job)
        if job not in known:
            raise ConfigError(
                f"{job} waits in the queue for {hosts}: wait behind it with --queue, or take others with --hosts"
            )
        remedy = "wait for them with --queue, " + (
            "stop it where it was started" if known[job].is_elsewhere else f"'inv jobs.stop {job}'"
        )
        raise ConfigError(f"hosts taken by {job} ({known[job].how}): {hosts}; {remedy}, or take others with --hosts")
    return place.hosts


def holders(records: JobRecords) -> tuple[HoldingJob, ...]:
    """Return every job that holds hosts. For a damaged record, what can be read of it decides.

    Another user's job counts only while its supervisor is seen to live. Otherwise a record alone could block all hosts
    for ever. Whether a lost job still holds a host is decided by the claim on the host itself (jobs/claim.py).
    """
    damaged = [JobPaths(one.path.parent) for one in records.damaged]
    alive = [p for p in damaged if p.folder.name not in records.others and _may_live(p)]
    sure = [one for one in _on_record(records) if one.job not in records.others or one.how != JobState.LOST]
    return (*sure, *map(_damaged, alive))


def may_hold(records: JobRecords) -> tuple[HoldingJob, ...]:
    """Return every job that holds hosts or may hold some. A job with a damaged record may still run."""
    return (*_on_record(records), *(_damaged(JobPaths(one.path.parent)) for one in records.damaged))


def _may_live(paths: JobPaths) -> bool:
    lease = read_lease(paths)
    return lease is not None and lease.may_live(paths)


def _on_record(records: JobRecords) -> list[HoldingJob]:
    return [
        HoldingJob(job=job.id, how=str(status.state), hosts=job.all_hosts, slots=_shared(job))
        for job, status in records.jobs
        if status.state.holds_hosts
    ]


def _damaged(paths: JobPaths) -> HoldingJob:
    return HoldingJob(job=paths.folder.name, how=DAMAGED, hosts=hosts_of(paths))


def _shared(job: Job) -> dict[str, int]:
    return {h.address: job.need for h in job.all_hosts if not job.takes_whole(h)}


def queue(jobs: Iterable[tuple[Job, JobStatus]]) -> tuple[Waiting, ...]:
    """Return the waiting jobs, first come, first. A job whose supervisor is gone does not block others."""
    waiting = [job for job, status in jobs if status.state is JobState.QUEUED and job.waits_for_hosts]
    return tuple(waiting_for(job, job.wanted) for job in sorted(waiting, key=lambda j: j.ticket))


def waiting_for(job: Job, hosts: Sequence[Host]) -> Waiting:
    """Return the job as one that waits for slots of these hosts."""
    return Waiting(job=job.id, hosts=tuple(hosts), np=job.need, exclusive=job.spec.shares_no_host)


def places_of(records: JobRecords, of: str = "", without: Collection[str] = ()) -> dict[str, QueuePosition]:
    """Return the queue position of each waiting job, by its id.

    of: of this job only. without: addresses of hosts that this job cannot have now.
    """
    held = held_by(holders(records))
    lost = {job.id for job, status in records.jobs if status.state is JobState.LOST}
    line = [
        dataclasses.replace(one, hosts=tuple(h for h in one.hosts if one.job != of or h.address not in without))
        for one in queue(records.jobs)
    ]

    def lost_ones(place: QueuePosition) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one for a in place.taken for one in held.get(a, ()) if one in lost))

    return {job: dataclasses.replace(p, lost=lost_ones(p)) for job, p in places(line, held, of).items()}


def hosts_of(paths: JobPaths) -> tuple[Host, ...]:
    """Return the hosts of a job whose record is damaged, by its hostfile."""
    try:
        text = trusted_files.read_file(paths.hostfile).decode()
        return parse_hostfile(text, str(paths.hostfile))
    except (ConfigError, OSError, ValueError):
        return ()

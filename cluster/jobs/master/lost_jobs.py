"""Recovery of jobs that were lost while their master was down: once it is back, jobs with recovery continue.

The service `dlami-heal` runs this at each boot of the master, for every user who has jobs. By hand: `inv jobs.heal`.
"""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.hosts import is_this_machine
from cluster.inventory import Cluster
from cluster.jobs.master.submit import restart_lost, say_lost
from cluster.jobs.record import Job, JobPaths, JobStatus, owner_id, user_name
from cluster.jobs.record_lease import EXPIRES_S
from cluster.jobs.records import read_going
from cluster.jobs.state import JobState
from cluster.jobs.status import written_status
from cluster.notify import Message, NotifyEvent, deliver
from cluster.ssh.failure import Reason
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits

_NO_WAY_IN = (Reason.REFUSED_KEY, Reason.UNKNOWN_HOST, Reason.CHANGED_HOST)  # another try would fail, too
_LOOK_S = 0.5


@dataclass(frozen=True, kw_only=True)
class LostJob:
    """Lost job, with whether it continues."""

    id: str
    goes_on: bool
    why: str = ""  # why it does not continue


def heal_lost(folder: Path, *, dry_run: bool = False) -> list[LostJob]:
    """Continue every lost job of this user that has recovery enabled. Return for each lost job whether it continues.

    If a job's supervisor ran on a machine that cannot be checked, this waits until its lease has expired.
    """
    deadline = time.monotonic() + EXPIRES_S + 5
    while (jobs := _own(folder)) and any(_may_be_lost(s) for _, s in jobs) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    lost = sorted((j for j, s in jobs if s.state is JobState.LOST), key=_by_turn)
    return [_heal(JobPaths(folder / j.id), j, dry_run) for j in lost]


def _by_turn(job: Job) -> tuple[int, int]:
    """Return the sort key of a job: jobs that have hosts come first, then the queue in its order."""
    return (job.ticket if job.waits_for_hosts else 0, job.sequence)


def _own(folder: Path) -> list[tuple[Job, JobStatus]]:
    """Return this user's jobs of this master that have not ended."""
    going = [(j, s) for j, s in read_going(folder).jobs if s.state.holds_hosts]
    return [(j, s) for j, s in going if owner_id(JobPaths(folder / j.id)) == os.getuid() and _is_of_this_master(j, s)]


def _is_of_this_master(job: Job, status: JobStatus) -> bool:
    """Return True if the job was started from this machine.

    Masters of other clusters may keep their jobs in the same folder. A replaced master has its predecessor's address,
    and so its host name.
    """
    was_here = status.supervisor is None or status.supervisor.host == socket.gethostname()
    return was_here or any(is_this_machine(h.address) for h in (*job.all_hosts, *job.wanted))


def _may_be_lost(status: JobStatus) -> bool:
    """Return True if only the lease can show whether the job is lost.

    By its record it runs, but its supervisor cannot be checked from here.
    """
    return status.state.is_going and bool(status.supervisor and not status.supervisor.is_of_this_boot)


def _heal(paths: JobPaths, job: Job, dry_run: bool) -> LostJob:
    why = _why_not(job, paths)
    if dry_run:
        return LostJob(id=job.id, goes_on=not why, why=why)
    try:
        if not why:
            restart_lost(paths)
    except ClusterError as e:
        why = str(e)
    if not why or say_lost(paths, f"it did not go on when its master was back: {why}"):
        _tell(
            paths,
            job,
            f"its supervisor was gone (killed, or the master was away); {why or _what_follows(paths)}",
        )
    return LostJob(id=job.id, goes_on=not why, why=why)


def _why_not(job: Job, paths: JobPaths) -> str:
    """Return why the job must not continue. Return an empty string if it may."""
    left = written_status(paths).state
    if not job.spec.heal and left is not JobState.QUEUED:  # one that waited has not failed
        return f"it was started with --no-heal; 'inv jobs.resume {job.id}' goes on with it"
    if left is JobState.STOPPING:
        return f"it was being stopped; 'inv jobs.stop {job.id}' ends what is left of it"
    hosts = job.hosts or job.wanted
    remote = [h for h in hosts if not h.is_local]
    with Executor(Cluster(name=job.id, hosts=hosts, folder=Path(), shared="", project="")) as reach:
        results = reach.run(remote, "true", limits=Limits(connect_s=10, total_s=15)) if remote else {}
    refused = [(h, r) for h, r in results.items() if r.failure and r.failure.reason in _NO_WAY_IN]
    if not refused:
        return ""
    host, result = refused[0]
    return (
        f"{host}: {result.problem}. A supervisor reaches hosts by itself, without the operator's agent: user "
        f"{user_name(os.getuid())} needs a key without a passphrase on the master that opens all hosts, and their host "
        f"keys; then 'inv jobs.heal'"
    )


def _what_follows(paths: JobPaths) -> str:
    is_queued = written_status(paths).state is JobState.QUEUED
    return "it waits in the queue again" if is_queued else "its next attempt is prepared"


def _tell(paths: JobPaths, job: Job, text: str) -> None:
    if job.plan.notify:
        message = Message(event=NotifyEvent.LOST, job=job.id, text=text, attempt=job.attempt, folder=str(paths.folder))
        try:
            deliver(job.plan.notify, message)
        except ClusterError as e:
            print(f"notify: {e}", flush=True)

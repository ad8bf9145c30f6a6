"""Stop of a job: the trainer saves, all processes are ended, and the hosts are checked for processes that are left."""

import contextlib
import dataclasses
import os
import signal
import time
from pathlib import Path

from cluster.errors import ClusterError, NothingToDo
from cluster.hosts import Host
from cluster.jobs.claim import give_back
from cluster.jobs.cleanup import sweep
from cluster.jobs.lock import locked
from cluster.jobs.occupancy import hosts_of
from cluster.jobs.process import ProcessId, process_id
from cluster.jobs.record import DamagedRecord, JobPaths, JobStatus, now, read_job, require_own
from cluster.jobs.record_lease import read_lease
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status, write_status
from cluster.jobs.supervisor.launcher import STOP_GRACE_S
from cluster.jobs.supervisor.signals import STOP_SIGNAL
from cluster.ssh.fanout import wait_until

_WAIT_S = STOP_GRACE_S + 60  # time for a supervisor to end its ranks and clean up every host
_WAKES_S = 5.0  # time for a supervisor woken by SIGCONT to continue
_DIES_S = 10.0

# Modules that a supervisor is started by. The second is of an older version, whose jobs may still run.
_SUPERVISORS = {b"cluster.jobs.supervisor.supervise", b"cluster.jobs.supervise"}


def stop(paths: JobPaths) -> JobStatus:
    """End a job on every host and return its last state. Raises NothingToDo if it has ended and nothing of it is left.

    A supervisor that runs does it: ranks save and leave, then are ended. Without one, this process ends every process
    that carries the job's id in its environment. A job that has not begun is kept from beginning.
    """
    require_own(paths, "stop")
    try:
        read_status(paths)
    except DamagedRecord as e:
        return _stop_damaged(paths, e)
    _wake_supervisor(paths)
    status = _stop_without_supervisor(paths)
    if status.state.is_going:
        _ask_supervisor(paths, status)
        status = _stop_without_supervisor(paths) if read_status(paths).state is JobState.LOST else read_status(paths)
    return status


def _stop_damaged(paths: JobPaths, damage: DamagedRecord) -> JobStatus:
    """End a job whose record cannot be read: by its supervisor if one runs, then on the hosts of its hostfile."""
    supervisor = _own_supervisors(paths.folder.parent).get(paths.folder.name)
    if supervisor:
        _signal_stop(supervisor)
        if not wait_until(lambda: not supervisor.is_alive, _WAIT_S, pause_s=0.1):
            raise ClusterError(f"{paths.folder.name}: its supervisor was told to stop, and has not yet; {damage}")
    with locked(paths.folder.parent):
        with contextlib.suppress(DamagedRecord):
            if (status := read_status(paths)).state.is_over:
                return status  # recorded by its supervisor
        left = sweep(_hosts(paths), paths.folder.name).left
        cause = f"stopped; before that its record was damaged ({damage.why})"
        lease = read_lease(paths)
        attempt = lease.attempt if lease else 1
        return write_status(
            paths, JobStatus(state=JobState.STOPPED, attempt=attempt, ended=now(), cause=cause, left=left)
        )


def stop_unseen(folder: Path, which: str) -> str:
    """End a job by its supervisor while its record cannot be read. Return a sentence about the result.

    The supervisor is found by its command line.
    """
    found = _own_supervisors(folder)
    named = {job: process for job, process in found.items() if which in (job, "last") or which in job}
    if which in named:
        named = {which: named[which]}
    if len(named) != 1:
        return f"of {', '.join(sorted(found)) or 'no job'} there is a supervisor of yours here: nothing was stopped"
    ((job, supervisor),) = named.items()
    _signal_stop(supervisor)
    if not wait_until(lambda: not supervisor.is_alive, _WAIT_S, pause_s=0.1):
        return f"{job} was told to stop, and has not yet"
    return f"{job} was stopped all the same, which its record says as soon as it can be read"


def _own_supervisors(folder: Path) -> dict[str, ProcessId]:
    """Return the supervisors of this user's jobs on this machine, by job id."""
    found = {}
    for of_one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (of_one / "cmdline").read_bytes().split(b"\0")
            inside = [Path(os.fsdecode(w)) for w in words if w.startswith(os.fsencode(folder) + b"/")]
            process = process_id(int(of_one.name))
            if _SUPERVISORS & set(words) and inside and process.belongs_to(os.getuid()):
                found[inside[0].name] = process
    return found


def _stop_without_supervisor(paths: JobPaths) -> JobStatus:
    """Stop the job here, unless a supervisor runs it, and return its state. The lock keeps others from resuming it."""
    with locked(paths.folder.parent):
        status = read_status(paths)
        if status.state is JobState.STARTING:  # the supervisor reads this before it begins, and exits
            status = dataclasses.replace(status, state=JobState.STOPPED, ended=now(), cause="stopped before it began")
            status = write_status(paths, status)
            with contextlib.suppress(DamagedRecord):
                give_back(read_job(paths))
            return status
        if status.state.is_going:
            return status
        swept = sweep(_hosts(paths), paths.folder.name)
        if status.state.is_over and not swept.left:
            raise NothingToDo(f"{paths.folder.name} has ended ({status.state}), and nothing of it is left on any host")
        ended = status.ended or now()
        return write_status(
            paths, dataclasses.replace(status, state=JobState.STOPPED, ended=ended, cause="", left=swept.left)
        )


def _hosts(paths: JobPaths) -> tuple[Host, ...]:
    """Return the job's hosts, or those of its hostfile if its record is damaged."""
    try:
        return read_job(paths).all_hosts
    except DamagedRecord:
        return hosts_of(paths)


def _ask_supervisor(paths: JobPaths, status: JobStatus) -> None:
    """Signal the supervisor to end its job and wait until it has. Kill a supervisor that hangs.

    Raises ClusterError if it is on another machine, or survives.
    """
    supervisor = status.supervisor
    name = paths.folder.name
    if supervisor is None or not supervisor.is_of_this_boot:
        where = supervisor.host if supervisor else "another machine"
        raise ClusterError(f"{name} is run by a supervisor on {where}, which is not this master: stop it from there")
    if not _is_supervisor(supervisor, paths):
        raise ClusterError(f"process {supervisor.pid} is not the supervisor of {name}, whatever its record says")
    _signal_stop(supervisor)
    began = time.monotonic()

    def is_over() -> bool:
        stays_stopped = time.monotonic() - began > _WAKES_S and supervisor.is_stopped  # for instance held by a debugger
        return stays_stopped or not read_status(paths).state.is_going

    wait_until(is_over, _WAIT_S, pause_s=0.1)
    if read_status(paths).state.is_going and _is_supervisor(supervisor, paths):
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor.pid, signal.SIGKILL)
        if not wait_until(lambda: not supervisor.is_alive, _DIES_S, pause_s=0.1):
            raise ClusterError(
                f"{name} did not stop: its supervisor, process {supervisor.pid} on the master, hangs in the kernel "
                "(state D: a disk or a file server that does not answer); stop the job again once that is mended"
            )


def _wake_supervisor(paths: JobPaths) -> None:
    """Wake a supervisor that is stopped (SIGSTOP), since it may hold the lock of all jobs."""
    supervisor = read_status(paths).supervisor
    if supervisor and supervisor.is_stopped and _is_supervisor(supervisor, paths):
        os.kill(supervisor.pid, signal.SIGCONT)


def _signal_stop(supervisor: ProcessId) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(supervisor.pid, STOP_SIGNAL)
        os.kill(supervisor.pid, signal.SIGCONT)  # a stopped process handles no other signal


def _is_supervisor(process: ProcessId, paths: JobPaths) -> bool:
    """Return True if the process has ended, or is this user's and its command line names this job.

    The record alone is no proof: it may name any process.
    """
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return not process.is_alive  # it has just ended
    is_of_job = bool(_SUPERVISORS & set(words)) and os.fsencode(paths.folder) in words
    return not process.is_alive or (process.belongs_to(os.getuid()) and is_of_job)

"""The end of a job, asked for: the trainer saves, every process goes, and hosts are looked at for what is left."""

import contextlib
import dataclasses
import os
from pathlib import Path

from cluster.errors import ClusterError, NothingToDo
from cluster.jobs.lock import locked
from cluster.jobs.process import ProcessId
from cluster.jobs.record import JobPaths, Status, now, read_job, require_own
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status, write_status
from cluster.jobs.supervise import STOP_GRACE_S, STOP_SIGNAL
from cluster.jobs.sweep import sweep
from cluster.ssh.fanout import wait_until

_WAIT_S = STOP_GRACE_S + 60  # for a supervisor to end its ranks and look at every host


def stop(paths: JobPaths) -> Status:
    """End a job on every host; its last state. Raises NothingToDo if it has ended and nothing of it is left.

    With a supervisor, that one does it: ranks save and leave, then are ended. Without, what carries the job's id in its
    environment is ended from here. A job that has not begun is kept from beginning.
    """
    require_own(paths, "stop")
    status = _stop_without_supervisor(paths)
    if status.state.is_going:
        _ask_supervisor(paths, status)
        status = _stop_without_supervisor(paths) if read_status(paths).state is JobState.LOST else read_status(paths)
    return status


def _stop_without_supervisor(paths: JobPaths) -> Status:
    """The job's state, ended here unless a supervisor runs it. Nobody can start or resume it meanwhile."""
    with locked(paths.folder.parent):
        status = read_status(paths)
        if status.state is JobState.STARTING:  # its supervisor reads this before it begins, and leaves
            return write_status(
                paths, dataclasses.replace(status, state=JobState.STOPPED, ended=now(), cause="stopped before it began")
            )
        if status.state.is_going:
            return status
        job = read_job(paths)
        swept = sweep(job.hosts, job.id)
        if status.state.is_over and not swept.left:
            raise NothingToDo(f"{job.id} has ended ({status.state}), and nothing of it is left on any host")
        ended = status.ended or now()
        return write_status(
            paths, dataclasses.replace(status, state=JobState.STOPPED, ended=ended, cause="", left=swept.left)
        )


def _ask_supervisor(paths: JobPaths, status: Status) -> None:
    """Tell the supervisor to end its job, and wait until it has. Raises ClusterError if it cannot be told, or hangs."""
    supervisor = status.supervisor
    name = paths.folder.name
    if supervisor is None or not supervisor.is_of_this_boot:
        where = supervisor.host if supervisor else "another machine"
        raise ClusterError(f"{name} is run by a supervisor on {where}, which is not this master: stop it from there")
    if not _is_supervisor(supervisor, paths):
        raise ClusterError(f"process {supervisor.pid} is not the supervisor of {name}, whatever its record says")
    with contextlib.suppress(ProcessLookupError):
        os.kill(supervisor.pid, STOP_SIGNAL)
    if not wait_until(lambda: not read_status(paths).state.is_going, _WAIT_S, pause_s=0.1):
        raise ClusterError(
            f"{name} did not stop: its supervisor hangs; end its process {supervisor.pid} "
            "on the master, then stop the job again"
        )


def _is_supervisor(process: ProcessId, paths: JobPaths) -> bool:
    """Whether the process is ours, and runs this very job; a record alone is not believed."""
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return not process.is_alive  # it has just ended
    wanted = (b"cluster.jobs.supervise", os.fsencode(paths.folder))
    return not process.is_alive or (process.belongs_to(os.getuid()) and all(word in words for word in wanted))

"""State of a job, read and written. It is `lost` if the supervisor is gone.

While the shared folder cannot be written, for instance because it is full, the master's own disk keeps the state.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import stat
import time
from pathlib import Path

from cluster.errors import ClusterError
from cluster.files import write_atomically, write_json
from cluster.jobs.record import DamagedRecord, JobPaths, JobStatus, load, owner_id, read_job
from cluster.jobs.record_lease import EXPIRES_S, read_lease, unrenewed_s
from cluster.jobs.state import JobState

LAST_WORDS = Path("/var/tmp")  # the master's own disk, which survives a restart


def read_status(paths: JobPaths) -> JobStatus:
    """Return the job's state. Call it on the master, which can see whether the supervisor lives.

    A job is `lost` if its supervisor is gone without recording the end. A state that the supervisor wrote to the
    master's own disk, because the shared folder could not be written, is copied to the folder. If `state.json` is
    damaged, the lease decides whether the job runs. Raises DamagedRecord.
    """
    words = _last_words(paths)
    try:
        status = written_status(paths)
    except DamagedRecord:
        if words is None:
            raise
        status = words
    if words and _are_newer(words, status):
        status = words
    if words and words.state.is_over and status is words:
        _bring_over(paths, status)
    return status if not status.state.is_going or _is_supervised(paths, status) else _lost(paths, status)


def written_status(paths: JobPaths) -> JobStatus:
    """Return the state that was written last. If `state.json` is damaged, return what the lease shows.

    Raises DamagedRecord if there is no lease either.
    """
    try:
        return load(paths.status, JobStatus)
    except DamagedRecord as e:
        if not (lease := read_lease(paths)):
            raise
        damage = f"{e.path} is damaged ({e.why})"
        text = f"{damage}; that the job goes on is known by its lease, 'inv jobs.stop' ends it"
        state = JobState.QUEUED if read_job(paths).waits_for_hosts else JobState.RUNNING
        return JobStatus(state=state, attempt=lease.attempt, supervisor=lease.holder, cause=damage, warnings=(text,))


def supervisor_trouble(paths: JobPaths, status: JobStatus, now: float) -> str:
    """Return what is wrong with a supervisor that lives on this machine; "" if nothing is."""
    process, lease = status.supervisor, read_lease(paths)
    if not status.state.is_going or process is None or not process.is_of_this_boot:
        return ""
    who = f"the job's supervisor, process {process.pid} on {process.host},"
    if process.is_stopped:
        return (
            f"{who} is stopped (SIGSTOP or a debugger): ranks go on, and nobody sees how they end; "
            f"'kill -CONT {process.pid}' there wakes it, 'inv jobs.stop' ends the job all the same"
        )
    if lease and lease.holder == process and now - lease.renewed > EXPIRES_S:
        return f"{who} has not said for {now - lease.renewed:.0f} s that it lives: it hangs, or could not write"
    return ""


def is_seen_to_be_gone(paths: JobPaths, status: JobStatus) -> bool:
    """Return True if a lost job's supervisor has certainly ended.

    One on another machine may still run and only be unable to reach the folder.
    """
    process = status.supervisor
    if process is None or process.is_of_this_boot:
        return True
    age_s = unrenewed_s(paths)
    return age_s is not None and process.is_of_an_earlier_boot(time.time() - age_s)


def write_status(paths: JobPaths, status: JobStatus) -> JobStatus:
    """Write the state atomically to the job's folder, or to this machine's own disk if the folder cannot be written.

    In the second case the final cause also says why. Returns the state as written. Raises ClusterError if neither can
    be written.
    """
    try:
        write_json(paths.status, dataclasses.asdict(status))
    except OSError as e:
        return keep_last_words(words_file(paths), paths, status, e)
    _forget_last_words(paths)
    return status


def keep_last_words(words: Path, paths: JobPaths, status: JobStatus, error: OSError) -> JobStatus:
    """Write the state to this machine's own disk, because the job's folder cannot be written.

    The folder is not touched.

    Raises ClusterError if this disk cannot be written either.
    """
    why = f"{paths.folder} cannot be written: {error.strerror}"
    if status.state.is_over and why not in status.cause:
        status = dataclasses.replace(status, cause="; ".join(filter(None, (why, status.cause))))
    try:
        _require_own(words.parent)
        words.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(words, json.dumps(dataclasses.asdict(status)), mode=0o600)
    except OSError as e:
        raise ClusterError(f"{why}; nor can {LAST_WORDS} of the master: {e.strerror}") from e
    return status


def words_file(paths: JobPaths) -> Path:
    """Return the path of the state on this machine's own disk, in a folder that only this user can read."""
    name = hashlib.sha256(str(paths.folder.resolve()).encode()).hexdigest()[:24]
    return LAST_WORDS / f"dlami-jobs-{os.getuid()}" / f"{name}.json"


def _are_newer(words: JobStatus, status: JobStatus) -> bool:
    """Return True if the state on this machine's disk is newer than the one in the job's folder."""
    ours, theirs = (words.attempt, words.state.is_over), (status.attempt, status.state.is_over)
    return ours > theirs or (ours == theirs and not status.state.is_over and words.supervisor == status.supervisor)


def _is_supervised(paths: JobPaths, status: JobStatus) -> bool:
    lease = read_lease(paths)
    if status.supervisor and status.supervisor.is_of_this_boot:
        try:
            owner = owner_id(paths)
        except FileNotFoundError:  # the shared folder is away: this state is from the user's own disk
            owner = os.getuid()
        return status.supervisor.belongs_to(owner)  # the record alone is no proof: it may name any process
    return lease is not None and lease.attempt == status.attempt and lease.may_live(paths)


def _lost(paths: JobPaths, status: JobStatus) -> JobStatus:
    console = paths.console(status.attempt)
    return dataclasses.replace(
        status,
        state=JobState.LOST,
        warnings=(),
        log=status.log or str(console if console.exists() else paths.logs(status.attempt) / "supervisor.log"),
        cause="its supervisor is gone without a last word (killed, or the master restarted): "
        "'inv jobs.stop' ends what is left, 'inv jobs.resume' does so and goes on"
        + (f"; said last: {status.cause}" if status.cause else ""),
    )


def _bring_over(paths: JobPaths, status: JobStatus) -> None:
    with contextlib.suppress(OSError):
        write_json(paths.status, dataclasses.asdict(status))
        _forget_last_words(paths)


def _last_words(paths: JobPaths) -> JobStatus | None:
    with contextlib.suppress(DamagedRecord, OSError):
        if owner_id(paths) != os.getuid():  # such a file is of an older job of this user in the same folder
            return None
    with contextlib.suppress(DamagedRecord, ClusterError):
        path = words_file(paths)
        _require_own(path.parent)
        return load(path, JobStatus) if path.exists() else None
    return None


def _forget_last_words(paths: JobPaths) -> None:
    with contextlib.suppress(OSError, ClusterError):
        path = words_file(paths)
        _require_own(path.parent)
        path.unlink(missing_ok=True)


def _require_own(folder: Path) -> None:
    """Raise ClusterError if another user made the folder, or if others may read it."""
    with contextlib.suppress(FileNotFoundError):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ClusterError(f"{folder} is not a folder of this user alone: remove it")

"""Lock on a folder of jobs: one change of a user's jobs at a time, across all hosts.

Each user has a separate lock, so that no user can block another. This lock does not keep jobs off each other's hosts:
that is done by claims (jobs/claim.py), which the kernel grants to one job.
"""

import contextlib
import fcntl
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from cluster.errors import ClusterError
from cluster.jobs.record import require_place
from cluster.ssh.fanout import wait_until
from cluster.ssh.onhost import trusted_files

WAIT_S = 90.0  # another submission may have to wait for dead hosts first
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextlib.contextmanager
def locked(folder: Path, wait_s: float = WAIT_S, pause_s: float = 0.05) -> Iterator[None]:
    """Hold this user's lock on a folder. Raises ClusterError that names the holder if that takes longer than wait_s."""
    held: list[int] = []
    try:
        try:
            is_held = wait_until(lambda: _take(folder, held), wait_s, pause_s=pause_s)
        except OSError as e:
            raise ClusterError(f"no lock can be made in {folder}: {e.strerror}") from e
        if not is_held:
            raise ClusterError(
                f"{_holder(folder)}, another submission or stop of yours, has held its lock in {folder} for "
                f"{wait_s:g} s: try again once it has ended"
            )
        yield
    finally:
        for handle in held:
            os.close(handle)


def time_in(folder: Path) -> float | None:
    """Return the time by the clock that dates this folder's files: its file server's, if it is on one.

    Touches this user's lock file to read it. Returns None if that is not possible.
    """
    with contextlib.suppress(OSError):
        handles = _opened(folder)
        try:
            os.utime(handles[0])
            return os.fstat(handles[0]).st_mtime
        finally:
            for handle in handles:
                os.close(handle)
    return None


def make_folder(folder: Path) -> None:
    """Create the jobs' folder if it is missing. Every user creates jobs in it, and changes only his own.

    Raises ClusterError if it cannot be created, ConfigError if it is another user's.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = folder.lstat()
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if is_own and stat.S_IMODE(found.st_mode) != 0o1777:
            folder.chmod(0o1777)
        require_place(folder)
    except OSError as e:
        raise ClusterError(
            f"jobs are kept in {folder}, which cannot be made: {e.strerror}; is the shared folder "
            "mounted on the master?"
        ) from e


def _take(folder: Path, held: list[int]) -> bool:
    """Take the lock if it is free. Return True on success, with the lock files' descriptors appended to `held`."""
    handles = _opened(folder)
    try:
        for handle in handles:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        for handle in handles:
            os.close(handle)
        return False
    held += handles
    with contextlib.suppress(OSError):  # the disk may be full
        os.ftruncate(handles[0], 0)
        os.pwrite(handles[0], f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return True


def _opened(folder: Path) -> list[int]:
    """Open this user's lock files, at least one, in the order of their names.

    Others may write to the folder, so a name proves nothing: a file counts by its owner, and its name cannot be
    guessed. Two processes may both have created one. The later process locks all files, including the earlier one's.
    """
    prefix, above = f".lock-{os.geteuid()}-", trusted_files.open_folder(folder)
    try:
        if not (found := _own(above, prefix)):
            name = f"{prefix}{secrets.token_hex(8)}"
            os.close(os.open(name, _OPEN | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=above))
            found = _own(above, prefix)
        return found
    finally:
        os.close(above)


def _own(above: int, prefix: str) -> list[int]:
    handles: dict[int, int] = {}  # by inode: a hard link is no second lock
    for name in sorted(n for n in os.listdir(above) if n.startswith(prefix)):
        with contextlib.suppress(OSError):
            handle = os.open(name, _OPEN, dir_fd=above)
            found = os.fstat(handle)
            is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_ino not in handles
            handles.setdefault(found.st_ino, handle) if is_own else os.close(handle)
    return list(handles.values())


def _holder(folder: Path) -> str:
    """Return the lock's holder, as it is written in the lock file."""
    with contextlib.suppress(OSError, ValueError):
        handles = _opened(folder)
        try:
            return "; ".join(filter(None, (os.pread(h, 200, 0).decode() for h in handles))) or "a process"
        finally:
            for handle in handles:
                os.close(handle)
    return "a process"

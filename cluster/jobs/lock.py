"""One change of a cluster's jobs at a time, from whatever host and by whatever user."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cluster.errors import ClusterError
from cluster.ssh.fanout import wait_until

WAIT_S = 90.0  # for another submission, which may have to look at dead hosts first


@contextlib.contextmanager
def locked(folder: Path, wait_s: float = WAIT_S, pause_s: float = 0.05) -> Iterator[None]:
    """Hold the lock of the jobs' folder. Raises ClusterError if another holds it for too long."""
    try:
        lock = _open(folder / ".lock")
    except OSError as e:
        raise ClusterError(f"{folder / '.lock'} cannot be opened: {e.strerror}") from e
    try:
        if not wait_until(lambda: _take(lock), wait_s, pause_s=pause_s):
            raise ClusterError(f"another submission or stop has held {folder / '.lock'} for {wait_s:g} s: try again")
        yield
    finally:
        os.close(lock)


def time_in(folder: Path) -> float | None:
    """What the clock says by which this folder's files are dated: its file server's, where it is on one.

    The lock file is touched for it, which any user may do. None where that cannot be.
    """
    with contextlib.suppress(OSError):
        lock = _open(folder / ".lock")
        try:
            os.utime(lock)
            return os.fstat(lock).st_mtime
        finally:
            os.close(lock)
    return None


def make_folder(folder: Path) -> None:
    """Make the jobs' folder: every user of the cluster may make jobs in it, and touch only his own.

    Raises ClusterError if it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) != 0o1777:
            folder.chmod(0o1777)
    except OSError as e:
        raise ClusterError(
            f"jobs are kept in {folder}, which cannot be made: {e.strerror}; is the shared folder "
            "mounted on the master?"
        ) from e


def _open(path: Path) -> int:
    """The lock file, writable by all. It is not created over: in a folder of all users the kernel forbids that."""
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDWR)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    with contextlib.suppress(PermissionError):
        os.fchmod(lock, 0o666)  # whatever the umask
    return lock


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

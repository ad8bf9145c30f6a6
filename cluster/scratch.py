"""A folder of this process's own on this machine's disk: what a command sends, and answers too long for its memory.

It goes with the process. What a process left there that was killed is removed by the next that makes its own.
"""

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
from pathlib import Path

_PREFIX = f"dlami-scratch-{os.getuid()}-"
_lock = threading.Lock()
_made: dict[int, tuple[Path, int]] = {}  # by process, as a forked one has its parent's memory; the folder, its lock


def folder() -> Path:
    """The folder of this process, empty at first, readable by this user alone. Raises OSError."""
    with _lock:
        if os.getpid() not in _made:
            _remove_left()
            _made[os.getpid()] = _make()
            atexit.register(_remove_own, os.getpid())
        return _made[os.getpid()][0]


def _make() -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        if (lock := _locked(path)) is not None:
            return path, lock


def _remove_own(pid: int) -> None:
    if pid == os.getpid():
        path, lock = _made.pop(pid)
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _remove_left() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if (lock := _locked(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _locked(path: Path) -> int | None:
    """The folder, open and locked until that is closed; None where it is another's, or of a process that lives."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_uid == os.getuid():
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(fd), os.lstat(path)):  # not removed by another in this very moment
                    return fd
        os.close(fd)
    return None

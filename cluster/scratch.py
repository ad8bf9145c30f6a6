"""Scratch folder of this process on this machine's disk, for data to send and answers too long for its memory.

It is removed when the process exits. The next process that makes a folder removes those of killed processes.
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
_OPENED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_lock = threading.Lock()
_made: dict[int, tuple[Path, int]] = {}  # by pid, since a forked process inherits this dict; the folder, its lock


def folder() -> Path:
    """Return the folder of this process, empty at first, readable by this user only. Raises OSError."""
    with _lock:
        pid = os.getpid()
        if pid in _made and not _made[pid][0].is_dir():  # a cleanup of the temporary folder removed it
            os.close(_made.pop(pid)[1])
        if pid not in _made:
            _remove_left()
            _made[pid] = _make()
            atexit.register(_remove_own, pid)
        return _made[pid][0]


def _make() -> tuple[Path, int]:
    while True:  # retry if another process removed it before it was locked
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, _OPENED)
            with contextlib.suppress(OSError):  # on a disk without locks no folder is removed
                fcntl.flock(lock, fcntl.LOCK_EX)
            if path.is_dir():
                return path, lock
            os.close(lock)


def _remove_own(pid: int) -> None:
    if pid == os.getpid() and pid in _made:
        path, lock = _made.pop(pid)
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _remove_left() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(path, _OPENED)
            with contextlib.suppress(OSError):
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            os.close(lock)

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
_OPENED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_lock = threading.Lock()
_made: dict[int, tuple[Path, int]] = {}  # by process, as a forked one has its parent's memory; the folder, its lock


def folder() -> Path:
    """The folder of this process, empty at first, readable by this user alone. Raises OSError."""
    with _lock:
        pid = os.getpid()
        if pid in _made and not _made[pid][0].is_dir():  # who tidies a machine's temporary folder took an old one
            os.close(_made.pop(pid)[1])
        if pid not in _made:
            _remove_left()
            _made[pid] = _make()
            atexit.register(_remove_own, pid)
        return _made[pid][0]


def _make() -> tuple[Path, int]:
    while True:  # until one was not taken for left before it was locked
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, _OPENED)
            with contextlib.suppress(OSError):  # without locks on that disk nothing is taken for left
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

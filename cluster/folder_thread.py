"""Thread for work on a job's folder, so that an unresponsive file server blocks nothing else."""

import errno
import io
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, cast

T = TypeVar("T")

LIMIT_S = 10.0  # a busy file server may take seconds
_TICK_S = 0.05
_MOST = 1000  # pieces of queued work


class Unanswered(TimeoutError):
    """Error: the shared folder does not answer. The work stays queued and runs once the folder answers."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, "the shared folder does not answer")


@dataclass(kw_only=True, eq=False)
class _Work:
    do: Callable[[], object]
    is_awaited: bool
    is_done: threading.Event = field(default_factory=threading.Event)
    result: object = None
    error: BaseException | None = None


class FolderThread:
    """Thread that runs work on the folder in order. A caller waits for a result at most `limit_s`.

    Of queued work with the same name only the newest is run. If work that nobody waits for fails, each later call
    raises its error. An OSError is ignored: the next write contains what this one could not write.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._waiting: dict[object, _Work] = {}  # by name, in order
        self._changed = threading.Condition()
        self._began: float | None = None  # start of the current piece of work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="folder", daemon=True)
        self._thread.start()

    @property
    def is_silent(self) -> bool:
        """Return True if the current piece of work has taken longer than the limit."""
        return self.silent_s > 0

    @property
    def silent_s(self) -> float:
        """Return the seconds that the current piece of work has taken, if that exceeds the limit, else 0."""
        began = self._began
        taken_s = time.monotonic() - began if began is not None else 0.0
        return taken_s if taken_s > self._limit_s else 0.0

    def check(self) -> None:
        """Raise the error of earlier queued work, if it failed and no caller waited for it."""
        if self._error:
            raise self._error

    def later(self, work: Callable[[], object], name: str = "") -> None:
        """Queue work without waiting for it."""
        self.check()
        self._put(_Work(do=work, is_awaited=False), name)

    def do(self, work: Callable[[], T], name: str = "") -> T:
        """Run work and return its result or raise its error. Raises Unanswered if the folder does not answer in time.

        If the folder is already known to be silent, raises Unanswered at once.
        """
        self.check()
        one = _Work(do=work, is_awaited=True)
        self._put(one, name)
        deadline = time.monotonic() + self._limit_s
        while not one.is_done.wait(0.0 if self.is_silent else _TICK_S):
            with self._changed:
                if not one.is_done.is_set() and (self.is_silent or time.monotonic() > deadline):
                    one.is_awaited = False
                    raise Unanswered
        if one.error:
            raise one.error
        return cast(T, one.result)

    def write(self, descriptor: int, text: bytes) -> None:
        """Queue a write to an open file of the folder. Unlike `later`, it works even if earlier work has failed."""
        self._put(_Work(do=lambda: os.write(descriptor, text), is_awaited=False))

    def close(self) -> None:
        """Wait until all queued work is done, unless the folder does not answer."""
        self._put(last := _Work(do=lambda: None, is_awaited=False))
        deadline = time.monotonic() + self._limit_s
        while not last.is_done.wait(_TICK_S) and not self.is_silent and time.monotonic() < deadline:
            pass

    def _put(self, one: _Work, name: str = "") -> None:
        with self._changed:
            self._waiting.pop(name, None)
            self._waiting[name or one] = one
            if len(self._waiting) > _MOST:
                del self._waiting[next(iter(self._waiting))]
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                one = self._waiting.pop(next(iter(self._waiting)))
                self._began = time.monotonic()
            try:
                one.result = one.do()
            except BaseException as e:
                one.error = e
            with self._changed:
                self._began = None
                if one.error and not one.is_awaited and not isinstance(one.error, OSError):
                    self._error = self._error or one.error
                one.is_done.set()


class FolderLog(io.TextIOBase):
    """Log file in the shared folder, used as the stdout of a process that must not block on it."""

    def __init__(self, folder: FolderThread, descriptor: int) -> None:
        self._folder, self._descriptor = folder, descriptor

    def write(self, text: str) -> int:
        """Queue the text to be written to the log."""
        if text:
            self._folder.write(self._descriptor, text.encode(errors="replace"))
        return len(text)

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the log, to which child processes write."""
        return self._descriptor

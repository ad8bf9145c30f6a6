"""Work on a job's folder, done by a thread of its own: a file server that does not answer holds up nothing else."""

import errno
import io
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, cast

T = TypeVar("T")

LIMIT_S = 10.0  # a busy file server may take some
_TICK_S = 0.05
_MOST = 1000  # pieces of work that wait


class Unanswered(TimeoutError):
    """The shared folder does not answer; what was to be done is done once it does."""

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
    """Does one piece of work after the other, in their order; who wants a result waits for it only so long.

    Of work by the same name that waits only the newest is done. An error that nobody waits for is raised by each call
    from then on, unless it is an OSError: what cannot be written now is with the next word.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._waiting: dict[object, _Work] = {}  # by name, in their order
        self._changed = threading.Condition()
        self._began: float | None = None  # the piece at hand
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="folder", daemon=True)
        self._thread.start()

    @property
    def is_silent(self) -> bool:
        """Whether the piece at hand has taken too long."""
        return self.silent_s > 0

    @property
    def silent_s(self) -> float:
        """For how long the piece at hand has been under way, if that is too long; else 0."""
        began = self._began
        taken_s = time.monotonic() - began if began is not None else 0.0
        return taken_s if taken_s > self._limit_s else 0.0

    def check(self) -> None:
        """Raises what work has failed with for which nobody waited."""
        if self._error:
            raise self._error

    def later(self, work: Callable[[], object], name: str = "") -> None:
        """Have it done."""
        self.check()
        self._put(_Work(do=work, is_awaited=False), name)

    def do(self, work: Callable[[], T], name: str = "") -> T:
        """What it returns or raises. Raises Unanswered, at once where the folder is known to be silent."""
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
        """Have it written into an open file of the folder, whatever other work has come to."""
        self._put(_Work(do=lambda: os.write(descriptor, text), is_awaited=False))

    def close(self) -> None:
        """Wait until all is done, though not for a folder that is silent."""
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
    """A log that lies in the shared folder, as stdout of a process that must not wait for it."""

    def __init__(self, folder: FolderThread, descriptor: int) -> None:
        self._folder, self._descriptor = folder, descriptor

    def write(self, text: str) -> int:
        """Have it written."""
        if text:
            self._folder.write(self._descriptor, text.encode(errors="replace"))
        return len(text)

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """What children write into."""
        return self._descriptor

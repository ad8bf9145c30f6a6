"""Waiting and working between two attempts, interrupted at once by a stop. The lease is renewed meanwhile."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from cluster.jobs.supervisor.signals import Signals

T = TypeVar("T")
_TICK_S = 0.1


class StopAsked(Exception):
    """Error: a signal asked the supervisor to end."""


class Patience:
    """Runner for everything that takes time between attempts. Each method raises StopAsked once the job is stopped.

    on_look: called ten times a second meanwhile. An exception from it ends the wait.
    """

    def __init__(self, signals: Signals, on_look: Callable[[], None]) -> None:
        self._signals, self._on_look = signals, on_look

    def sleep(self, seconds: float) -> None:
        """Sleep for so many seconds."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._look()
            time.sleep(min(_TICK_S, left))
        self._look()

    def wait_for(self, work: Callable[[], T], *, to_its_end: bool = False) -> T:
        """Run this work in a thread and return its result or raise its error.

        If a stop comes first, abandon the thread.

        to_its_end: wait for the work's end before a stop takes effect, so that the caller knows what to undo.
        """
        done: list[T] = []
        failed: list[BaseException] = []

        def do() -> None:
            try:
                done.append(work())
            except BaseException as e:
                failed.append(e)

        thread = threading.Thread(target=do, daemon=True)
        thread.start()
        while thread.is_alive():
            self._on_look() if to_its_end else self._look()
            thread.join(_TICK_S)
        self._look()
        if failed:
            raise failed[0]
        return done[0]

    def _look(self) -> None:
        if self._signals.ask_to_end:
            raise StopAsked
        self._on_look()

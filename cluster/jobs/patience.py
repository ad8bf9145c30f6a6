"""Waiting and working between two attempts, in which a stop is heard at once and the lease stays ours."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from cluster.jobs.signals import Signals

T = TypeVar("T")
_TICK_S = 0.1


class StopAsked(Exception):
    """A signal asked the supervisor to end."""


class Patience:
    """Everything that takes time between attempts is done through this; each of its methods raises StopAsked.

    on_look is called a few times a second meanwhile; what it raises ends the wait.
    """

    def __init__(self, signals: Signals, on_look: Callable[[], None]) -> None:
        self._signals, self._on_look = signals, on_look

    def sleep(self, seconds: float) -> None:
        """Do nothing for a while."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._look()
            time.sleep(min(_TICK_S, left))
        self._look()

    def wait_for(self, work: Callable[[], T], *, to_its_end: bool = False) -> T:
        """What this work returns or raises. It is done beside, and left to itself if a stop comes first.

        to_its_end: what it does must be known, so that it can be taken back: a stop is heard after it.
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

"""Heartbeat of a program to its caller, so that a frozen program is detected."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from cluster.ssh.onhost.frame import say

_EVERY_S = 5.0


@contextlib.contextmanager
def heard_of() -> Iterator[None]:
    """Send a heartbeat frame to the caller every 5 seconds, until the context ends."""
    ended = threading.Event()

    def beat() -> None:
        with contextlib.suppress(OSError):
            while not ended.wait(_EVERY_S):
                say({"here": True})

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

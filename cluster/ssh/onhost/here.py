"""That a program still runs, said to who started it: one that is stopped is given up there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from cluster.ssh.onhost.frame import say

_EVERY_S = 5.0


@contextlib.contextmanager
def heard_of() -> Iterator[None]:
    """While it lasts, who asked hears that this process runs."""
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

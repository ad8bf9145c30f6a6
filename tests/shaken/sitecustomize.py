"""With this folder on PYTHONPATH every Python program is shaken: at random its threads begin late, who waits for another
wakes late, and who has a connection or a child goes on late. A test that presumes who is quicker then fails on an idle
machine, too.
"""

import os
import random
import socket
import subprocess
import sys
import threading
import time
from typing import Any

MOST_S = float(os.environ.get("DLAMI_SHAKE_S", "0.4"))
_draw = random.Random()
_start, _wait = threading.Thread.start, threading.Condition.wait
_accept, _begin = socket.socket.accept, subprocess.Popen.__init__


def _late(share: float, most_s: float) -> None:
    if _draw.random() < share:
        time.sleep(_draw.random() * most_s)


def _start_late(thread: threading.Thread) -> None:
    run = thread.run

    def late() -> None:
        _late(0.4, MOST_S)
        run()

    thread.run = late  # type: ignore[method-assign]
    _start(thread)


def _wake_late(condition: threading.Condition, timeout: float | None = None) -> bool:
    woken = _wait(condition, timeout)
    condition.release()  # others come first, as where this thread had no processor
    try:
        _late(0.5, MOST_S / 4)
    finally:
        condition.acquire()
    return woken


def _accept_late(listening: socket.socket) -> Any:
    accepted = _accept(listening)
    if listening.gettimeout() != 0.0:
        _late(0.2, MOST_S / 4)
    return accepted


def _go_on_late(child: "subprocess.Popen[Any]", *args: Any, **options: Any) -> None:
    _begin(child, *args, **options)
    _late(0.15, MOST_S / 2)


threading.Thread.start = _start_late  # type: ignore[assignment,method-assign]
threading.Condition.wait = _wake_late  # type: ignore[assignment,method-assign]
socket.socket.accept = _accept_late  # type: ignore[assignment,method-assign]
subprocess.Popen.__init__ = _go_on_late  # type: ignore[assignment,method-assign]
sys.setswitchinterval(_draw.choice((1e-4, 5e-3, 2e-2)))

"""Warning line that the guard prints under every task's output shortly before the cluster ends.

AWS is not queried. A node reads the line from a local file. Elsewhere it is read from the master, over an SSH
connection that the task has already opened.
"""

import contextlib
import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

TOLD = Path("/run/dlami-guard.json")  # written by `cluster/guard/onhost/activity.py` on every node
_LIMIT_S = 1.0


def say_line() -> None:
    """Print the guard's warning line to stderr, if there is one.

    Every exception is suppressed: the task itself is done.
    """
    with contextlib.suppress(Exception):
        told = _on_this_host() or _over_an_open_connection()
        text, end = str(told.get("line", "")), float(told.get("end") or 0)
        if text and time.time() < end:
            print(f"guard: {text}", file=sys.stderr, flush=True)


def _on_this_host() -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return _object(TOLD.read_text())
    return {}


def _over_an_open_connection() -> dict[str, Any]:
    """Return what the guard reports on the master; {} unless the task has an open SSH connection to it."""
    if "cluster.ssh.fanout" not in sys.modules:
        return {}
    from cluster.inventory import load_cluster
    from cluster.ssh import mux
    from cluster.ssh.options import way_to

    cluster = load_cluster()
    socket = way_to(cluster.master, cluster.access).socket
    if not cluster.stack or not socket.exists():
        return {}
    with Path(os.devnull).open("rb") as nothing:
        channel = mux.Channel(socket, f"cat {TOLD}", nothing.fileno(), _LIMIT_S)
    said, deadline = bytearray(), time.monotonic() + _LIMIT_S
    try:
        while select.select([channel.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = os.read(channel.stdout, 65536)
            if not data:
                break
            said += data
    finally:
        channel.close()
    return _object(said.decode(errors="replace").rpartition("\n")[2])


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text or "{}")
    return found if isinstance(found, dict) else {}

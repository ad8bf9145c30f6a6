"""Free TCP port of this host, outside the kernel's ephemeral range."""

from __future__ import annotations

import contextlib
import random
import socket

_TRIES = 50


def free_port(of: int = 1, rest: int = 0) -> int:
    """Return a free port with this rest when divided by `of`; 0 if none was found.

    Callers with different rests never get the same port.
    """
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            first = int(file.read().split()[0])
    except (OSError, ValueError):
        first = 32768
    begin, end = (20000, first) if first > 21000 else (61000, 65000)
    for _ in range(_TRIES):
        port = random.randrange(begin // of + 1, end // of) * of + rest
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    return 0

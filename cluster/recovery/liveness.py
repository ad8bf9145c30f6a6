"""Liveness of a job's hosts, probed by TCP connections: any answer of the kernel counts, even a refusal.

mpirun detects a dead host by keepalive, but only on an idle connection. With an unacknowledged message the kernel
retries for a quarter of an hour. The supervisor's own probes detect it after at most LOOKS * LOOK_S + ANSWER_S: 14.5 s.
"""

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

LOOK_S = 3.0  # from one probe to the next
ANSWER_S = 2.5  # time for an answer; the kernel sends two SYNs within it
LOOKS = 4  # failed probes in a row after which a host counts as lost
_PORT = 22


def silent_hosts(addresses: Iterable[str], wait_s: float = ANSWER_S) -> set[str]:
    """Probe all of these addresses at once. Return those that do not answer within the time."""
    open_ones: dict[str, socket.socket] = {}
    silent: set[str] = set()
    with selectors.DefaultSelector() as selector:
        try:
            for address in set(addresses):
                _ask(address, open_ones, silent, selector)
            deadline = time.monotonic() + wait_s
            is_over = False
            while open_ones and not is_over:  # select once more if time is up: this process may have been delayed
                patience = deadline - time.monotonic()
                is_over = patience <= 0
                for key, _ in selector.select(max(0.0, patience)):
                    connection = open_ones.pop(key.data)
                    selector.unregister(connection)
                    _note(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), key.data, silent)
                    connection.close()
            silent |= set(open_ones)
        finally:
            for connection in open_ones.values():
                connection.close()
    return silent


class Presence:
    """Thread that probes hosts from `start` to `close` and counts each host's consecutive failures.

    A host that never answered is not judged: a firewall may be in the way.
    """

    def __init__(self, addresses: Sequence[str], look: Callable[[Iterable[str]], set[str]] = silent_hosts) -> None:
        self._addresses, self._look = tuple(addresses), look
        self._silent_looks: dict[str, int] = {}  # of hosts that answered before
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> "Presence":
        """Start probing."""
        if self._addresses:
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop probing."""
        self._end.set()

    def look(self) -> None:
        """Probe all hosts once."""
        silent = self._look(self._addresses)
        for address in self._addresses:
            if address not in silent:
                self._silent_looks[address] = 0
            elif address in self._silent_looks:
                self._silent_looks[address] += 1

    def lost(self) -> str | None:
        """Return a host that answered before and then failed four probes in a row, or None."""
        return next((a for a, n in self._silent_looks.copy().items() if n >= LOOKS), None)

    def is_silent(self, address: str) -> bool:
        """Probe again: return True if a host that answered before has stopped answering."""
        return address in self._silent_looks and bool(self._look([address]))

    def gone(self) -> tuple[str, ...]:
        """Return all hosts that answered before and now fail two probes."""
        silent = self._look(list(self._silent_looks)) if self._silent_looks else set()
        return tuple(a for a in self._silent_looks if a in silent and self.is_silent(a))

    def _watch(self) -> None:
        while not self._end.is_set():
            began = time.monotonic()
            with contextlib.suppress(OSError):  # for instance no free descriptor: probe again
                self.look()
            self._end.wait(max(0.0, LOOK_S - (time.monotonic() - began)))


_ANSWERS = (0, errno.ECONNREFUSED, errno.ECONNRESET)


def _ask(address: str, open_ones: dict[str, socket.socket], silent: set[str], selector: selectors.BaseSelector) -> None:
    try:
        family, where = _resolved(address, _PORT)
    except OSError:
        silent.add(address)
        return
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.setblocking(False)
    said = connection.connect_ex(where)
    if said == errno.EINPROGRESS:
        open_ones[address] = connection
        selector.register(connection, selectors.EVENT_WRITE, address)
    else:
        _note(said, address, silent)
        connection.close()


_found: dict[str, tuple[socket.AddressFamily, Any]] = {}


def _resolved(address: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Resolve the address anew each time, because a replaced pod has a new address under its old name.

    If the lookup fails, returns the last result: an unreachable name server is not a lost host.
    """
    try:
        family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        _found[address] = family, where
    except OSError:
        if address not in _found:
            raise
    return _found[address]


def _note(said: int, address: str, silent: set[str]) -> None:
    if said not in _ANSWERS:
        silent.add(address)

"""Receiver: accepts connections from earlier hosts of the chain, of which the newest is used."""

from __future__ import annotations

import socket
import threading
import time

from cluster.broadcast.onhost.errors import LocalError, SenderLost, WireError
from cluster.broadcast.onhost.pipeline import BEAT_S
from cluster.broadcast.onhost.protocol import Tls, Wire, listening


class Upstream:
    """Listener at this host's private address for hosts that know the secret."""

    def __init__(self, news: threading.Condition, secret: bytes, silence_s: float, tls: Tls | None) -> None:
        self._news, self._secret, self._silence_s, self._tls = news, secret, silence_s, tls
        self._incoming: list[Wire] = []
        self._current: Wire | None = None

    @property
    def is_connected(self) -> bool:
        """Return True if an upstream host is connected now."""
        return self._current is not None

    def listen(self, address: str) -> None:
        """Start to accept connections. Raises LocalError if no port is free."""
        listener = listening(address, self._secret)
        if listener is None:
            raise LocalError("no port is free for the copy")
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def next(self, patience_s: float) -> Wire:
        """Return the next connection. Raises SenderLost if none comes within the time."""
        deadline = time.monotonic() + patience_s
        with self._news:
            self._current = None
            while not self._incoming:
                if time.monotonic() > deadline:
                    raise SenderLost("nothing more came from the host before it")
                self._news.wait(BEAT_S)
            self._current = self._incoming.pop()
            self._news.notify_all()
            return self._current

    def close(self) -> None:
        """Close all connections."""
        for wire in [*self._incoming, *([self._current] if self._current else [])]:
            wire.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            raw, _ = listener.accept()
            try:
                wire = Wire.accepted(raw, self._secret, self._silence_s, self._tls)
            except (OSError, WireError):
                raw.close()
                continue
            with self._news:
                self._incoming.append(wire)
                if self._current:
                    self._current.close()
                self._news.notify_all()

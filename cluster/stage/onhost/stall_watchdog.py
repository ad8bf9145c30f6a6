"""Stall watchdog: detects that nothing moves, because S3 never answers or a disk hangs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any


class Silence:
    """Watchdog that calls `act` once, when nothing has moved for `limit_s` seconds."""

    def __init__(self, limit_s: float, act: Callable[[], None]) -> None:
        self._limit_s, self._act, self._heard = limit_s, act, time.monotonic()
        self._over = threading.Event()
        self.asked_of_disk: set[str] = set()  # paths for which this host still waits for its disk

    @contextlib.contextmanager
    def watched(self, client: Any) -> Iterator[None]:
        """Watch until the context ends. Every response to this boto3 client counts as movement."""
        client.meta.events.register("response-received.s3", self._on_response)
        self.heard()
        threading.Thread(target=self._wait, daemon=True).start()
        try:
            yield
        finally:
            self._over.set()

    def heard(self) -> None:
        """Record that something has moved."""
        self._heard = time.monotonic()

    @contextlib.contextmanager
    def asking_disk(self, path: str) -> Iterator[None]:
        """Mark in the context that this host waits for its disk, not for S3. Its end counts as movement."""
        self.asked_of_disk.add(path)
        try:
            yield
        finally:
            self.asked_of_disk.discard(path)
            self.heard()

    def _on_response(self, response_dict: Any = None, **_: Any) -> None:
        if response_dict is not None:
            self.heard()

    def _wait(self) -> None:
        while (left := self._heard + self._limit_s - time.monotonic()) > 0:
            if self._over.wait(max(left, 0.1)):
                return
        self._act()

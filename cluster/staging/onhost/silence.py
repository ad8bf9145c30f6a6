"""Noticing that nothing moves: an S3 that takes connections and never answers, a disk that hangs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any


class Silence:
    """Hears of everything that moves; acts once, when nothing has for so long."""

    def __init__(self, limit_s: float, act: Callable[[], None]) -> None:
        self._limit_s, self._act, self._heard = limit_s, act, time.monotonic()
        self._over = threading.Event()
        self.asked_of_disk: set[str] = set()  # paths of which this host's disk has not told yet what is there

    @contextlib.contextmanager
    def watched(self, client: Any) -> Iterator[None]:
        """While it lasts; every answer of this boto3 client counts as heard, whatever it says."""
        client.meta.events.register("response-received.s3", self._on_response)
        self.heard()
        threading.Thread(target=self._wait, daemon=True).start()
        try:
            yield
        finally:
            self._over.set()

    def heard(self) -> None:
        """Something has moved."""
        self._heard = time.monotonic()

    @contextlib.contextmanager
    def asking_disk(self, path: str) -> Iterator[None]:
        """While it lasts, it is the disk that is waited for, and not S3; its answer is heard."""
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

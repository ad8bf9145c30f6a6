"""What has come to this host and can be passed on: what receiving and passing on share, each in a thread of its own."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from cluster.copying.onhost import tree
from cluster.copying.onhost.errors import Changed, LocalError, Stopped
from cluster.copying.onhost.parts import Claims, Need
from cluster.copying.onhost.store import Reader, Stream
from cluster.copying.onhost.wire import chunk_digest

BEAT_S = 1.0  # how often one says that one is still there
_RECENT = 64  # chunks kept in memory for the host after


class Flow:
    """The stream of a copy on this host. What is awaited is told by `news`."""

    def __init__(self, secret: bytes, *, is_head: bool) -> None:
        self.is_head = is_head
        self.news = threading.Condition()
        self.manifest: dict[str, Any] | None = None
        self.entries: list[tree.Entry] = []
        self.stream: Stream | None = None
        self.source: Reader | None = None
        self.claims: dict[int, tuple[int, Claims]] = {}  # where files go on of which all have the beginning
        self.ready = 0  # chunks that can be passed on
        self.over = ""  # why all hosts must stop
        self._secret = secret
        self._mine: Need | None = None  # what this host needs; None while it is not known
        self._below: Need | None = None  # and those after it
        self._digests: list[bytes] = []
        self._recent: dict[int, tuple[bytes | bytearray, bytes]] = {}
        self._is_stopped = False

    def wait_for(self, is_so: Callable[[], bool], beat: Callable[[], None]) -> None:
        """Until it is so, with a beat every second. Raises Stopped if this host does not go on."""
        while True:
            with self.news:
                self.news.wait_for(lambda: is_so() or self._is_stopped, BEAT_S)
                if self._is_stopped:
                    raise Stopped
                if is_so():
                    return
            beat()

    def stop(self, over: str = "") -> None:
        """This host does not go on; with a reason none of them can."""
        with self.news:
            self.over = self.over or over
            self._is_stopped = True
            self.news.notify_all()

    def set_manifest(self, manifest: dict[str, Any], entries: Sequence[tree.Entry]) -> None:
        """What is to be copied."""
        with self.news:
            self.manifest, self.entries = manifest, list(entries)
            self.news.notify_all()

    def set_need(self, *, mine: Need | None = None, below: Need | None = None) -> None:
        """What this host needs, or all after it, as far as that is not known already."""
        with self.news:
            self._mine, self._below = self._mine or mine, self._below or below
            self.news.notify_all()

    @property
    def mine(self) -> Need | None:
        """What this host needs; None while it is not known."""
        return self._mine

    def need(self) -> Need | None:
        """Of this host and all after it; None while it is not known."""
        return self._mine.merged(self._below) if self._mine is not None and self._below is not None else None

    def begin(self, stream: Stream, source: Reader, claims: dict[int, tuple[int, Claims]], *, is_whole: bool) -> None:
        """The stream is known. The head has all of it from the beginning."""
        with self.news:
            self.stream, self.source, self.claims = stream, source, claims
            if is_whole:
                self._digests, self.ready = [b""] * stream.num_chunks, stream.num_chunks
            self.news.notify_all()

    def publish(self, number: int, data: bytes | bytearray, digest: bytes) -> None:
        """A chunk has come and is written."""
        with self.news:
            self._digests.append(digest)
            self._recent[number] = (data, digest)
            self._recent.pop(number - _RECENT, None)
            self.ready = number + 1
            self.news.notify_all()

    def chunk(self, number: int) -> tuple[bytes | bytearray, bytes]:
        """A chunk from memory, or read again. Raises LocalError if it is not what it was."""
        with self.news:
            if number in self._recent:
                return self._recent[number]
        assert self.source
        try:
            data = self.source.read(number)
        except FileNotFoundError:  # it got its name this moment
            data = self.source.read(number)
        return data, self.check(number, data)

    def check(self, number: int, data: bytes | bytearray) -> bytes:
        """The digest of a chunk that was read. Raises LocalError if it was another one before."""
        digest = chunk_digest(self._secret, number, data)
        with self.news:
            if self._digests[number] not in (b"", digest):
                assert self.stream
                names = ", ".join(e.path or "it" for _, e, _, _ in self.stream.parts(number))
                raise Changed(names[:200]) if self.is_head else LocalError(f"{names[:200]}: changed here meanwhile")
            self._digests[number] = digest
        return digest

    def root(self) -> str:
        """The digest of all chunks' digests."""
        return hashlib.sha256(b"".join(self._digests)).hexdigest()

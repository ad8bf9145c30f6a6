"""State of a copy on this host, shared by the receiving thread and the sending thread."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from cluster.broadcast.onhost import file_tree
from cluster.broadcast.onhost.errors import Changed, CopyStopped, LocalError
from cluster.broadcast.onhost.parts import Claims, Need
from cluster.broadcast.onhost.protocol import chunk_digest
from cluster.broadcast.onhost.store import ChunkReader, Stream

BEAT_S = 1.0  # interval of the heartbeats between relays
_RECENT = 64  # chunks kept in memory for the host after


class Flow:
    """State of a copy on this host, shared by its threads. The condition `news` signals each change."""

    def __init__(self, secret: bytes, *, is_head: bool) -> None:
        self.is_head = is_head
        self.news = threading.Condition()
        self.manifest: dict[str, Any] | None = None
        self.entries: list[file_tree.FileEntry] = []
        self.stream: Stream | None = None
        self.source: ChunkReader | None = None
        self.claims: dict[int, tuple[int, Claims]] = {}  # offset at which each begun file resumes
        self.ready = 0  # chunks that can be passed on
        self.over = ""  # why all hosts must stop
        self._secret = secret
        self._mine: Need | None = None  # what this host needs; None while it is not known
        self._below: Need | None = None  # the needs of the hosts after it
        self._digests: list[bytes] = []
        self._recent: dict[int, tuple[bytes | bytearray, bytes]] = {}
        self._is_stopped = False

    def wait_for(self, is_so: Callable[[], bool], beat: Callable[[], None]) -> None:
        """Wait until `is_so` is true, and call `beat` every second. Raises CopyStopped if this host stops."""
        while True:
            with self.news:
                self.news.wait_for(lambda: is_so() or self._is_stopped, BEAT_S)
                if self._is_stopped:
                    raise CopyStopped
                if is_so():
                    return
            beat()

    def stop(self, over: str = "") -> None:
        """Stop this host's part in the copy. With a reason, all hosts after it stop, too."""
        with self.news:
            self.over = self.over or over
            self._is_stopped = True
            self.news.notify_all()

    def set_manifest(self, manifest: dict[str, Any], entries: Sequence[file_tree.FileEntry]) -> None:
        """Set the manifest and the list of entries to copy."""
        with self.news:
            self.manifest, self.entries = manifest, list(entries)
            self.news.notify_all()

    def set_need(self, *, mine: Need | None = None, below: Need | None = None) -> None:
        """Set the needs of this host, or of all hosts after it, unless they are already known."""
        with self.news:
            self._mine, self._below = self._mine or mine, self._below or below
            self.news.notify_all()

    @property
    def mine(self) -> Need | None:
        """Return the needs of this host, None while they are not known."""
        return self._mine

    def need(self) -> Need | None:
        """Return the combined needs of this host and all after it, None while they are not known."""
        return self._mine.merged(self._below) if self._mine is not None and self._below is not None else None

    def begin(
        self, stream: Stream, source: ChunkReader, claims: dict[int, tuple[int, Claims]], *, is_whole: bool
    ) -> None:
        """Set the stream, the source to read it from, and the claims. With `is_whole` (the head) all of it is ready."""
        with self.news:
            self.stream, self.source, self.claims = stream, source, claims
            if is_whole:
                self._digests, self.ready = [b""] * stream.num_chunks, stream.num_chunks
            self.news.notify_all()

    def publish(self, number: int, data: bytes | bytearray, digest: bytes) -> None:
        """Record that a chunk has been received and written."""
        with self.news:
            self._digests.append(digest)
            self._recent[number] = (data, digest)
            self._recent.pop(number - _RECENT, None)
            self.ready = number + 1
            self.news.notify_all()

    def chunk(self, number: int) -> tuple[bytes | bytearray, bytes]:
        """Return a chunk and its digest, from memory or read again from disk. Raises LocalError if it has changed."""
        with self.news:
            if number in self._recent:
                return self._recent[number]
        assert self.source
        try:
            data = self.source.read(number)
        except FileNotFoundError:  # it was renamed to its final name just now
            data = self.source.read(number)
        return data, self.check(number, data)

    def check(self, number: int, data: bytes | bytearray) -> bytes:
        """Return the digest of a chunk that was read. Raises LocalError if it differs from the earlier digest."""
        digest = chunk_digest(self._secret, number, data)
        with self.news:
            if self._digests[number] not in (b"", digest):
                assert self.stream
                names = ", ".join(e.path or "it" for _, e, _, _ in self.stream.parts(number))
                raise Changed(names[:200]) if self.is_head else LocalError(f"{names[:200]}: changed here meanwhile")
            self._digests[number] = digest
        return digest

    def root(self) -> str:
        """Return the digest of all chunks' digests."""
        return hashlib.sha256(b"".join(self._digests)).hexdigest()

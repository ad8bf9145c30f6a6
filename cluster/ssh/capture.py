"""Capture of output of any size in bounded memory: small output stays in memory, larger output goes to disk."""

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

STREAM_BYTES = 8 << 20  # of one stream in memory
TOTAL_BYTES = 256 << 20  # of all streams of a fan-out in memory
HEAD_BYTES = 64 << 10  # in memory, of a stream that went to disk


@dataclass(frozen=True)
class Spilled:
    """File on disk with a stream that was too long for memory."""

    path: Path  # all of it
    size: int  # bytes
    sha256: str


class MemoryBudget:
    """Memory budget that the streams of one fan-out share, and the folder for streams that exceed it."""

    def __init__(
        self, folder: Callable[[], Path], stream_bytes: int = STREAM_BYTES, total_bytes: int = TOTAL_BYTES
    ) -> None:
        self.folder, self.stream_bytes, self.left = folder, stream_bytes, total_bytes


class Capture:
    """Captured output of one stream."""

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._parts: list[bytes] = []
        self._size = 0
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()

    def add(self, data: bytes) -> None:
        """Add the next bytes. Raises OSError if they must go to disk and cannot."""
        self._size += len(data)
        if self._file is None:
            self._parts.append(data)
            self._memory.left -= len(data)
            if self._size > self._memory.stream_bytes or self._memory.left < 0:
                self._spill()
        else:
            self._file.write(data)
            self._hash.update(data)

    def head(self) -> bytes:
        """Return the part of the stream that is in memory."""
        return b"".join(self._parts)

    def taken(self) -> tuple[bytes, Spilled | None]:
        """Close the capture. Return what is in memory, and the file with all of it if that is not the whole stream."""
        kept = b"".join(self._parts)
        if self._file is None:
            return kept, None
        self._file.close()
        return kept, Spilled(Path(self._file.name), self._size, self._hash.hexdigest())

    def _spill(self) -> None:
        whole = b"".join(self._parts)
        self._memory.left += len(whole)
        self._parts = [whole[:HEAD_BYTES]]
        with tempfile.NamedTemporaryFile(dir=self._memory.folder(), prefix="output-", delete=False) as file:
            name = file.name
        self._file = Path(name).open("wb")  # noqa: SIM115  closed by taken()
        self._file.write(whole)
        self._hash.update(whole)

"""Frames: answers that arrive completely or not at all. Each has a mark, its length and a checksum before it.

A shell's start-up file on the host may print before us, and a connection may break in the middle. Neither is taken for
an answer. Hosts write frames, the operator's side reads them.
"""

from __future__ import annotations

import json
import sys
import zlib
from typing import Any

MARK = b"\x1edlami "  # JSON never contains its first byte, so a mark inside a frame means that the frame was cut
_HEAD_BYTES = 32  # a length and a checksum are shorter than this


def framed(record: Any) -> bytes:
    """Return a value as a frame: mark, length, CRC-32, JSON, a newline."""
    body = json.dumps(record).encode()
    return b"%s%d %08x %s\n" % (MARK, len(body), zlib.crc32(body), body)


def say(record: Any) -> None:
    """Print a value as a frame, and flush."""
    sys.stdout.buffer.write(framed(record))
    sys.stdout.buffer.flush()


class Frames:
    """Reader of the frames in a stream of output. It skips everything else in the stream."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def is_cut(self) -> bool:
        """Return True if a frame has begun that is not complete."""
        return self._rest.startswith(MARK)

    def feed(self, data: bytes) -> list[Any]:
        """Add data. Return the values that are complete now, in order."""
        self._rest += data
        found: list[Any] = []
        while self._to_mark():
            head = bytes(self._rest[len(MARK) : len(MARK) + _HEAD_BYTES])
            size, checksum, _ = (*head.split(b" ", 2), b"", b"")[:3]
            if head.count(b" ") < 2 and len(head) < _HEAD_BYTES:
                break
            if not (size.isdigit() and len(checksum) == 8):
                self._skip_mark()
                continue
            begin = len(MARK) + len(size) + len(checksum) + 2
            body = bytes(self._rest[begin : begin + int(size)])
            if len(body) < int(size) and self._rest.find(MARK, len(MARK)) < 0:
                break
            if len(body) == int(size) and b"%08x" % zlib.crc32(body) == checksum:
                found.append(json.loads(body))
                del self._rest[: begin + int(size)]
            else:
                self._skip_mark()
        return found

    def _to_mark(self) -> bool:
        """Drop what comes before the next mark. Return True if there is one."""
        at = self._rest.find(MARK)
        del self._rest[: at if at >= 0 else max(0, len(self._rest) - len(MARK) + 1)]
        return at >= 0

    def _skip_mark(self) -> None:
        del self._rest[: len(MARK)]

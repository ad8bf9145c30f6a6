"""SPDY/3.1 frames, as far as kubectl's port-forward uses them: open a stream, send data, end it.

Source: the SPDY protocol's draft 3.1, sections 2.2 and 2.6.
"""

import struct
import zlib
from dataclasses import dataclass, field

OPENED, REPLY, RESET, PING, GOAWAY, DATA = 1, 2, 3, 6, 7, 0  # kinds of frames; 0 stands for data frames
LAST = 0x01  # the flag of a stream's last frame in one direction
_CONTROL, _VERSION = 0x8000, 3
_NAMES = """
options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow
authorization cache-control connection content-base content-encoding content-language content-length content-location
content-md5 content-range content-type date etag expect expires from host if-match if-modified-since if-none-match
if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate proxy-authorization range
referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate method get
status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin
"""
_REST = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _word(text: str) -> bytes:
    return struct.pack("!I", len(text)) + text.encode()


DICTIONARY = b"".join(_word(name.replace("_", " ")) for name in _NAMES.split()) + _REST.encode()
"""What both sides' compression of headers begins with."""


@dataclass(frozen=True, kw_only=True)
class SpdyFrame:
    """Frame from the client."""

    kind: int
    stream: int  # of PING its number
    flags: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""

    @property
    def is_last(self) -> bool:
        """True if the client sends no more on this stream."""
        return bool(self.flags & LAST)


class SpdyParser:
    """Parser of received frames. All headers of a connection are one compressed stream."""

    def __init__(self) -> None:
        self._came, self._headers = bytearray(), zlib.decompressobj(zdict=DICTIONARY)

    def feed(self, data: bytes) -> list[SpdyFrame]:
        """Add received bytes. Return the frames that are complete. Raises ValueError if they are not SPDY."""
        self._came += data
        found = []
        while len(self._came) >= 8:
            first, rest = struct.unpack_from("!II", self._came)
            size = rest & 0xFFFFFF
            if len(self._came) < 8 + size:
                break
            content = bytes(self._came[8 : 8 + size])
            del self._came[: 8 + size]
            found.append(self._frame(first, rest >> 24, content))
        return found

    def _frame(self, first: int, flags: int, content: bytes) -> SpdyFrame:
        if not first >> 31:
            return SpdyFrame(kind=DATA, stream=first, flags=flags, data=content)
        version, kind = (first >> 16) & 0x7FFF, first & 0xFFFF
        if version != _VERSION or len(content) < 4:
            raise ValueError(f"a frame of SPDY/{version}, kind {kind}")
        (stream,) = struct.unpack_from("!I", content)
        headers = self._read_headers(content[10:]) if kind == OPENED else {}
        return SpdyFrame(kind=kind, stream=stream, flags=flags, headers=headers)

    def _read_headers(self, compressed: bytes) -> dict[str, str]:
        try:
            plain = self._headers.decompress(compressed)
            (count,), at, words = struct.unpack_from("!I", plain), 4, []
            for _ in range(2 * count):
                (size,) = struct.unpack_from("!I", plain, at)
                words.append(plain[at + 4 : at + 4 + size].decode())
                at += 4 + size
        except (zlib.error, struct.error) as e:
            raise ValueError(f"the headers of a stream cannot be read: {e}") from None
        return dict(zip(words[::2], words[1::2], strict=True))


class SpdySerializer:
    """Serializer of sent frames."""

    def __init__(self) -> None:
        self._headers = zlib.compressobj(zdict=DICTIONARY)

    def reply(self, stream: int) -> bytes:
        """Return the frame that accepts a stream."""
        none = self._headers.compress(struct.pack("!I", 0)) + self._headers.flush(zlib.Z_SYNC_FLUSH)
        return _control(REPLY, struct.pack("!I", stream) + none)

    @staticmethod
    def pong(number: int) -> bytes:
        """Return the answer to a PING."""
        return _control(PING, struct.pack("!I", number))

    @staticmethod
    def data(stream: int, content: bytes = b"", *, is_last: bool = False) -> bytes:
        """Return a data frame of a stream; `is_last` marks the end of the stream."""
        return struct.pack("!II", stream, (LAST if is_last else 0) << 24 | len(content)) + content


def _control(kind: int, content: bytes) -> bytes:
    return struct.pack("!HHI", _CONTROL | _VERSION, kind, len(content)) + content

"""Server side of a WebSocket (RFC 6455): the content of its binary messages, as bytes in both directions."""

import base64
import hashlib
import socket
import ssl
import struct

_TEXT, _BINARY, _CLOSE, _PING, _PONG = 1, 2, 8, 9, 10
_AT_ONCE = 1 << 16
_MOST_BYTES = 1 << 24  # of one message: kubectl's have 32 KiB


def accepted(key: str) -> str:
    """Return the answer to a client's `Sec-WebSocket-Key`."""
    return base64.b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()).decode()


class WebSocket:
    """Connection after the WebSocket handshake. Only one thread may use it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._came = connection, bytearray()

    def fileno(self) -> int:
        """Return the connection's file descriptor, for selectors."""
        return self._connection.fileno()

    def receive(self) -> bytes | None:
        """Return the data that has arrived; b"" for an incomplete message, None at the end. Raises OSError."""
        data = self._connection.recv(_AT_ONCE)
        while isinstance(self._connection, ssl.SSLSocket) and self._connection.pending():
            data += self._connection.recv(_AT_ONCE)  # decrypted already, so a selector does not report these
        if not data:
            return None
        self._came += data
        found = b""
        while (frame := self._frame()) is not None:
            kind, content = frame
            if kind == _CLOSE:
                self._send(_CLOSE, content[:2])
                return found or None
            if kind == _PING:
                self._send(_PONG, content)
            elif kind not in (_TEXT, _PONG):
                found += content  # a binary message, or a later part of one
        return found

    def send(self, data: bytes) -> None:
        """Send one message. Raises OSError."""
        self._send(_BINARY, data)

    def _send(self, kind: int, content: bytes) -> None:
        size = len(content)
        if size < 126:
            head = struct.pack("!BB", 0x80 | kind, size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x80 | kind, 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | kind, 127, size)
        self._connection.sendall(head + content)

    def _frame(self) -> tuple[int, bytes] | None:
        """Return kind and content of the next complete frame, or None. Raises OSError for an invalid frame."""
        if len(self._came) < 2:
            return None
        kind, size, at = self._came[0] & 0x0F, self._came[1] & 0x7F, 2
        for mark, form in ((126, "!H"), (127, "!Q")):
            if size == mark:
                at += struct.calcsize(form)
                if len(self._came) < at:
                    return None
                (size,) = struct.unpack_from(form, self._came, 2)
                break
        if not self._came[1] & 0x80 or size > _MOST_BYTES:
            raise OSError("a client's frame is masked, and none is so large")
        if len(self._came) < at + 4 + size:
            return None
        mask, content = self._came[at : at + 4], self._came[at + 4 : at + 4 + size]
        del self._came[: at + 4 + size]
        repeated = (bytes(mask) * (size // 4 + 1))[:size]
        plain = int.from_bytes(content, "big") ^ int.from_bytes(repeated, "big")
        return kind, plain.to_bytes(size, "big")

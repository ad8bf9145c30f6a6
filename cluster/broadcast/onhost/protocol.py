"""Protocol between relays: mutual authentication by a shared secret, then messages with a keyed digest.

Runs on every host. The secret itself is never sent. If the transfer has a certificate, all traffic is TLS 1.3.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import struct
import time
from typing import Any

from cluster.broadcast.onhost.errors import Over, WireError

_MAGIC = b"DLAMI-COPY-1"
_HEADER = struct.Struct(">cIQ")  # kind, length, number of the chunk
_DIGEST = 32
_LONGEST = 64 << 20
_PROOF_S = 5.0  # limit for each message of a peer until it is authenticated
PORTS = 8  # number of ports: a relay takes the first free one


class Wire:
    """Authenticated connection to another relay."""

    def __init__(self, raw: socket.socket, secret: bytes, silence_s: float) -> None:
        self._raw, self._secret, self._silence_s = raw, secret, silence_s
        self._whole = self._more = 0  # socket flags: MSG_WAITALL to receive, MSG_MORE to send

    @classmethod
    def connect(cls, address: str, secret: bytes, silence_s: float, tls: Tls | None, patience_s: float) -> Wire:
        """Connect to a relay, which may still be starting. Raises WireError if none answers within the patience."""
        deadline, last = time.monotonic() + patience_s, "nobody there"
        while time.monotonic() < deadline:
            for port in ports(secret):
                left = max(0.1, min(3.0, deadline - time.monotonic()))
                try:
                    raw = socket.create_connection((address, port), timeout=left)
                except OSError as e:
                    last = str(e.strerror or e)
                    if not isinstance(e, ConnectionRefusedError):
                        break
                    continue
                try:
                    _at_once(raw)
                    raw.settimeout(left)
                    wire = cls(tls.client(raw) if tls else raw, secret, silence_s)
                    wire._prove(first=True)
                    return wire
                except (OSError, WireError) as e:
                    last = str(e)
                    raw.close()
            time.sleep(0.02)
        raise WireError(last)

    @classmethod
    def accepted(cls, raw: socket.socket, secret: bytes, silence_s: float, tls: Tls | None) -> Wire:
        """Authenticate a connection that another relay opened. Raises WireError if it does not know the secret."""
        _at_once(raw)
        raw.settimeout(_PROOF_S)
        wire = cls(tls.server(raw) if tls else raw, secret, silence_s)
        wire._prove(first=False)
        return wire

    def say(self, **message: Any) -> None:
        """Send a small message."""
        body = json.dumps(message).encode()
        self._send(b"J", 0, body, self._digest(b"J", 0, body))

    def send_chunk(self, number: int, data: bytes | bytearray, digest: bytes, *, hole: bool) -> None:
        """Send a chunk. Of a chunk that is all zeros only the length is sent."""
        self._send(b"0" if hole else b"C", number, struct.pack(">I", len(data)) if hole else data, digest)

    def hear(self) -> tuple[str, Any, bytes | bytearray, bytes]:
        """Return the next verified message: "J" and its contents, or "C", a chunk's number, bytes and digest.

        Heartbeats are skipped. Raises Over if the head gave up, WireError and OSError.
        """
        while True:
            kind, length, number = _HEADER.unpack(self._receive(_HEADER.size))
            if length > _LONGEST:
                raise WireError("a message of impossible length")
            digest, body = bytes(self._receive(_DIGEST)), self._receive(length)
            if kind == b"0":
                body = bytearray(struct.unpack(">I", body)[0])
            if not hmac.compare_digest(digest, self._digest(b"J" if kind == b"J" else b"C", number, body)):
                raise WireError("what arrived is not what was sent")
            if kind != b"J":
                return "C", number, body, digest
            message = json.loads(body)
            if message.get("kind") == "over":
                raise Over(message["why"])
            if message.get("kind") != "wait":
                return "J", message, b"", b""

    def hear_message(self) -> dict[str, Any]:
        """Return the next message, where no chunk is due. Raises the errors of `hear`."""
        kind, message, _, _ = self.hear()
        if kind != "J":
            raise WireError("a chunk out of turn")
        return dict(message)

    def chunk_digest(self, number: int, data: bytes | bytearray) -> bytes:
        """Return the keyed digest of a chunk, which is the same on every hop."""
        return self._digest(b"C", number, data)

    def close(self) -> None:
        """Close the connection, even while another thread reads from it."""
        with contextlib.suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)
        self._raw.close()

    def _digest(self, kind: bytes, number: int, body: bytes | bytearray) -> bytes:
        return chunk_digest(self._secret, number, body, kind)

    def _send(self, kind: bytes, number: int, body: bytes | bytearray, digest: bytes) -> None:
        parts = [_HEADER.pack(kind, len(body), number) + digest, body]
        if len(body) < 4096:
            parts = [b"".join(parts)]
        for n, part in enumerate(parts, 1):
            view, last = memoryview(part), time.monotonic()
            flags = self._more if n < len(parts) else 0
            while view:
                try:
                    view = view[self._raw.send(view, flags) :]
                except BlockingIOError:
                    self._check_silence(last)
                else:
                    last = time.monotonic()  # each piece has its own time: slow is not silent

    def _receive(self, length: int) -> bytearray:
        data = bytearray(length)
        view, last = memoryview(data), time.monotonic()
        while view:
            try:
                n = self._raw.recv_into(view, 0, self._whole)
            except BlockingIOError:
                self._check_silence(last)
                continue
            if n == 0:
                raise WireError("hung up")
            view, last = view[n:], time.monotonic()
        return data

    def _check_silence(self, last: float) -> None:
        """Raise TimeoutError if nothing has moved for `silence_s`. Called after each of the kernel's short waits."""
        if time.monotonic() - last >= self._silence_s:
            raise TimeoutError("silent")

    def _be_patient(self) -> None:
        """Set the timeouts so that the peer may be silent for `silence_s`.

        The kernel waits until a whole chunk is there, so that this thread wakes only once for it.
        """
        if type(self._raw) is not socket.socket:  # TLS needs its bytes as they arrive
            self._raw.settimeout(self._silence_s)
            return
        # At the end of each short wait the kernel returns what has arrived.
        limit = struct.pack("@ll", 0, int(min(0.5, self._silence_s / 4) * 1e6))
        self._raw.settimeout(None)
        for side in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._raw.setsockopt(socket.SOL_SOCKET, side, limit)
        self._whole, self._more = socket.MSG_WAITALL, socket.MSG_MORE

    def _prove(self, *, first: bool) -> None:
        """Prove to the other side that this one knows the secret, and verify the other's proof.

        Both proofs cover random numbers of both sides. Raises WireError if the other side does not know the secret.
        """
        mine = os.urandom(16)
        self._raw.sendall(_MAGIC + mine)
        theirs = bytes(self._receive(len(_MAGIC) + 16))
        if not theirs.startswith(_MAGIC):
            raise WireError("something else listens there")
        numbers = mine + theirs[-16:] if first else theirs[-16:] + mine
        me, other = (b"first", b"second") if first else (b"second", b"first")
        self._raw.sendall(hmac.digest(self._secret, me + numbers, "sha256"))
        if not hmac.compare_digest(bytes(self._receive(32)), hmac.digest(self._secret, other + numbers, "sha256")):
            raise WireError("it does not know this transfer's secret")
        self._be_patient()


def _at_once(raw: socket.socket) -> None:
    """Disable Nagle's algorithm. Waiting for the peer's acknowledgement would cost 40 ms on every host of the chain."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Tls:
    """TLS between relays that trust only one certificate, made for one transfer."""

    def __init__(self, certificate: str, key: str) -> None:
        import ssl  # imported here: these two take longer than all other imports
        import tempfile

        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client.check_hostname = False
        with tempfile.NamedTemporaryFile("w", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
            file.write(key + certificate)
            file.flush()
            for context in (self._server, self._client):
                context.minimum_version = ssl.TLSVersion.TLSv1_3
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_cert_chain(file.name)
                context.load_verify_locations(cadata=certificate)

    def server(self, raw: socket.socket) -> socket.socket:
        """Return the TLS socket of the accepting side."""
        return self._server.wrap_socket(raw, server_side=True)

    def client(self, raw: socket.socket) -> socket.socket:
        """Return the TLS socket of the connecting side."""
        return self._client.wrap_socket(raw)


def chunk_digest(secret: bytes, number: int, body: bytes | bytearray, kind: bytes = b"C") -> bytes:
    """Return the SHA-256, keyed with the secret, of the chunk's kind, number, length and bytes."""
    digest = hashlib.sha256(secret + kind + struct.pack(">QQ", number, len(body)))
    digest.update(body)
    return digest.digest()


def listening(address: str, secret: bytes) -> socket.socket | None:
    """Return a socket that listens at the first free port of this transfer, None if all are in use.

    It listens only at the private address that the other hosts use, never at all addresses.
    """
    for port in ports(secret):
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((socket.getaddrinfo(address, None)[0][4][0], port))
        except OSError:
            listener.close()
            continue
        listener.listen(8)
        return listener
    return None


def ports(secret: bytes) -> list[int]:
    """Return the ports that this transfer's relays may use. They are below the kernel's ephemeral ports."""
    stream = hashlib.sha256(b"ports" + secret).digest()
    return [10240 + int.from_bytes(stream[2 * n : 2 * n + 2], "big") % 22000 for n in range(PORTS)]

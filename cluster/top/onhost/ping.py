"""How soon a packet of this host is back from others: the kernel's own answers and times, so that a busy host is fast.

The shortest of several ways counts: a host that is slow is so to all of them, and a slow other makes nobody else slow.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time

_WAIT_S = 0.1  # for the first to be back
_ECHO, _ECHO_REPLY = 8, 0
_TIMESTAMPS = 35  # SO_TIMESTAMPNS and SCM_TIMESTAMPNS
_TIMESPEC = struct.Struct("@qq")
_HEAD = struct.Struct("!BBHHH")
_IP_HEAD = 20
_TRIES = 3  # without any answer; then these networks answer no ping


class Ping:
    """Echo requests to a few others, in a socket that asks for no rights where the system allows that."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self._id, self._sequence, self._unheard = os.getpid() & 0xFFFF, 0, 0
        self._was_heard = False
        self._socket, self._is_raw = _opened()

    def shortest(self) -> float | None:
        """Seconds there and back, at most what is waited for; None where no ping is answered or allowed."""
        if self._socket is None or not self._addresses or self._unheard >= _TRIES:
            return None
        sent = self._send()
        deadline = time.monotonic() + _WAIT_S
        found: list[float] = []
        while sent and not found and (left := deadline - time.monotonic()) > 0:
            if select.select([self._socket], [], [], left)[0]:
                found = self._replies(sent)
        if found:
            self._unheard = 0
            return min(found)
        self._unheard += not self._was_heard
        return _WAIT_S if self._was_heard else None

    def _send(self) -> dict[int, float]:
        """When each was sent, by its number."""
        assert self._socket
        sent = {}
        for address in self._addresses:
            self._sequence = (self._sequence + 1) & 0xFFFF
            head = _HEAD.pack(_ECHO, 0, 0, self._id, self._sequence)
            packet = _HEAD.pack(_ECHO, 0, _checksum(head), self._id, self._sequence)
            try:
                sent[self._sequence] = time.time()
                self._socket.sendto(packet, (address, 0))
            except OSError:
                del sent[self._sequence]
        return sent

    def _replies(self, sent: dict[int, float]) -> list[float]:
        """How long each that is back now took."""
        assert self._socket
        found: list[float] = []
        while True:
            try:
                packet, extra, _, _ = self._socket.recvmsg(256, 256)
            except OSError:
                return found
            packet = packet[_IP_HEAD:] if self._is_raw else packet
            if len(packet) < _HEAD.size:
                continue
            kind, _, _, whose, number = _HEAD.unpack_from(packet)
            if kind != _ECHO_REPLY or number not in sent or (self._is_raw and whose != self._id):
                continue
            self._was_heard = True
            found.append(max(0.0, _arrived(extra) - sent[number]))


def _opened() -> tuple[socket.socket | None, bool]:
    """A socket for pings and whether it is a raw one; None where this user may have none."""
    for kind, is_raw in ((socket.SOCK_DGRAM, False), (socket.SOCK_RAW, True)):
        try:
            opened = socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP)
            opened.setblocking(False)
            opened.setsockopt(socket.SOL_SOCKET, _TIMESTAMPS, 1)
            return opened, is_raw
        except OSError:
            continue
    return None, False


def _arrived(extra: list[tuple[int, int, bytes]]) -> float:
    """When the kernel took it, in seconds since 1970."""
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMPS) and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return float(seconds + nanoseconds / 1e9)
    return time.time()


def _checksum(data: bytes) -> int:
    """Of an ICMP message. Source: RFC 1071."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

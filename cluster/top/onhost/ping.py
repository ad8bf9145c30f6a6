"""Round-trip times by ping from this host to others. The kernel answers and takes the times, so load does not matter.

The shortest of several counts. A slow host is slow to all others, and a slow peer affects nobody else's value.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time

_WAIT_S = 0.1  # wait for the first reply
_ECHO, _ECHO_REPLY = 8, 0
_TIMESTAMPS = 35  # SO_TIMESTAMPNS and SCM_TIMESTAMPNS
_TIMESPEC = struct.Struct("@qq")
_HEAD = struct.Struct("!BBHHH")
_IP_HEAD = 20
_TRIES = 3  # after so many rounds without a reply, pings are given up


class Ping:
    """Pings to a few other hosts, over a socket that needs no privileges if the system allows that."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self._id, self._sequence, self._unheard = os.getpid() & 0xFFFF, 0, 0
        self._was_heard = False
        self._socket, self._is_raw = _opened()

    def shortest(self) -> float | None:
        """Return the shortest round trip in seconds, at most _WAIT_S; None if no ping is answered or allowed."""
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
        """Send a ping to each host, and return the send time by sequence number."""
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
        """Return the round-trip times of the replies that have arrived."""
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
    """Return a socket for pings, and whether it is a raw one; None if this user may have none."""
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
    """Return when the kernel received the packet, in seconds since 1970."""
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMPS) and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return float(seconds + nanoseconds / 1e9)
    return time.time()


def _checksum(data: bytes) -> int:
    """Return the checksum of an ICMP message. Source: RFC 1071."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

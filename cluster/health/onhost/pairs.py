"""Measurement between two hosts over plain TCP, one side: the rate of each direction, and the latency.

The listening side accepts only peers that send the right word. The output is the bytes per second to and from the peer,
and the median of half a round trip in seconds.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import threading
import time
from typing import Any

from cluster.ssh.onhost.frame import say

CHUNK = 1 << 20
PINGS = 101


def main(side: str, peer: str, port: int, word: str, seconds: float, streams: int) -> None:
    """Measure with the peer and report the result. Exits with 1 if there is no peer within 10 s."""
    try:
        say(measured(side, peer, port, word, seconds, streams))
    except OSError as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        os._exit(1)


def measured(side: str, peer: str, port: int, word: str, seconds: float, streams: int) -> dict[str, Any]:
    """Return the rates and the latency measured from this side. Raises OSError if there is no peer within 10 s."""
    sockets = listen(port, word, streams) if side == "listen" else connect(peer, port, word, streams)
    said: dict[str, Any] = {"latency_s": ping(sockets[0], side)}
    for direction in ("there", "back"):
        sends = (direction == "there") == (side == "connect")
        rate = sum(on_all(sockets, send if sends else receive, seconds))
        said["to_peer" if sends else "from_peer"] = rate
        sockets[0].sendall(b"!")  # this direction is done on both sides
        take(sockets[0], 1)
    return said


def listen(port: int, word: str, streams: int) -> list[socket.socket]:
    """Accept `streams` connections from a peer that sends the right word."""
    server = socket.create_server(("", port), backlog=streams)
    server.settimeout(10)
    found: list[socket.socket] = []
    while len(found) < streams:
        connection, _ = server.accept()
        connection.settimeout(10)
        if take(connection, len(word)) == word.encode():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(b"k")
            found.append(connection)
        else:
            connection.close()
    server.close()
    return found


def connect(peer: str, port: int, word: str, streams: int) -> list[socket.socket]:
    """Open `streams` connections to the peer, as soon as it listens."""
    found: list[socket.socket] = []
    deadline = time.monotonic() + 10
    while len(found) < streams:
        try:
            connection = socket.create_connection((peer, port), timeout=max(0.1, deadline - time.monotonic()))
            connection.settimeout(10)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(word.encode())
            take(connection, 1)
            found.append(connection)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    return found


def ping(connection: socket.socket, side: str) -> float | None:
    """Return the median of half a round trip of one byte. The listening side only echoes, and returns None."""
    times = []
    for _ in range(PINGS):
        if side == "listen":
            connection.sendall(take(connection, 1))
        else:
            began = time.perf_counter()
            connection.sendall(b".")
            take(connection, 1)
            times.append((time.perf_counter() - began) / 2)
    return statistics.median(times) if times else None


def send(connection: socket.socket, seconds: float) -> float:
    """Send for so many seconds. Return the rate in bytes per second that the receiver measured."""
    data, total = bytes(CHUNK), 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        total += connection.send(data)
    connection.sendall(b"\1")  # the only byte that is not 0
    return float(take(connection, 24).decode())


def receive(connection: socket.socket, seconds: float) -> float:
    """Receive until the end mark. Return the rate from the first byte to the last, and send it to the peer."""
    buffer = bytearray(CHUNK)
    total, began, ended = 0, 0.0, 0.0
    while True:
        n = connection.recv_into(buffer)
        if n == 0:
            raise ConnectionError("the peer left")
        began = began or time.monotonic()
        ended = time.monotonic()
        total += n
        if buffer[n - 1] == 1:
            break
    rate = total / max(ended - began, 1e-6)
    connection.sendall(f"{rate:<24.6e}".encode())
    return rate


def on_all(sockets: list[socket.socket], do: Any, seconds: float) -> list[float]:
    """Call `do` on all connections at the same time. Return each one's rate."""
    rates: list[float] = []
    threads = [threading.Thread(target=lambda s=s: rates.append(do(s, seconds)), daemon=True) for s in sockets]
    for t in threads:
        t.start()
    for t in threads:
        t.join(seconds + 20)
    if len(rates) < len(sockets):
        raise ConnectionError("a connection stalled")
    return rates


def take(connection: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes."""
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("the peer left")
        parts += part
    return parts

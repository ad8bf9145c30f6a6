"""Probes of the other hosts from this one: their host keys, TCP and SSH to them, and their clocks.

Each reading runs in a child of the probe with a time limit.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import Any

from cluster.health.onhost.trust import trust
from cluster.ssh.onhost.telling_line import telling_line

EXCHANGES = 3  # the quickest one has the most exact clock offset
BULK = 20000  # bytes each way: more than any single frame
AT_ONCE = 8
CONNECT_S = 5.0
STALLED_S = 6.0  # silence in the middle of the bulk data after which it counts as lost, not late
SILENT_S = 8.0  # silence before that after which the host counts as hanging
TIMES = 4.0  # both are at least so many times the longest silence after which another host continued
ALONE_S = 20.0  # both are at least this if there are too few others to compare with
BEGIN = b"dlami-begin\n"  # output before it comes from a start-up file of the shell there
REACH_S = 4.0  # limit for an answer from the kernel there: a lost packet is sent again after 1 s and 3 s
MUTE_S = 0.5  # the same limit, where it only decides which host comes first
NOBODY = 9  # a port where no program listens: a refusal is an answer
# ssh's messages when sshd refuses too many connections at once
DROPPED = ("Connection closed", "Connection reset", "kex_exchange")
TRIES = 4


def links(addresses: list[str], limit_s: float = REACH_S, times: int = 1) -> dict[str, dict[str, Any]]:
    """Test TCP to each address and back. `state` is answers, refused here, failed or silent.

    Args:
        times: connections to each. The result then has `again`: how many packets the kernel had to retransmit, because
            they or their answers got lost.
    """
    import errno
    import socket

    answers = {0, errno.ECONNREFUSED}
    said: dict[str, dict[str, Any]] = {}
    asking: dict[int, tuple[str, socket.socket]] = {}
    waiting = select.poll()
    again = dict.fromkeys(addresses, 0)

    def heard(address: str, code: int, otherwise: str) -> None:
        if said.get(address, {}).get("state") != "answers":
            said[address] = {"state": "answers" if code in answers else otherwise, "why": os.strerror(code).lower()}

    for address in addresses * times:
        one = socket.socket(socket.getaddrinfo(address, NOBODY)[0][0])
        one.setblocking(False)
        code = one.connect_ex((address, NOBODY))
        if code == errno.EINPROGRESS:
            waiting.register(one, select.POLLOUT)
            asking[one.fileno()] = address, one
        else:
            heard(address, code, "refused here")
    deadline, patience = time.monotonic() + limit_s, 1.0
    while asking and patience > 0:
        patience = deadline - time.monotonic()
        # Poll once more at the end: this process may have waited for a processor.
        for fd, _ in waiting.poll(max(0.0, patience) * 1000):
            address, one = asking.pop(fd)
            waiting.unregister(fd)
            again[address] += _sent_again(one)
            heard(address, one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "failed")
    for address, one in asking.values():
        again[address] += _sent_again(one)
    silence = {"state": "silent", "why": f"no answer within {limit_s:g} s"}
    return {a: {**said.get(a, silence), **({"again": again[a]} if times > 1 else {})} for a in addresses}


def _sent_again(one: Any) -> int:
    """Return how many packets of this connection the kernel retransmitted, 0 if it does not count them."""
    import socket

    try:
        return int.from_bytes(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[100:104], sys.byteorder)
    except (OSError, AttributeError):
        return 0


def loses_large_frames(address: str, wait_s: float = 0.5, tries: int = 3) -> bool:
    """Return True if small packets get to an address and back, but none of full size: the path's MTU is too low.

    The packets go to a port where no program listens: the host's kernel reports that.
    """
    import socket

    def arrives(one: Any, size: int) -> bool:
        for _ in range(tries):
            try:
                one.send(bytes(size))
                one.recv(1)
            except ConnectionRefusedError:
                return True
            except OSError:
                continue
        return False

    try:
        family = socket.getaddrinfo(address, NOBODY)[0][0]
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.settimeout(wait_s)
            one.connect((address, NOBODY))
            head, option = (48, 24) if family == socket.AF_INET6 else (28, 14)  # headers; IPV6_MTU, IP_MTU
            level = socket.IPPROTO_IPV6 if family == socket.AF_INET6 else socket.IPPROTO_IP
            largest = min(65507, one.getsockopt(level, option)) - head
            return arrives(one, 16) and not arrives(one, largest)
    except OSError:
        return False


def ssh(addresses: list[str], options: list[str], limit_s: float, at_once: int = AT_ONCE) -> dict[str, Any]:
    """Test SSH to each address, as mpirun uses it: read the clock there, and transfer full-size frames.

    Hosts that do not even answer TCP come first and do not count towards `at_once`, so that they delay no other.

    Return a dict per address:
      exchanges: list of [sent, said, got] in seconds since 1970: our clock, the host's clock, our clock
      state: whole, failed (ssh ended), stalled (after the small messages), late (there was no time)
      error: ssh's last line
    """
    remote = (
        f"echo {BEGIN.decode().strip()}; "
        f'while read -r x && [ "$x" != end ]; do date +%s.%N; done; head -c {BULK} /dev/zero; head -c {BULK} | wc -c'
    )
    deadline = time.monotonic() + limit_s
    mute = [a for a, way in links(addresses, MUTE_S).items() if way["state"] == "silent"]
    queue, tries = [*mute, *(a for a in addresses if a not in mute)], dict.fromkeys(addresses, TRIES)
    talks: dict[str, _Talk] = {}
    running: dict[int, _Talk] = {}
    waiting = select.poll()
    while (queue or running) and time.monotonic() < deadline:
        while queue and len(running) < at_once + len(mute):
            address = queue.pop(0)
            # A busy host may take long to greet; one whose kernel does not answer will not greet at all.
            connect_s = CONNECT_S if address in mute else ALONE_S
            words = ["ssh", "-o", f"ConnectTimeout={connect_s:.0f}", *options, address, remote]
            talk = talks[address] = _Talk(address, words)
            running[talk.stdout] = talk
            waiting.register(talk.stdout, select.POLLIN)
        over = []
        for fd, _ in waiting.poll(100):
            if not running[fd].hear():
                over.append(fd)
                tries[running[fd].address] -= 1
                if running[fd].was_dropped and tries[running[fd].address]:
                    queue.append(running[fd].address)
        patience_s = _patience_s(list(talks.values()))
        for fd in {*over, *(fd for fd, talk in running.items() if talk.hangs(patience_s))}:
            waiting.unregister(fd)
            del running[fd]
    late = {"exchanges": [], "state": "late", "error": ""}
    patience_s = _patience_s(list(talks.values()))
    told = {a: talks[a].said(patience_s) if a in talks else late for a in addresses}
    for address, said in told.items():
        if said["state"] == "failed" and not said["exchanges"] and loses_large_frames(address):
            said["state"] = "stalled"  # in the middle of its greeting
    return told


def _patience_s(talks: list[_Talk]) -> float:
    """Return how long a host may stay silent, from how long others were silent before they continued."""
    pauses = sorted(talk.pause_s for talk in talks if talk.has_spoken)
    return TIMES * pauses[-1] if len(pauses) > 1 else ALONE_S


class _Talk:
    """Session of ssh to one host."""

    def __init__(self, address: str, words: list[str]) -> None:
        theirs_in, self._stdin = os.pipe()
        self.stdout, theirs_out = os.pipe()
        self._stderr, theirs_err = os.pipe()
        ends = (theirs_in, theirs_out, theirs_err)
        self.address, self._lines = address, [""]
        self._code: int | None = None  # its wait status, once it has ended
        self._pid = os.posix_spawnp(
            words[0],
            words,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, end, fd) for fd, end in enumerate(ends)],
            setsigdef=[signal.SIGPIPE],
        )
        for end in ends:
            os.close(end)
        self._exchanges: list[list[float]] = []
        self._tail, self._sent, self._heard = b"", 0.0, time.monotonic()
        self.has_spoken, self.pause_s = False, 0.0  # the longest silence after which it continued
        self._say()

    def _say(self) -> None:
        self._sent = time.time()
        with contextlib.suppress(OSError):
            os.write(self._stdin, b"?\n" if len(self._exchanges) < EXCHANGES else b"end\n" + b"x" * BULK)

    def hear(self) -> bool:
        """Read the available output. Return False at its end."""
        data = os.read(self.stdout, 65536)
        got, before, self._heard = time.time(), self._heard, time.monotonic()
        if not data:
            self._has_ended(patience_s=1.0)
            return False
        self._tail += data
        if not self.has_spoken:
            _, begin, rest = self._tail.partition(BEGIN)
            if not begin:
                return True
            self.has_spoken, self._tail = True, rest
        self.pause_s = max(self.pause_s, self._heard - before)
        if len(self._exchanges) < EXCHANGES and self._tail.endswith(b"\n"):
            self._exchanges.append([self._sent, _number(self._tail), got])
            self._tail = b""
            self._say()
        return True

    def _has_ended(self, *, patience_s: float = 0.0) -> bool:
        deadline = time.monotonic() + patience_s
        while self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._code = status if pid else None
            if pid or time.monotonic() >= deadline:
                break
            time.sleep(0.002)
        return self._code is not None

    @property
    def was_dropped(self) -> bool:
        """Return True if sshd closed the connection before it sent any answer."""
        return not self._exchanges and self.error.startswith(DROPPED)

    @property
    def error(self) -> str:
        """Return the line of ssh's error output that gives the reason."""
        os.set_blocking(self._stderr, False)
        with contextlib.suppress(BlockingIOError):
            self._lines += os.read(self._stderr, 65536).decode("utf-8", "replace").strip().splitlines()
        return telling_line("\n".join(self._lines)) or self._lines[-1]

    def hangs(self, patience_s: float) -> bool:
        """Return True if the host has been silent for so long that waiting makes no sense."""
        silent_s = time.monotonic() - self._heard
        return silent_s > max(patience_s, STALLED_S if len(self._exchanges) == EXCHANGES else SILENT_S)

    def said(self, patience_s: float) -> dict[str, Any]:
        """Return the result. Kill ssh if it still runs."""
        ended = self._has_ended()
        if not ended:
            os.kill(self._pid, signal.SIGKILL)
        whole = self._tail == bytes(BULK) + f"{BULK}\n".encode()
        stalled = len(self._exchanges) == EXCHANGES and self.hangs(patience_s)
        hangs = not self._exchanges and self.hangs(patience_s)
        return {
            "exchanges": self._exchanges,
            "state": "whole" if whole else "failed" if ended or hangs else "stalled" if stalled else "late",
            "error": self.error or f"no word within {max(patience_s, SILENT_S):.0f} s" * hangs,
        }


def _number(said: bytes) -> float:
    try:
        return float(said.split()[-1])
    except (ValueError, IndexError):
        return float("nan")


PEERS: dict[str, Any] = {"trust": trust, "links": links, "ssh": ssh}

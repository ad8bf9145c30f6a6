"""What passes between hosts: whom a host trusts, whom it reaches, and its SSH to the others with their clocks.

Sent to each host beside `senses`, run there in a child with a time limit: standard library only.
"""

from __future__ import annotations

import contextlib
import glob
import os
import time
from typing import Any

EXCHANGES = 3  # of which the quickest tells the clock's offset best
BULK = 20000  # bytes each way: more than any single frame
AT_ONCE = 8
STALLED_S = 6.0  # without a byte, in the middle of the bulk: it is lost, not late
SILENT_S = 8.0  # without a byte before: it took the connection and hangs
REACH_S = 4.0  # for an answer that needs no process there: a lost packet is sent again after 1 s and 3 s
NOBODY = 9  # a port at which nobody listens: that a host refuses is an answer
DROPPED = ("Connection closed", "Connection reset", "kex_exchange")  # sshd's way to say that too many came at once
TRIES = 4


def trust(addresses: list[str]) -> dict[str, Any]:
    """The host keys that this host shows, and those that it expects of each address."""
    known: dict[str, list[str]] = {a: [] for a in addresses}
    for path in _known_hosts(addresses):
        for line in _lines(path):
            words = line.split()
            if len(words) >= 3 and not line.startswith(("#", "@")):
                for address in addresses:
                    if _names(words[0], address):
                        known[address].append(f"{words[1]} {words[2]}")
    shows = [" ".join(line.split()[:2]) for path in glob.glob("/etc/ssh/ssh_host_*_key.pub") for line in _lines(path)]
    return {"shows": shows, "expects": known}


def _known_hosts(addresses: list[str]) -> list[str]:
    """The files in which this host's ssh looks for host keys, by its own word."""
    import subprocess

    said = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(["ssh", "-G", *addresses[:1]], capture_output=True, text=True, timeout=5).stdout
    words = [line.split() for line in said.splitlines()]
    files = [w for line in words if line[:1] in (["userknownhostsfile"], ["globalknownhostsfile"]) for w in line[1:]]
    return [os.path.expanduser(f) for f in files or ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")]


def paths(addresses: list[str]) -> dict[str, dict[str, str]]:
    """Whether TCP gets from here to each address and back: `state` is answers, refused here, failed or silent."""
    import errno
    import selectors
    import socket

    answers, said = {0, errno.ECONNREFUSED}, {}
    waiting = selectors.DefaultSelector()

    def heard(address: str, code: int, otherwise: str) -> None:
        said[address] = {"state": "answers" if code in answers else otherwise, "why": os.strerror(code).lower()}

    for address in addresses:
        asking = socket.socket(socket.getaddrinfo(address, NOBODY)[0][0])
        asking.setblocking(False)
        code = asking.connect_ex((address, NOBODY))
        if code == errno.EINPROGRESS:
            waiting.register(asking, selectors.EVENT_WRITE, address)
        else:
            heard(address, code, "refused here")
    deadline, patience = time.monotonic() + REACH_S, 1.0
    while waiting.get_map() and patience > 0:
        patience = deadline - time.monotonic()
        for key, _ in waiting.select(max(0.0, patience)):  # once more at the end, for those who waited for a processor
            heard(key.data, key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "failed")  # type: ignore[union-attr]
            waiting.unregister(key.fileobj)
    silence = {"state": "silent", "why": f"no answer within {REACH_S:g} s"}
    return {a: said.get(a, silence) for a in addresses}


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _names(field: str, address: str) -> bool:
    """Whether a known_hosts line is about this address; hashed names are hashed again."""
    if not field.startswith("|1|"):
        return address in field.split(",") or f"[{address}]:22" in field.split(",")
    import base64
    import hashlib
    import hmac

    salt, said = field.split("|")[2:4]
    return hmac.new(base64.b64decode(salt), address.encode(), hashlib.sha1).digest() == base64.b64decode(said)


def ssh(addresses: list[str], options: list[str], limit_s: float, at_once: int = AT_ONCE) -> dict[str, Any]:
    """From here to each address by SSH, as mpirun goes: what its clock says, and whether full frames get through.

    For each: `exchanges`, a list of [sent, said, got] in seconds since 1970; `state`: whole, failed (ssh ended),
    stalled (after the small messages), late (there was no time); `error`, ssh's last line.
    """
    import selectors

    remote = (
        f'while read -r x && [ "$x" != end ]; do date +%s.%N; done; head -c {BULK} /dev/zero; head -c {BULK} | wc -c'
    )
    waiting = selectors.DefaultSelector()
    talks: dict[str, _Talk] = {}
    queue, tries = list(addresses), dict.fromkeys(addresses, TRIES)
    deadline = time.monotonic() + limit_s
    while (queue or waiting.get_map()) and time.monotonic() < deadline:
        while queue and len(waiting.get_map()) < at_once:
            talk = _Talk(queue[0], ["ssh", *options, queue[0], remote])
            talks[queue.pop(0)] = talk
            waiting.register(talk.stdout, selectors.EVENT_READ, talk)
        for key, _ in waiting.select(0.1):
            if not key.data.hear():
                waiting.unregister(key.fileobj)
                tries[key.data.address] -= 1
                if key.data.was_dropped and tries[key.data.address]:
                    queue.append(key.data.address)
        for key in [k for k in waiting.get_map().values() if k.data.hangs()]:
            waiting.unregister(key.fileobj)
    late = {"exchanges": [], "state": "late", "error": ""}
    return {a: talks[a].said() if a in talks else late for a in addresses}


class _Talk:
    """One conversation over one ssh."""

    def __init__(self, address: str, words: list[str]) -> None:
        import subprocess

        pipe = subprocess.PIPE
        self.address, self._lines = address, [""]
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin, self.stdout, self._stderr = self._process.stdin, self._process.stdout, self._process.stderr
        self._exchanges: list[list[float]] = []
        self._tail, self._sent, self._heard = b"", 0.0, time.monotonic()
        self._say()

    def _say(self) -> None:
        self._sent = time.time()
        with contextlib.suppress(OSError):
            self._stdin.write(b"?\n" if len(self._exchanges) < EXCHANGES else b"end\n" + b"x" * BULK)

    def hear(self) -> bool:
        """Take what came; whether more may come."""
        data = self.stdout.read(65536)
        got, self._heard = time.time(), time.monotonic()
        if not data:
            self._process.wait(1)
            return False
        self._tail += data
        if len(self._exchanges) < EXCHANGES and self._tail.endswith(b"\n"):
            self._exchanges.append([self._sent, _number(self._tail), got])
            self._tail = b""
            self._say()
        return True

    @property
    def was_dropped(self) -> bool:
        """Whether the other side hung up before a word was said."""
        return not self._exchanges and self.error.startswith(DROPPED)

    @property
    def error(self) -> str:
        """The last line of ssh's complaint."""
        os.set_blocking(self._stderr.fileno(), False)
        self._lines += (self._stderr.read() or b"").decode("utf-8", "replace").strip().splitlines()
        return self._lines[-1]

    def hangs(self) -> bool:
        """Whether it says nothing for so long that there is no sense in waiting."""
        silent_s = time.monotonic() - self._heard
        return silent_s > (STALLED_S if len(self._exchanges) == EXCHANGES else SILENT_S)

    def said(self) -> dict[str, Any]:
        """What came of it; ssh is ended if it has not."""
        ended = self._process.poll() is not None
        if not ended:
            self._process.kill()
        whole = self._tail == bytes(BULK) + f"{BULK}\n".encode()
        silent_s = time.monotonic() - self._heard
        stalled = len(self._exchanges) == EXCHANGES and silent_s > STALLED_S
        hangs = not self._exchanges and silent_s > SILENT_S
        return {
            "exchanges": self._exchanges,
            "state": "whole" if whole else "failed" if ended or hangs else "stalled" if stalled else "late",
            "error": self.error or f"no word within {SILENT_S:g} s" * hangs,
        }


def _number(said: bytes) -> float:
    try:
        return float(said.split()[-1])
    except (ValueError, IndexError):
        return float("nan")


BETWEEN: dict[str, Any] = {"trust": trust, "paths": paths, "ssh": ssh}

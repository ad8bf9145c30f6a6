"""Claim on this host for one job: a socket with one name for all users, which one process at a time can bind.

The claim is released as soon as that process ends, for whatever reason. The kernel tells whose process it is, so
nothing that a user could have forged is trusted. The process carries the job's id in its environment, so it is ended
with the job's processes. If nobody can reach the host to end these, it exits once the job's record says that the
attempt is over.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import struct
import threading
import time
from typing import Any, NamedTuple, NoReturn

from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.job_record import read_record

WAIT_S = 15.0  # wait for a claim that gives way, or whose job is over
YOUNG_S = 20.0  # a younger claim may not have all its hosts yet, and gives way to an earlier one
LOOK_S = 30.0  # interval at which a holder reads its job's record
SETTLED_S = 300.0  # after this an attempt with claims has its record written
_TALK_S = 5.0
_PAUSE_S = 0.05
_WORDS_BYTES = 65536


class Claim(NamedTuple):
    """Request for a host: the job that wants it, and since when."""

    job: str
    attempt: int
    folder: str  # the job's folder, with its record
    since: float  # seconds since 1970, by the requester's clock: the earlier request wins

    @property
    def precedence(self) -> tuple[float, str]:
        """Return the sort key of competing claims. The smaller one wins, on every host alike."""
        return self.since, self.job


class Holder(NamedTuple):
    """Process that holds this host. The kernel supplies its process and user id, the process itself the rest."""

    pid: int
    uid: int
    claim: Claim | None = None  # None if it does not answer
    age_s: float = 0.0

    @property
    def is_ours(self) -> bool:
        """Return True if the process belongs to the calling user."""
        return self.uid == os.getuid()


def main(claim: list[Any], name: str) -> None:
    """Claim this host and print who holds it, if another job does."""
    other = take(Claim(*claim), name)
    say({"taken_by": other and described(other)})


def described(other: Holder) -> dict[str, Any]:
    """Return the holder's job, user and process id, for a message."""
    return {"job": other.claim.job if other.claim else "", "user": _user(other.uid), "pid": other.pid}


def holder(name: str) -> Holder | None:
    """Return who holds this host now, or None."""
    return _ask(name, "who")


def taken_by(name: str, besides: str = "") -> dict[str, Any] | None:
    """Return the job, user and process that hold this host.

    Return None if it is free, or held for an ended job of ours.

    besides: a job that may hold it; it does not count.
    """
    other = holder(name)
    if other is None or is_stale(other) or (other.claim and other.claim.job == besides):
        return None
    return described(other)


def take(claim: Claim, name: str) -> Holder | None:
    """Claim this host with a background process. Return None on success, or the holder if it is another job.

    Waits for a holder that will leave: one that asked later in the same moment, or whose job is over.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        if (door := _bound(name)) is not None:
            _leave_behind(door, claim)
            return None
        other = holder(name)
        if other and other.is_ours and other.claim and other.claim.job == claim.job:
            if _ask(name, f"renew {claim.attempt}"):
                return None
        elif other and is_stale(other):
            _ask(name, "leave")
        elif other and not _gives_way(other, claim):
            return other
        if time.monotonic() > deadline:
            return other or Holder(pid=0, uid=0)
        time.sleep(_PAUSE_S)


def _bound(name: str) -> socket.socket | None:
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.bind("\0" + name)
    except OSError:
        door.close()
        return None
    return door


def is_stale(other: Holder) -> bool:
    """Return True if the claim is for a job of ours that is over, or whose folder is gone or was never made.

    In the second case the claim has to be five minutes old: a new job's folder may not be there yet.
    """
    if not other.is_ours or other.claim is None:
        return False
    record = read_record(other.claim.folder)
    if record.state == "over" and record.attempt >= other.claim.attempt:
        return True
    return record.state in ("over", "removed") and other.age_s > SETTLED_S


def _gives_way(other: Holder, claim: Claim) -> bool:
    """Return True if the holder will release its claim: it is recent, and the other claim precedes it.

    Of two jobs that claim the same hosts at the same moment, one releases its claims and the other waits for that.
    """
    theirs = other.claim
    return theirs is not None and other.age_s < YOUNG_S and claim.precedence < theirs.precedence


def _ask(name: str, word: str) -> Holder | None:
    """Send a word to the process that holds the host and return its answer.

    Return None if there is none or it just ended.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(_TALK_S)
        try:
            caller.connect("\0" + name)
        except OSError:
            return None
        pid, uid = _peer(caller)
        try:
            caller.sendall(word.encode())
            caller.shutdown(socket.SHUT_WR)
            if not (words := _all_of(caller)):
                return None
            said = json.loads(words)
            claim = Claim(str(said["job"]), int(said["attempt"]), str(said["folder"]), float(said["since"]))
            return Holder(pid, uid, claim, float(said["age_s"]))
        except (BrokenPipeError, ConnectionResetError):
            return None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return Holder(pid, uid)


def _leave_behind(door: socket.socket, claim: Claim) -> None:
    """Start the holder process. Return once it answers."""
    ready, told = os.pipe()
    if os.fork() == 0:
        try:
            os.setsid()
            os.chdir("/")
            door.listen(64)  # SO_PEERCRED names the process that called listen()
            nothing = os.open(os.devnull, os.O_RDWR)
            for fd in range(3):
                os.dup2(nothing, fd)
            os.close(ready)
            os.close(told)
            _hold(door, claim)
        finally:
            os._exit(1)
    os.close(told)
    os.read(ready, 1)
    os.close(ready)
    door.close()


def _hold(door: socket.socket, claim: Claim) -> NoReturn:
    """Answer callers with the job that the host is held for. Never returns.

    The process exits if it is killed, told to leave by its own user or root, or once its attempt is over.
    """
    attempt = _Attempt(claim.attempt)
    threading.Thread(target=attempt.leave_when_over, args=(claim.folder,), daemon=True).start()
    while True:
        with contextlib.suppress(OSError):
            caller, _ = door.accept()
            with caller:
                caller.settimeout(_TALK_S)
                _, uid = _peer(caller)
                word = caller.recv(16)
                if uid == os.getuid() and word.startswith(b"renew "):
                    attempt.renew(int(word.split()[1]))
                answer = {**claim._asdict(), "attempt": attempt.number, "age_s": attempt.age_s}
                caller.sendall(json.dumps(answer).encode())
                if uid in (os.getuid(), 0) and word == b"leave":
                    os._exit(0)


class _Attempt:
    """Attempt of the job that the host is held for."""

    def __init__(self, number: int) -> None:
        self.number, self._since = number, time.monotonic()
        self._lock = threading.Lock()

    @property
    def age_s(self) -> float:
        """Return the seconds since the host was claimed for this attempt."""
        return time.monotonic() - self._since

    def renew(self, number: int) -> None:
        with self._lock:
            self.number, self._since = number, time.monotonic()

    def leave_when_over(self, folder: str) -> NoReturn:
        """End this process once the record says that the attempt is over, or the job is over without this attempt.

        A record that is missing or cannot be read is ignored: the shared folder may be away for a while.
        """
        while True:
            time.sleep(LOOK_S)
            record = read_record(folder)
            with self._lock:
                if record.state == "over" and (record.attempt >= self.number or self.age_s > SETTLED_S):
                    os._exit(0)


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process and user id of the other end, as the kernel knows them."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def _all_of(connection: socket.socket) -> bytes:
    words = b""
    while len(words) < _WORDS_BYTES and (more := connection.recv(_WORDS_BYTES)):
        words += more
    return words


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

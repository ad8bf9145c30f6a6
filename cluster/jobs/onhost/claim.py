"""Claim of this host, or of some of its slots, for one job: sockets whose names only one process at a time can bind.

`NAME` stands for the whole host, `NAME.3` for slot 3. A claim of the whole host and one of a slot exclude each other.
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
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.free_port import free_port
from cluster.ssh.onhost.job_record import read_record

WAIT_S = 15.0  # wait for a claim that gives way, or whose job is over
YOUNG_S = 20.0  # a younger claim may not have all its hosts yet, and gives way to an earlier one
LOOK_S = 30.0  # interval at which a holder reads its job's record
SETTLED_S = 300.0  # after this an attempt with claims has its record written
_TALK_S = 5.0
_NOBODY = -1  # the kernel does not report a process that accepts no connection
_LEAST_S = 0.05  # for one more answer once that is over
_PAUSE_S = 0.05
_DOOR_S = 3.0  # wait for another claim on this host to be decided; without it, too, no slot is given to two
_WORDS_BYTES = 65536
_PORTS = 64  # slots of a host that get ports of their own
_WHOLE = -1  # stands for the whole host where slots are numbers


class Claim(NamedTuple):
    """Request for a host, or for some of its slots: the job that wants it, and since when."""

    job: str
    attempt: int
    folder: str  # the job's folder, with its record
    since: float  # seconds since 1970, by the requester's clock: the earlier request wins
    slots: int = 0  # how many slots; 0: the whole host
    of: int = 0  # slots of the host, by the requester's hostfile

    @property
    def precedence(self) -> tuple[float, str]:
        """Return the sort key of competing claims. The smaller one wins, on every host alike."""
        return self.since, self.job


class ClaimHolder(NamedTuple):
    """Process that holds this host or some slots. All but its claim and age comes from the kernel."""

    pid: int
    uid: int
    claim: Claim | None = None  # None if it does not answer
    age_s: float = 0.0
    slots: tuple[int, ...] = ()  # () is the whole host

    @property
    def is_ours(self) -> bool:
        """Return True if the process belongs to the calling user."""
        return self.uid == os.getuid()


class ClaimResult(NamedTuple):
    """Result of a claim: the slots that the job has now, or the process that holds what it wanted."""

    slots: tuple[int, ...] = ()  # () is the whole host
    by: ClaimHolder | None = None


def main(claims: dict[str, list[Any]], name: str, address: str) -> None:
    """Claim this host or some of its slots. Print which slots the job has, or else the process that holds them.

    claims: by the address of the host, as its caller knows it.

    With slots comes a port for the job's rendezvous that no job on other slots of the host gets.
    """
    found = take(Claim(*claims[address]), name)
    port = free_port(_PORTS, found.slots[0] % _PORTS) if found.slots else 0
    say({"slots": found.slots, "port": port, "taken_by": found.by and described(found.by)})


def described(other: ClaimHolder) -> dict[str, Any]:
    """Return the holder's job, user, process id and slots, for a message."""
    job = other.claim.job if other.claim else ""
    return {"job": job, "user": _user(other.uid), "pid": other.pid, "slots": other.slots}


def holders(name: str) -> list[ClaimHolder]:
    """Return the processes that hold this host or slots of it now. They have _TALK_S for their answers together."""
    found: dict[int, ClaimHolder] = {}
    until = time.monotonic() + _TALK_S
    for slot in sorted(_bound_slots(name)):
        if other := _ask(_socket_name(name, slot), "who", found, until - time.monotonic()):
            known = found.get(other.pid, other)
            slots = known.slots if slot == _WHOLE else (*known.slots, slot)
            found[other.pid] = known._replace(slots=slots)
    return list(found.values())


def holder(name: str) -> ClaimHolder | None:
    """Return a process that holds this host or a slot of it now, or None."""
    return next(iter(holders(name)), None)


def held(name: str, besides: str = "") -> list[dict[str, Any]]:
    """Return the job, user, process and slots of each valid claim on this host. An ended job of ours has none.

    besides: a job that may hold it; it does not count.
    """
    others = [h for h in holders(name) if not is_stale(h)]
    return [described(h) for h in others if not (besides and h.is_ours and h.claim and h.claim.job == besides)]


def take(claim: Claim, name: str) -> ClaimResult:
    """Claim this host or some of its slots, the lowest free ones, with a background process.

    Waits for a holder that will leave: one whose claim came later in the same moment, or whose job is over.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        with _one_at_a_time(name):
            if doors := _free_doors(claim, name):
                _leave_behind(doors, claim)
                return ClaimResult(tuple(slot for slot in doors if slot != _WHOLE))
        others = holders(name)
        if own := next((h for h in others if h.is_ours and h.claim and h.claim.job == claim.job), None):
            does_fit = len(own.slots) == claim.slots
            if _ask(_socket_of(name, own), f"renew {claim.attempt}" if does_fit else "leave") and does_fit:
                return ClaimResult(own.slots)
        elif stale := [h for h in others if is_stale(h)]:
            for one in stale:
                _ask(_socket_of(name, one), "leave")
        elif others and not any(_gives_way(h, claim) for h in others):
            return ClaimResult(by=others[0])
        if time.monotonic() > deadline:
            return ClaimResult(by=next(iter(others), ClaimHolder(pid=0, uid=_NOBODY)))
        time.sleep(_PAUSE_S)


def _socket_name(name: str, slot: int) -> str:
    return name if slot == _WHOLE else f"{name}.{slot}"


def _socket_of(name: str, held_by: ClaimHolder) -> str:
    return _socket_name(name, held_by.slots[0] if held_by.slots else _WHOLE)


def _bound_slots(name: str) -> set[int]:
    """Return which of this host's claims some process has bound, by the kernel's list of sockets."""
    with open("/proc/net/unix", errors="replace") as file:
        names = [words[7].rstrip("\n") for line in file if len(words := line.split(None, 7)) == 8]
    ends = [one[len(name) + 1 :] for one in names if one.startswith(f"@{name}")]
    return {int(end[1:]) if end else _WHOLE for end in ends if not end or (end[0] == "." and end[1:].isdigit())}


@contextlib.contextmanager
def _one_at_a_time(name: str) -> Iterator[None]:
    """Decide one claim after the other on this host. Otherwise two large claims could make each other fail."""
    deadline = time.monotonic() + _DOOR_S
    while (door := _bound(f"{name}.door")) is None and time.monotonic() < deadline:
        time.sleep(_PAUSE_S / 10)
    try:
        yield
    finally:
        if door:
            door.close()


def _free_doors(claim: Claim, name: str) -> dict[int, socket.socket]:
    """Bind the sockets of what is claimed, by slot. Return {} if there are not enough.

    Others' sockets are checked after binding, so the whole host and one of its slots are never both claimed.
    """
    doors: dict[int, socket.socket] = {}
    for slot in range(claim.of) if claim.slots else (_WHOLE,):
        if len(doors) < (claim.slots or 1) and (door := _bound(_socket_name(name, slot))):
            doors[slot] = door
    others = _bound_slots(name) - doors.keys()
    if len(doors) == (claim.slots or 1) and not (_WHOLE in others if claim.slots else others):
        return doors
    for door in doors.values():
        door.close()
    return {}


def _bound(name: str) -> socket.socket | None:
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.bind("\0" + name)
    except OSError:
        door.close()
        return None
    return door


def is_stale(other: ClaimHolder) -> bool:
    """Return True if the claim is for a job of ours that is over, or whose folder is gone or was never made.

    In the second case the claim has to be five minutes old: a new job's folder may not be there yet.
    """
    if not other.is_ours or other.claim is None:
        return False
    record = read_record(other.claim.folder)
    if record.state == "over" and record.attempt >= other.claim.attempt:
        return True
    return record.state in ("over", "removed") and other.age_s > SETTLED_S


def _gives_way(other: ClaimHolder, claim: Claim) -> bool:
    """Return True if the holder will release its claim: it is recent, and the other claim precedes it.

    Of two jobs that claim the same hosts at the same moment, one releases its claims and the other waits for that.
    """
    theirs = other.claim
    return theirs is not None and other.age_s < YOUNG_S and claim.precedence < theirs.precedence


def _ask(
    name: str, word: str, known: dict[int, ClaimHolder] | None = None, patience_s: float = _TALK_S
) -> ClaimHolder | None:
    """Send a request to the process that holds this socket and return its answer.

    Return None if it does not exist or just ended.

    known: processes that have answered; they are not queried again.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        until = time.monotonic() + max(_LEAST_S, patience_s)
        caller.settimeout(max(_LEAST_S, patience_s))
        try:
            caller.connect("\0" + name)
        except OSError:
            return None
        pid, uid = _peer(caller)
        if known and pid in known:
            return known[pid]
        try:
            caller.sendall(word.encode())
            caller.shutdown(socket.SHUT_WR)
            if not (words := _all_of(caller, until)):
                return None
            said = json.loads(words)
            claim = Claim(str(said["job"]), int(said["attempt"]), str(said["folder"]), float(said["since"]))
            return ClaimHolder(pid, uid, claim, float(said["age_s"]))
        except (BrokenPipeError, ConnectionResetError):
            return None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return ClaimHolder(pid, uid)


def _leave_behind(doors: dict[int, socket.socket], claim: Claim) -> None:
    """Start the holder process. Return once it answers."""
    ready, told = os.pipe()
    if os.fork() == 0:
        try:
            os.setsid()
            os.chdir("/")
            for door in doors.values():
                door.listen(64)  # SO_PEERCRED names the process that called listen()
            nothing = os.open(os.devnull, os.O_RDWR)
            for fd in range(3):
                os.dup2(nothing, fd)
            os.close(ready)
            os.close(told)
            _hold(list(doors.values()), claim)
        finally:
            os._exit(1)
    os.close(told)
    os.read(ready, 1)
    os.close(ready)
    for door in doors.values():
        door.close()


def _hold(doors: list[socket.socket], claim: Claim) -> NoReturn:
    """Answer callers with the job that the host is held for. Never returns.

    The process exits if it is killed, told to leave by its own user or root, or once its attempt is over.
    """
    attempt = _Attempt(claim.attempt)
    threading.Thread(target=attempt.leave_when_over, args=(claim.folder,), daemon=True).start()
    while True:
        with contextlib.suppress(OSError):
            caller, _ = select.select(doors, [], [])[0][0].accept()
            with caller:
                caller.settimeout(_TALK_S)
                _, uid = _peer(caller)
                word = caller.recv(16) if uid in (os.getuid(), 0) else b""  # no other user makes this process wait
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
        """End this process once the record shows that the attempt is over, or that the job ended before this attempt.

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


def _all_of(connection: socket.socket, until: float) -> bytes:
    """Return all that is received until then. Another user's process may send a byte at a time."""
    words = b""
    while len(words) < _WORDS_BYTES and (more := connection.recv(_WORDS_BYTES)):
        words += more
        connection.settimeout(max(0.001, until - time.monotonic()))
    return words


def _user(uid: int) -> str:
    if uid == _NOBODY:
        return "unknown"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

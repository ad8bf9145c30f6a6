"""Probe: runs the questions of checks on a host, each in a child process with a time limit.

A child that does not end (a dead mount, a driver that hangs) is killed, or left alone if even that does not help. The
answers of the others arrive in any case.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
import zlib
from typing import Any

from cluster.health.onhost.measure import MEASURES
from cluster.health.onhost.peers import PEERS
from cluster.health.onhost.readings import READINGS
from cluster.ssh.onhost.frame import say

MOST_BYTES = 4 << 20  # of one answer
MOST_MORE_S = 24.0  # extra time for a question that is only delayed by other work on the host
TOOLS = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/opt/amazon/efa/bin",
    "/usr/local/cuda/bin",
)


class Child:
    """Child process that answers one question."""

    def __init__(self, ask: dict[str, Any], readings: dict[str, Any]) -> None:
        self.ask, self.started = ask, time.monotonic()
        self.parts: dict[int, list[bytes]] = {}
        out, out_w = os.pipe()
        err, err_w = os.pipe()
        self.pid = _spawn(ask["command"], out_w, err_w) if "command" in ask else os.fork()
        if self.pid == 0:
            _become(ask, readings, out_w, err_w)
        os.close(out_w)
        os.close(err_w)
        self.out, self.err, self.open = out, err, {out, err}
        self.parts = {out: [], err: []}
        self.size, self.more_s = 0, 0.0
        self.transfers = _transfers(ask["disk_of"]) if "disk_of" in ask else 0

    @property
    def deadline(self) -> float:
        return self.started + float(self.ask["limit_s"]) + self.more_s

    def is_over(self) -> bool:
        """Return True if its time is up.

        Time on a processor, or waiting for one, does not count: that is no hang. Time in which the disk of the
        question's local folder was working does not count either.
        """
        now = time.monotonic()
        if now <= self.deadline:
            return False
        is_only_busy = self.works() or now - self.started - _processor_s(self.pid) < float(self.ask["limit_s"])
        if not (is_only_busy or self.disk_works()) or self.more_s > MOST_MORE_S:
            return True
        self.more_s = now + 0.5 - self.started - float(self.ask["limit_s"])
        return False

    def works(self) -> bool:
        """Return True if one of its processes runs or waits for a processor only."""
        return any(_state(pid) == "R" for pid in _family(self.pid))

    def disk_works(self) -> bool:
        """Return True if the disk that it waits for has done any transfer since the last call."""
        before = self.transfers
        if "disk_of" in self.ask:
            self.transfers = _transfers(self.ask["disk_of"])
        return self.transfers > before

    def read(self, fd: int) -> None:
        data = os.read(fd, 65536)
        if not data:
            self.open.discard(fd)
            os.close(fd)
        else:
            self.size += len(data)
            if self.size <= MOST_BYTES:
                self.parts[fd].append(data)

    def ended(self) -> int | None:
        """Return its wait status once its output and the process have ended, else None."""
        if self.open:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return status if pid else None

    def give_up(self) -> bool:
        """Kill it and everything it started. Return True if it is stuck in the kernel and cannot be killed."""
        for fd in self.open:
            os.close(fd)
        self.open = set()
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            os.kill(self.pid, signal.SIGKILL)
        for _ in range(20):
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                return False
            time.sleep(0.01)
        return True

    def answer(self, status: str, code: int | None = None) -> dict[str, Any]:
        said = {
            "status": status,
            "code": code,
            "seconds": round(time.monotonic() - self.started, 3),
            **framed(b"".join(self.parts[self.out]).decode("utf-8", "replace")),
            "err": b"".join(self.parts[self.err]).decode("utf-8", "replace")[-2000:],
        }
        return said if self.size <= MOST_BYTES else {**said, "size": self.size}


def framed(out: str) -> dict[str, Any]:
    """Return an answer's text with its length in bytes and its checksum, so that a truncated text is detected."""
    data = out.encode()
    return {"out": out, "size": len(data), "crc": zlib.crc32(data)}


def _family(pid: int) -> list[int]:
    """Return the pids of a process and of all its descendants."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [pid, *(one for child in file.read().split() for one in _family(int(child)))]
    except OSError:
        return [pid]


def _state(pid: int) -> str:
    """Return the state of a process in one letter, "" if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _processor_s(pid: int) -> float:
    """Return the seconds that a process and its descendants were on a processor or waited for one."""
    total = 0
    for one in _family(pid):
        try:
            with open(f"/proc/{one}/schedstat") as file:
                total += sum(map(int, file.read().split()[:2]))
        except (OSError, ValueError):
            continue
    return total / 1e9


def _transfers(folder: str) -> int:
    """Return how many transfers the folder's disk has done.

    The folder itself is not touched, because it may hang.
    """
    try:
        with open("/proc/self/mountinfo") as mounts, open("/proc/diskstats") as disks:
            return transfers_of(folder, mounts.read(), disks.read())
    except (OSError, ValueError, IndexError):
        return 0


def transfers_of(folder: str, mountinfo: str, diskstats: str) -> int:
    """Return how many transfers the folder's disk has done, from the kernel's tables of mounts and disks.

    If the folder's file system is on no single disk, the transfers of all disks count.
    """
    mounts = [line.split()[2:5:2] for line in mountinfo.splitlines()]
    rows = [line.split() for line in diskstats.splitlines()]
    done = {f"{row[0]}:{row[1]}": (row[2], int(row[3]) + int(row[7])) for row in rows}
    above = [(len(at), device) for device, at in mounts if folder == at or folder.startswith(at.rstrip("/") + "/")]
    device = max(above, default=(0, ""))[1]
    if device in done:
        return done[device][1]
    return sum(count for name, count in done.values() if not name.startswith(("loop", "ram", "zram")))


def _spawn(command: str, out: int, err: int) -> int:
    """Start a shell with the command in its own session. Return its pid. This is cheaper than a fork."""
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    actions += [(os.POSIX_SPAWN_DUP2, fd, target) for fd, target in ((out, 1), (err, 2))]
    words = ["sh", "-c", command]
    return os.posix_spawn("/bin/sh", words, os.environ, file_actions=actions, setsid=True, setsigdef=[signal.SIGPIPE])


def _become(ask: dict[str, Any], readings: dict[str, Any], out: int, err: int) -> None:
    """Answer the question in the child after the fork. Does not return."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (out, 1), (err, 2)):
            os.dup2(source, target)
        os.closerange(3, 256)
        said = json.dumps(
            _parts(ask, readings) if "parts" in ask else readings[ask["reading"]](*ask["arguments"])
        ).encode()
        while said:
            said = said[os.write(1, said) :]
        os._exit(0)
    except BaseException as e:
        os.write(2, f"{type(e).__name__}: {e}".encode())
        os._exit(70)


def _parts(ask: dict[str, Any], readings: dict[str, Any]) -> dict[str, Any]:
    """Return an answer for each part by its name. A part that fails does not affect the others."""
    said: dict[str, Any] = {}
    for part in ask["parts"]:
        began = time.monotonic()
        answer: dict[str, Any] = {"status": "ok", "code": 0, "out": "", "err": ""}
        try:
            answer.update(framed(json.dumps(readings[part["reading"]](*part["arguments"]))))
        except Exception as e:
            answer = {**answer, "status": "failed", "code": 70, "err": f"{type(e).__name__}: {e}"}
        said[part["name"]] = {**answer, "seconds": round(time.monotonic() - began, 3)}
    return said


def _file(answers: dict[str, Any], ask: dict[str, Any], answer: dict[str, Any]) -> None:
    """Store an answer under its question's name. Parts get their own answers, or this one if their child failed."""
    if "parts" not in ask:
        answers[ask["name"]] = answer
    else:
        said = json.loads(answer["out"]) if answer["status"] == "ok" else {}
        for part in ask["parts"]:
            answers[part["name"]] = said.get(part["name"], {**answer, "out": ""})


def ask_all(chains: list[list[dict[str, Any]]], readings: dict[str, Any]) -> dict[str, Any]:
    """Return the answers by the names of their questions.

    Chains run in parallel. Within a chain each question waits for the one before it, and is skipped after a timeout.
    """
    answers: dict[str, Any] = {}
    waiting = [list(c) for c in chains]
    running: list[tuple[Child, list[dict[str, Any]]]] = []
    while waiting or running:
        for rest in waiting:
            while rest and not _can_ask(rest[0], answers):
                rest.pop(0)
            if rest:
                running.append((Child(rest.pop(0), readings), rest))
        waiting = _step(running, answers)
    return answers


def _can_ask(ask: dict[str, Any], answers: dict[str, Any]) -> bool:
    """Return True if this question is to be asked. If not, store the reason as its answer."""
    forbidden = ask.get("unless")
    if forbidden and any(w in answers.get(forbidden[0], {}).get("out", "") for w in forbidden[1:]):
        _file(answers, ask, {"status": "skipped", "out": "", "err": "", "code": None, "seconds": 0})
        return False
    slow = ask.get("unless_slow")
    if slow and answers.get(slow[0], {}).get("seconds", 0) > slow[1]:
        _file(answers, ask, {"status": "skipped", "out": "", "err": "", "code": None, "seconds": 0})
        return False
    tool = ask.get("tool")
    if tool and not any(os.access(f"{d}/{tool}", os.X_OK) for d in os.environ.get("PATH", "").split(":")):
        _file(answers, ask, {"status": "missing", "out": "", "err": "", "code": None, "seconds": 0})
        return False
    return True


def _step(running: list[tuple[Child, list[dict[str, Any]]]], answers: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Wait until something happens to a child. Return the chains whose next question can be asked."""
    now = time.monotonic()
    patience = min([0.005 if not c.open else max(0.0, c.deadline - now) for c, _ in running] or [0.0])
    fds = {fd: c for c, _ in running for fd in c.open}
    for fd in select.select(list(fds), [], [], patience)[0]:
        fds[fd].read(fd)
    ready = []
    for child, rest in list(running):
        status = child.ended()
        if status is not None:
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
            _file(answers, child.ask, child.answer("ok" if code == 0 else "failed", code))
            ready.append(rest)
        elif child.is_over():
            stuck, works = child.give_up(), child.disk_works()
            _file(answers, child.ask, {**child.answer("timeout"), "stuck": stuck, "disk_works": works})
            for ask in rest:
                _file(answers, ask, {"status": "skipped", "out": "", "err": "", "code": None, "seconds": 0})
        else:
            continue
        running.remove((child, rest))
    return ready


def main(chains: list[list[dict[str, Any]]]) -> None:
    """Answer the questions and report the answers. Exits by `_exit`, which does not wait for a child that is stuck."""
    os.environ["PATH"] = ":".join([os.environ.get("PATH", ""), *TOOLS])
    os.environ["LC_ALL"] = "C"
    say(ask_all(chains, {**READINGS, **PEERS, **MEASURES}))
    os._exit(0)

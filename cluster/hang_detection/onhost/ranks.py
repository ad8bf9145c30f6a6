"""Ranks of a job on this host: their processes, and their heartbeats in the layout of `dlami/heartbeat.py`."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
import struct
import tempfile
from typing import Any, NamedTuple

RECORD = struct.Struct("<Q4sHHIQQdd5dQ")
MAGIC, VERSION = b"beat", 2
_TRIES = 5  # a record may be read while it is written
_DAEMONS = ("orted", "mpirun", "prted")
_WRAPPER = "dlami-rank"  # between mpirun and an operator's program (`cluster/launch/onhost/rank.py`)
_TICKS = os.sysconf("SC_CLK_TCK")


class RankProcess(NamedTuple):
    """Process of the job, with its rank."""

    pid: int
    ppid: int
    state: str  # as /proc has it: R, S, D, T …
    cpu_s: float  # of itself and of children that have ended
    name: str
    rank: int | None


def processes(job: str, attempt: str) -> list[RankProcess]:
    """Return this user's processes that carry the tags of this job and attempt."""
    wanted = {b"DLAMI_JOB=" + job.encode(), b"DLAMI_ATTEMPT=" + attempt.encode()}
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if os.stat(f"/proc/{pid}").st_uid != os.getuid():
                continue
            variables = _read(f"/proc/{pid}/environ").split(b"\0")
            if not wanted <= set(variables):
                continue
            ranks = [v[21:] for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")]
            head, _, tail = _read(f"/proc/{pid}/stat").rpartition(b")")
            fields = tail.split()
            if fields[0] in (b"Z", b"X"):
                continue
            name = head.partition(b"(")[2].decode(errors="replace")
            found.append(
                RankProcess(
                    pid=int(pid),
                    ppid=int(fields[1]),
                    state=fields[0].decode(),
                    cpu_s=sum(map(int, fields[11:15])) / _TICKS,
                    name=name,
                    rank=int(ranks[0]) if ranks and name != _WRAPPER else None,
                )
            )
    return found


def stopped_daemon(found: list[RankProcess]) -> str:
    """Return the name of an mpirun daemon that is stopped here, or an empty string."""
    return next((p.name for p in found if p.name in _DAEMONS and p.rank is None and p.state in "Tt"), "")


def beats(job: str, attempt: str) -> dict[int, dict[str, Any]]:
    """Return the last heartbeat of each rank on this host, by rank. Times are by this host's clock."""
    found = _beats(f"{job}-{attempt}-")
    return {rank: record for (whose, _, rank), record in found.items() if whose == job}


def all_beats() -> dict[tuple[str, int, int], dict[str, Any]]:
    """Return the heartbeats of all jobs of this user, by job, attempt and rank. Includes ranks that have ended."""
    return _beats("")


def _beats(begin: str) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Return the heartbeats in files whose name continues with `begin` after the user's number."""
    found = {}
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
    prefix = f"{folder}/dlami-beat-{os.getuid()}-"
    for path in glob.glob(glob.escape(prefix + begin) + "*"):
        job, attempt, rank = (*path[len(prefix) :].rsplit("-", 2), "", "")[:3]
        if attempt.isdigit() and rank.isdigit() and (record := _beat(path)):
            found[job, int(attempt), int(rank)] = record
    return found


def main_processes(found: list[RankProcess]) -> dict[int, RankProcess]:
    """Return the first process of each rank. Processes that it starts carry its tags, too."""
    by_pid = {p.pid: p for p in found}
    return {
        p.rank: p
        for p in sorted(found, reverse=True)
        if p.rank is not None and (p.ppid not in by_pid or by_pid[p.ppid].rank != p.rank)
    }


def of_program(rank: RankProcess | None, found: list[RankProcess]) -> bool:
    """Return True if an operator's program runs here. It may outlive the process that sent its heartbeats."""
    return rank is not None and any(p.pid == rank.ppid and p.name == _WRAPPER for p in found)


def _beat(path: str) -> dict[str, Any] | None:
    """Return a heartbeat's record. Return None if the file is another user's or holds no complete record."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
            return None
        for _ in range(_TRIES):
            data = os.pread(fd, RECORD.size, 0)
            if len(data) < RECORD.size:
                return None
            count, magic, version, phase, pid, step, first, at, since, *longest, again = RECORD.unpack(data)
            if count == again and magic == MAGIC and version == VERSION:
                return {
                    "count": count, "phase": phase, "pid": pid, "step": step, "first": first, "at": at,
                    "since": since, "longest": longest,
                }  # fmt: skip
    finally:
        os.close(fd)
    return None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()

"""What trainings left on this host, listed or ended, as its answer.

Argument: {"end": bool, "jobs": ids that must not be touched, "all_mine": bool, "grace_s": seconds}.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import time
from typing import Any

from cluster.ssh.onhost.frame import say

LAUNCHERS = {"mpirun", "mpiexec", "orterun", "orted", "prte", "prted", "horovodrun"}
SEGMENTS = re.compile(r"vader_segment\.|nccl-|osc_|sm_segment\.|openmpi|ompi")
KILL_S = 3.0  # for a killed process to be gone


def processes(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything here that belongs to a training, each with why, whose, and whether it may be ended."""
    table = {pid: one for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if (one := _process(pid))}
    _spread(table)
    gpu = _gpu_megabytes()
    ours = _own_chain(table)
    return [
        _judged(one, gpu, asked)
        for pid, one in sorted(table.items())
        if pid not in ours and (one["job"] or one["run"] or one["training"] or pid in gpu)
    ]


def _process(pid: int) -> dict[str, Any] | None:
    """One process, None if it is gone or the kernel's own."""
    try:
        head, _, tail = _read(f"/proc/{pid}/stat").rpartition(b")")
        fields = tail.split()
        if fields[1] == b"2" or pid == 2:
            return None
        uid = os.stat(f"/proc/{pid}").st_uid
    except (OSError, IndexError):
        return None
    name = head.partition(b"(")[2].decode(errors="replace")
    variables = dict(v.split(b"=", 1) for v in _read_or_nothing(f"/proc/{pid}/environ").split(b"\0") if b"=" in v)
    command = _read_or_nothing(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return {
        "pid": pid,
        "ppid": int(fields[1]),
        "session": int(fields[3]),
        "state": fields[0].decode(),
        "uid": uid,
        "started": int(fields[19]),
        "command": command or f"[{name}]",
        "name": name,
        "job": variables.get(b"DLAMI_JOB", b"").decode(errors="replace"),
        "run": variables.get(b"DLAMI_RUN", b"").decode(errors="replace"),
        "training": name in LAUNCHERS
        or b"OMPI_COMM_WORLD_RANK" in variables
        or b"PMIX_RANK" in variables
        or _has_framework(pid),
    }


def _spread(table: dict[int, dict[str, Any]]) -> None:
    """A job's processes that lost its tag: zombies, and those in a session or below a parent that carries it."""
    for one in table.values():
        leader, seen = table.get(one["session"]), set()
        parent = table.get(one["ppid"])
        while parent and not parent["job"] and parent["pid"] not in seen:
            seen.add(parent["pid"])
            parent = table.get(parent["ppid"])
        one["job"] = one["job"] or (leader or {}).get("job", "") or (parent or {}).get("job", "")


def _judged(one: dict[str, Any], gpu: dict[int, int], asked: dict[str, Any]) -> dict[str, Any]:
    mine = one["uid"] == os.getuid()
    runs = one["job"] in asked["jobs"]
    return {
        "pid": one["pid"],
        "started": one["started"],
        "user": _user(one["uid"]),
        "state": one["state"],
        "command": one["command"][:300],
        "job": one["job"],
        "gpu_mb": gpu.get(one["pid"]),
        "orphan": one["ppid"] == 1,
        "runs": runs,
        "mine": mine,
        "end": mine and (asked["all_mine"] or bool(one["job"] and not runs)),
    }


def _own_chain(table: dict[int, dict[str, Any]]) -> set[int]:
    """This process, its ancestors, and everything of the same run: what is looking must not end itself."""
    run, pid, chain = os.environ.get("DLAMI_RUN", ""), os.getpid(), set()
    while pid in table and pid not in chain:
        chain.add(pid)
        pid = table[pid]["ppid"]
    return chain | {p for p, one in table.items() if run and one["run"] == run}


def _has_framework(pid: int) -> bool:
    """Whether a training framework is loaded; of others' processes only root may know."""
    return re.search(rb"libtensorflow_framework|libtorch|horovod", _read_or_nothing(f"/proc/{pid}/maps")) is not None


def _gpu_megabytes() -> dict[int, int]:
    """pid -> GPU memory it holds; nothing without a driver, or if its tool does not answer."""
    if not shutil.which("nvidia-smi"):
        return {}
    try:
        said = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = (line.split(",") for line in said.splitlines() if re.match(r"\d+,", line))
    return {int(pid): int(mb) if mb.strip().isdigit() else 0 for pid, mb in rows}


def segments(doomed: set[int]) -> list[dict[str, Any]]:
    """Shared memory that Open MPI or NCCL left: this user's, and mapped by nobody who stays."""
    used = b"".join(
        _read_or_nothing(f"/proc/{pid}/maps") for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in doomed
    )
    found = []
    for entry in os.scandir("/dev/shm") if os.path.isdir("/dev/shm") else ():
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if SEGMENTS.match(entry.name) and status.st_uid == os.getuid() and entry.path.encode() not in used:
                found.append({"path": entry.path, "bytes": status.st_blocks * 512})
    return found


def end(asked: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """TERM, grace, KILL for all that may be ended, looked for again until none is left: what is left, and removed."""
    deadline, step = time.monotonic() + asked["grace_s"], signal.SIGTERM
    sent: set[tuple[int, int]] = set()
    while left := [p for p in processes(asked) if p["end"] and p["state"] != "Z"]:
        if time.monotonic() > deadline:
            if step == signal.SIGKILL:
                break
            step, deadline, sent = signal.SIGKILL, time.monotonic() + KILL_S, set()
        for p in left:
            if (p["pid"], p["started"]) not in sent:
                sent.add((p["pid"], p["started"]))
                with contextlib.suppress(OSError):
                    os.kill(p["pid"], step)
        time.sleep(0.05)
    removed = []
    for segment in segments(set()):
        with contextlib.suppress(OSError):
            os.unlink(segment["path"])
            removed.append(segment["path"])
    return [p for p in processes(asked) if p["end"]], removed


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _read_or_nothing(path: str) -> bytes:
    try:
        return _read(path)
    except OSError:
        return b""


def main(asked: dict[str, Any]) -> None:
    """Say what is here, and after `end` what is still here."""
    found = processes(asked)
    doomed = {p["pid"] for p in found if p["end"]}
    answer: dict[str, Any] = {"processes": found, "segments": segments(doomed), "left": [], "removed": []}
    if asked["end"]:
        answer["left"], answer["removed"] = end(asked)
    say(answer)

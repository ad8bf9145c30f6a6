"""Reporter of useful work on this host, which runs as root and writes to the shared folder. Python 3.9.

    python3 -m cluster.guard.onhost.activity GUARD [SECONDS]     reports about every half minute, forever

GUARD is the guard's folder on the shared folder. Each kind of useful work is a counter that grows while the work is
seen:

- input on a terminal
- CPU or GPU load that no job's rank causes
- steps of ranks that send heartbeats
- progress of staging or preparation
- a first boot

In the other direction the reporter copies the guard's report to /run, and writes its warnings to every terminal.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from typing import Any, NamedTuple

from cluster.guard.onhost.policy import BOOTING, STEPS
from cluster.ssh.onhost.trusted_files import open_file, read_file

EVERY_S = 30.0
_FIRST_S = 3.0  # until the first report
TOLD = "/run/dlami-guard.json"  # copy of the guard's report, for tasks on this host
BOOT = "/run/dlami-cluster/report.json"
NVME = "/opt/dlami/nvme"  # where the DLAMI mounts instance storage
_BUSY_CORES, _BUSY_GPU = 0.25, 10  # cores; percent
_MOVED_BYTES = 1 << 20
_INIT = "1"  # init reaps orphans, and their whole CPU time is added to its own at once
_TICKS = os.sysconf("SC_CLK_TCK")
_BEAT = struct.Struct("<Q4s")  # first fields of a record of dlami/heartbeat.py: count, mark
# System services do not count as work, except those that run users' programs.
_SUPERVISOR = re.compile(rb"\0cluster\.jobs\.(supervisor\.)?supervise\0")  # the shorter name: of an older version
_SERVICE = re.compile(r"/system\.slice/(?!docker|containerd|ssh|cron|atd|slurm)[^/]*\.service")


class ProcessUsage(NamedTuple):
    """CPU time, bytes written and owner of a process, as the reporter needs them."""

    cpu_s: float  # CPU time, including that of ended children
    moved: int  # bytes written to any file
    is_job: bool  # a rank, or a process that supervises ranks and forwards their output
    is_ours: bool
    is_service: bool


def processes() -> dict[tuple[str, str], ProcessUsage]:
    """Return every process of this host, by its PID and its start time."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            head, _, tail = _read(f"/proc/{pid}/stat").rpartition(b")")
            fields, name = tail.split(), head.partition(b"(")[2]
            serves_jobs = name.startswith(b"ssh") or bool(_SUPERVISOR.search(_read(f"/proc/{pid}/cmdline")))
            in_a_unit = bool(_SERVICE.search(_read(f"/proc/{pid}/cgroup").decode(errors="replace")))
            variables = _read(f"/proc/{pid}/environ").split(b"\0")
            moved = int(_read(f"/proc/{pid}/io").split()[3])  # wchar: monitors such as `inv top` only read
            found[pid, fields[19].decode()] = ProcessUsage(
                cpu_s=sum(map(int, fields[11:15])) / _TICKS,
                moved=moved,
                is_job=serves_jobs or any(v.startswith(b"DLAMI_JOB=") for v in variables),
                is_ours=any(v.startswith(b"DLAMI_RUN=") for v in variables),
                is_service=in_a_unit or pid == _INIT or any(v.startswith(b"DLAMI_SERVICE=") for v in variables),
            )
    return found


def busy(
    before: dict[tuple[str, str], ProcessUsage], now: dict[tuple[str, str], ProcessUsage], seconds: float
) -> set[str]:
    """Return the kinds of work that processes have done since `before`. A new process counts from its beginning."""
    cores, moved, kinds = 0.0, 0, set()
    for key, one in now.items():
        old = before.get(key)
        cpu_s = one.cpu_s - (old.cpu_s if old else 0.0)
        if one.is_job or one.is_service:
            continue
        cores += cpu_s / max(seconds, 1.0)
        if one.is_ours:
            moved += one.moved - (old.moved if old else 0)
    if cores >= _BUSY_CORES:
        kinds.add("processors")
    if moved >= _MOVED_BYTES:
        kinds.add("staging or preparation")
    return kinds


def terminals() -> dict[str, int]:
    """Return the time of the last input on each terminal, by path: the access time that the kernel keeps."""
    found = {}
    for path in (*glob.glob("/dev/pts/[0-9]*"), *glob.glob("/dev/tty[0-9]*"), *glob.glob("/dev/ttyS*")):
        with contextlib.suppress(OSError):
            found[path] = int(os.stat(path).st_atime)
    return found


def typed(before: dict[str, int], now: dict[str, int]) -> bool:
    """Return True if a terminal had input since `before`.

    A new terminal counts as input, because somebody opened it.
    """
    return any(before.get(path, 0) < at for path, at in now.items())


def beats() -> int:
    """Return the sum of the heartbeat counters of all users' ranks on this host."""
    total = 0
    for path in glob.glob("/dev/shm/dlami-beat-*"):
        with contextlib.suppress(OSError, struct.error):
            fd = open_file(path)
            try:
                count, mark = _BEAT.unpack(os.pread(fd, _BEAT.size, 0))
                total += count if mark == b"beat" else 0
            finally:
                os.close(fd)
    return total


def gpu_is_busy(now: dict[tuple[str, str], ProcessUsage]) -> bool:
    """Return True if a GPU is busy and a process that is no job's rank uses it."""
    if not shutil.which("nvidia-smi"):
        return False
    used = {line.strip() for line in _smi("--query-gpu=uuid,utilization.gpu") if _percent(line) >= _BUSY_GPU}
    jobs = {pid for (pid, _), one in now.items() if one.is_job}
    cards = {line.partition(",")[0].strip() for line in used}
    for line in _smi("--query-compute-apps=gpu_uuid,pid"):
        card, _, pid = line.partition(",")
        if card.strip() in cards and pid.strip() not in jobs:
            return True
    return False


def local_data() -> list[str]:
    """Describe the content of instance storage on one line, with its size in GiB; [] if it is empty.

    The data on these disks is lost when the instance ends.
    """
    if not os.path.ismount(NVME):
        return []
    with contextlib.suppress(OSError):
        room = os.statvfs(NVME)
        names = sorted(n for n in os.listdir(NVME) if not n.startswith(".") and n != "lost+found")
        used = (room.f_blocks - room.f_bfree) * room.f_frsize / 2**30
        if names:
            return [f"{NVME}: {', '.join(names[:8])}{' …' if len(names) > 8 else ''} ({used:.0f} GiB)"]
    return []


class UsefulWork:
    """Counters of useful work on this host since the reporter started."""

    def __init__(self) -> None:
        self._boot = _read("/proc/sys/kernel/random/boot_id").decode()[:8]
        self._counts: dict[str, int] = {}
        self._processes, self._terminals, self._beats = processes(), terminals(), beats()
        self._at = time.monotonic()

    def look(self) -> dict[str, Any]:
        """Read this host's activity again, update the counters, and return the report."""
        now, at, ttys, steps = processes(), time.monotonic(), terminals(), beats()
        kinds = busy(self._processes, now, at - self._at)
        kinds |= {"a terminal"} if typed(self._terminals, ttys) else set()
        kinds |= {STEPS} if steps != self._beats else set()
        kinds |= {"a GPU"} if gpu_is_busy(now) else set()
        kinds |= {BOOTING} if _object(BOOT).get("status") == "running" else set()
        for kind in kinds:
            self._counts[kind] = self._counts.get(kind, 0) + 1
        self._processes, self._terminals, self._beats, self._at = now, ttys, steps, at
        return {
            "host": socket.gethostname(),
            "signs": {kind: f"{self._boot}:{n}" for kind, n in self._counts.items()},
            "local": local_data(),
        }


def serve(folder: str, every_s: float = EVERY_S) -> None:
    """Report the host's activity and show the guard's warnings, forever.

    A hung shared folder blocks only this process.
    """
    watch, heard, pause_s = UsefulWork(), "", min(_FIRST_S, every_s)
    while True:
        time.sleep(pause_s)
        pause_s = every_s
        report = watch.look()
        with contextlib.suppress(OSError):
            write(os.path.join(folder, "hosts", f"{report['host']}.json"), json.dumps(report))
        told = _object(os.path.join(folder, "told.json"))
        with contextlib.suppress(OSError):
            write(TOLD, json.dumps(told))
        warning = str(told.get("warning", ""))
        if warning and warning != heard:
            wall(warning)
        heard = warning


def wall(text: str) -> None:
    """Write a text to every terminal of this host."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["wall"], input=text.encode(), timeout=10, check=False, stderr=subprocess.DEVNULL)


def write(path: str, text: str) -> None:
    """Write a file atomically, mode 0644."""
    fresh = f"{path}.new"
    with open(fresh, "w") as file:
        file.write(text)
    os.chmod(fresh, 0o644)
    os.replace(fresh, path)


def _object(path: str) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_file(path))
        if isinstance(found, dict):
            return found
    return {}


def _smi(query: str) -> list[str]:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
        return subprocess.run(words, capture_output=True, text=True, timeout=20, check=False).stdout.splitlines()
    return []


def _percent(line: str) -> float:
    with contextlib.suppress(ValueError):
        return float(line.rpartition(",")[2])
    return 0.0


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


if __name__ == "__main__":
    serve(sys.argv[1], *map(float, sys.argv[2:]))

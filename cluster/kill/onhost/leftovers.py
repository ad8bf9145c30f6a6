"""Finder of what trainings left on this host, which lists or ends it.

Arguments: the fields of `Request`, with what is to go on every host by address, and this host's address.
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
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from cluster.ssh.onhost.command_line import command_line, on_one_line
from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.job_record import read_record

LAUNCHERS = {"mpirun", "mpiexec", "orterun", "orted", "prte", "prted", "horovodrun"}
# Open MPI's segments (shared memory transport, one-sided windows, shmem) and NCCL's, by their whole names.
SEGMENT = re.compile(
    r"(?:vader|sm)_segment\.[\w.-]+\.[0-9a-f]+\.\d+|osc_(?:rdma|sm)\.[\w.-]+\.[0-9a-f]+\.\d+(?:\.\d+)?"
    r"|open_mpi\.\d{4}|nccl-[A-Za-z0-9]{6}"
)
CODE = re.compile(r"(?P<folder>/.*/jobs/(?P<job>[^/]+))/code(?:/.*)?")  # where the ranks of a job run
KILL_S = 3.0  # for a killed process to be gone
HEALTH_S = 1800.0  # a run of 'inv health', which has no record, takes less
ATTENDED_S = 45.0  # a page counts as viewed for this time after the last touch (cluster/tunnels/service.py)


class LeftoversArguments(NamedTuple):
    """Arguments of this program."""

    going: list[str]  # active jobs, as this cluster's master knows them
    over: list[str]  # jobs that are over, whatever their record contains
    lost: Sequence[str] = ()  # jobs that may be active without a report to the master
    all_mine: bool = False  # also end processes of no live job and of no other command
    grace_s: float = 5.0
    end: list[list[int]] | None = None  # pid and start of each process to end; None: list only
    segments: list[list[Any]] | None = None  # path and inode of each segment to remove


class ProcEntry(NamedTuple):
    """Process as /proc describes it."""

    pid: int
    ppid: int
    session: int
    tty: int
    state: str
    uid: int
    started: int
    name: str
    command: str
    job: str
    folder: str
    run: str
    is_training: bool
    page: str = ""  # the id of the TensorBoard or notebook that it serves
    page_folder: str = ""

    @property
    def identity(self) -> tuple[int, int]:
        """Return PID and start time, which no later process with the same PID shares."""
        return self.pid, self.started


def find_processes(asked: LeftoversArguments, table: dict[int, ProcEntry] | None = None) -> list[dict[str, Any]]:
    """Return every process here that belongs to a training, each with its user, its job and its fate."""
    table = processes() if table is None else table
    gpu = _gpu_megabytes()
    own, records = _own_chain(table), JobStates(asked)
    return [
        {
            "pid": one.pid,
            "started": one.started,
            "user": _user(one.uid),
            "state": one.state,
            "command": one.command[:300],
            "job": one.job,
            "page": one.page,
            "gpu_mb": gpu.get(pid),
            "orphan": one.ppid == 1,
            "fate": fate(one, asked, records),
        }
        for pid, one in sorted(table.items())
        if pid not in own and (one.job or one.page or one.run or one.is_training or pid in gpu)
    ]


def fate(one: ProcEntry, asked: LeftoversArguments, records: JobStates) -> str:
    """Return `end`, or why the process is not to be ended."""
    if one.uid != os.getuid():
        return "another user's"
    if one.job:
        state = records.state(one)
        if state == "over":
            return "end"
        if state == "going":
            return "its job runs"
        if state == "lost":
            return "its job is lost"
        return "end" if asked.all_mine and state == "unknown" else "its job is not known"
    if one.run or (one.page and _is_looked_at(one.page_folder)):
        return "another inv's"
    if one.page:
        return "end"
    return "end" if asked.all_mine else "no job's"


class JobStates:
    """States of jobs: as the master reported or, if it does not know them, by their own record."""

    def __init__(self, asked: LeftoversArguments) -> None:
        self._asked = asked
        self._read: dict[str, str] = {}  # folder -> state

    def state(self, one: ProcEntry) -> str:
        """Return `over`, `going`, `lost`, `unknown`, or `brief` for a run without a record that ends by itself."""
        if one.job in self._asked.going:
            return "going"
        if one.job in self._asked.over:
            return "over"
        if one.job in self._asked.lost:
            return "lost"
        if one.job.startswith("health-") and not one.folder:
            return "brief" if _age_s(one.started) < HEALTH_S else "unknown"
        if one.folder not in self._read:
            state = read_record(one.folder).state
            self._read[one.folder] = "over" if state == "removed" else state
        return self._read[one.folder]


def processes() -> dict[int, ProcEntry]:
    """Return all processes of this host but the kernel's, each with its job."""
    table = {pid: one for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if (one := _process(pid))}
    return {pid: _with_job(one, table) for pid, one in table.items()}


def _process(pid: int) -> ProcEntry | None:
    """Return one process; None if it is gone or the kernel's own."""
    try:
        head, _, tail = _read(f"/proc/{pid}/stat").rpartition(b")")
        fields = tail.split()
        if fields[1] == b"2" or pid == 2:
            return None
        uid = os.stat(f"/proc/{pid}").st_uid
    except (OSError, IndexError):
        return None
    name = head.partition(b"(")[2].decode(errors="replace")
    pairs = (v.partition(b"=") for v in _read_or_nothing(f"/proc/{pid}/environ").split(b"\0"))
    variables = {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}
    return ProcEntry(
        pid=pid,
        ppid=int(fields[1]),
        session=int(fields[3]),
        tty=int(fields[4]),
        state=fields[0].decode(),
        uid=uid,
        started=int(fields[19]),
        name=name,
        command=_command(pid) or on_one_line(f"[{name}]"),
        job=variables.get("DLAMI_JOB", ""),
        folder=variables.get("DLAMI_JOB_FOLDER", ""),
        run=variables.get("DLAMI_RUN", ""),
        page=variables.get("DLAMI_TUNNEL", ""),
        page_folder=variables.get("DLAMI_TUNNEL_FOLDER", ""),
        is_training=name in LAUNCHERS
        or "OMPI_COMM_WORLD_RANK" in variables
        or "PMIX_RANK" in variables
        or _has_framework(pid),
    )


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return command_line(pid)
    return ""


def _with_job(one: ProcEntry, table: dict[int, ProcEntry]) -> ProcEntry:
    """Return the process with the job of its session's leader or a parent, if it has no tag itself.

    This holds for a zombie, too. An orphan without a terminal whose session's leader is gone belongs to the job in
    whose folder it runs: ranks run there, and so does what they start.
    """
    if one.job:
        return one
    seen: set[int] = set()
    parent = table.get(one.ppid)
    while parent and not parent.job and parent.pid not in seen:
        seen.add(parent.pid)
        parent = table.get(parent.ppid)
    leader = table.get(one.session)
    for other in (leader, parent):
        if other and other.job:
            return one._replace(job=other.job, folder=other.folder)
    if one.ppid == 1 and leader is None and not one.tty:
        with contextlib.suppress(OSError):
            if match := CODE.fullmatch(os.readlink(f"/proc/{one.pid}/cwd")):
                return one._replace(job=match["job"], folder=match["folder"])
    return one


def _own_chain(table: dict[int, ProcEntry]) -> set[int]:
    """Return this process, its ancestors, and everything of the same run, which must not be ended."""
    run, pid, chain = os.environ.get("DLAMI_RUN", ""), os.getpid(), set()
    while pid in table and pid not in chain:
        chain.add(pid)
        pid = table[pid].ppid
    return chain | {p for p, one in table.items() if run and one.run == run}


def _has_framework(pid: int) -> bool:
    """Return True if a training framework is loaded. For other users' processes this needs root."""
    return re.search(rb"libtensorflow_framework|libtorch|horovod", _read_or_nothing(f"/proc/{pid}/maps")) is not None


def _gpu_megabytes() -> dict[int, int]:
    """Return the GPU memory in MB by PID; {} without a driver, or if its tool does not answer."""
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
    """Return shared memory that Open MPI or NCCL left: this user's alone, and used only by processes in `doomed`."""
    found = []
    for entry in os.scandir("/dev/shm") if os.path.isdir("/dev/shm") else ():
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            # A segment must be private: this process cannot inspect other users' processes for its use.
            is_private = os.getuid() == 0 or not status.st_mode & 0o077
            is_file = entry.is_file(follow_symlinks=False)
            if SEGMENT.fullmatch(entry.name) and is_file and status.st_uid == os.getuid() and is_private:
                found.append({"path": entry.path, "inode": status.st_ino, "bytes": status.st_blocks * 512})
    used = _used_inodes(doomed) if found else set()
    return [segment for segment in found if segment["inode"] not in used]


def _used_inodes(doomed: set[int]) -> set[int]:
    """Return the inodes in /dev/shm that a process has mapped or open; processes in `doomed` do not count."""
    device, used = os.stat("/dev/shm").st_dev, set()
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) in doomed:
            continue
        for line in _read_or_nothing(f"/proc/{pid}/maps").splitlines():
            words = line.split(None, 5)
            if len(words) > 5 and words[4] != b"0":
                major, minor = (int(n, 16) for n in words[3].split(b":"))
                if os.makedev(major, minor) == device:
                    used.add(int(words[4]))
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{fd}")
                    if status.st_dev == device:
                        used.add(status.st_ino)
    return used


def end(asked: LeftoversArguments) -> tuple[list[dict[str, Any]], list[str]]:
    """End the requested processes by SIGTERM and, after the grace time, by SIGKILL; check until none is left.

    Processes that they start meanwhile are ended, too, and nothing else is. Returns what is still there, with those
    that may not be ended any more and why, and the segments that were removed.
    """
    shown = ShownProcesses({(int(pid), int(started)) for pid, started in asked.end or ()})
    deadline, step = time.monotonic() + asked.grace_s, signal.SIGTERM
    sent: set[tuple[int, int]] = set()
    while left := [p for p in shown.still_there(asked) if p["fate"] == "end" and p["state"] != "Z"]:
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
    return shown.still_there(asked), _remove(asked)


class ShownProcesses:
    """Processes that were shown and their descendants, recognized even after their parent or its tag is gone."""

    def __init__(self, identities: set[tuple[int, int]]) -> None:
        self._asked, self._identities = frozenset(identities), set(identities)
        # Job and folder of each process that was seen with a tag
        self._tags: dict[tuple[int, int], tuple[str, str]] = {}
        self._sessions: set[tuple[int, str]] = set()

    def still_there(self, asked: LeftoversArguments) -> list[dict[str, Any]]:
        """Return those that still exist, each with its current fate.

        Of their descendants, only those that may be ended are returned.
        """
        table = {pid: self._with_tag(one) for pid, one in processes().items()}
        mine = [one for one in table.values() if one.identity in self._identities]
        self._sessions |= {(one.session, one.job) for one in mine if one.job}
        self._note(mine)
        while new := [one for one in table.values() if self._is_new(one, table)]:
            self._note(new)
        found = [(p, (p["pid"], p["started"])) for p in find_processes(asked, table)]
        return [p for p, it in found if it in self._asked or (it in self._identities and p["fate"] == "end")]

    def _with_tag(self, one: ProcEntry) -> ProcEntry:
        """Return the process with the job that it had while its session's leader or parent was alive.

        Zombies get none.
        """
        job, folder = self._tags.get(one.identity, ("", ""))
        return one._replace(job=job, folder=folder) if job and not one.job and one.state != "Z" else one

    def _is_new(self, one: ProcEntry, table: dict[int, ProcEntry]) -> bool:
        if one.identity in self._identities:
            return False
        parent = table.get(one.ppid)
        return bool(parent and parent.identity in self._identities) or (one.session, one.job) in self._sessions

    def _note(self, ours: Iterable[ProcEntry]) -> None:
        for one in ours:
            self._identities.add(one.identity)
            if one.job:
                self._tags[one.identity] = one.job, one.folder


def _remove(asked: LeftoversArguments) -> list[str]:
    wanted, removed = {(path, inode) for path, inode in asked.segments or ()}, []
    for segment in segments(set()) if wanted else ():
        if (segment["path"], segment["inode"]) in wanted:
            with contextlib.suppress(OSError):
                os.unlink(segment["path"])
                removed.append(segment["path"])
    return removed


def _is_looked_at(folder: str) -> bool:
    """Return True if somebody has looked at this page within ATTENDED_S."""
    try:
        return time.time() - os.stat(os.path.join(folder, "seen")).st_mtime < ATTENDED_S
    except OSError:
        return False


def _age_s(started: int) -> float:
    return float(_read("/proc/uptime").split()[0]) - started / os.sysconf("SC_CLK_TCK")


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


def main(asked: dict[str, Any], address: str) -> None:
    """Send what is here; if processes or segments are to go, end them and send what is left."""
    to_go = asked.pop("to_go", None)
    if to_go is not None:
        left, removed = end(LeftoversArguments(**asked, **to_go[address]))
        say({"left": left, "removed": removed})
        return
    found = find_processes(LeftoversArguments(**asked))
    say({"processes": found, "segments": segments({p["pid"] for p in found if p["fate"] == "end"})})

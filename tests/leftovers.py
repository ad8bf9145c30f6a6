"""What a test left on the hosts of a lab that others share: it is named and ended, so that the next finds them as it did.

A process belongs to a test if it began after the test did, and not of what was there before: neither under an older
process nor for a job that an older fixture made. It has some seconds to end by itself, as what was just told to end does.
The system's files are as the test found them (tests/host_files.py), and so are programs that it replaced.
After a test that failed the hosts of the run's own labs are made anew, for it may have stopped anywhere.
"""

import contextlib
import functools
import os
import shutil
import signal
import time
import warnings
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.recovery.host_failures import FOLDER as HOST_FAILURES
from lab import lab as labs
from lab import nodes
from lab.record import Lab
from tests.host_files import put_back, system_files

OWN_LABS = ("session_lab", "four_hosts")  # as the run made them, with nothing of a fixture's on the hosts' own disks
FAILED = pytest.StashKey[bool]()
GRACE_S = 3.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process of a lab host, as this machine numbers it."""

    pid: int
    ppid: int
    started: int  # ticks since this machine's boot
    name: str
    host: str

    @functools.cached_property
    def environment(self) -> dict[str, str]:
        """What it was started with; nothing of one that is gone."""
        pairs = (v.partition("=") for v in _read(self.pid, "environ").split("\0"))
        return {key: value for key, _, value in pairs}

    @functools.cached_property
    def command(self) -> str:
        """Its words."""
        return _read(self.pid, "cmdline").replace("\0", " ").strip()

    @property
    def is_of_the_host(self) -> bool:
        """Whether it is what a lab host may run: its first process, sshd, and open connections, which outlive a command."""
        is_connection = self.name == "ssh" and "ControlMaster=yes" in self.command
        return self.name.startswith("sshd") or is_connection or "DLAMI_LAB" in self.environment

    def __str__(self) -> str:
        job = self.environment.get("DLAMI_JOB")
        return f"{self.host}: {self.command[:120] or self.name}" + (f" (of job {job})" if job else "")


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Around every test on hosts: what is told of it is a warning, or the test's failure."""
    if "lab_allowed" not in request.fixturenames:
        yield
        return
    since, ticks = time.time(), int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)
    before = {name: system_files(lab) for name, lab in _given(request).items() if name in OWN_LABS}
    yield
    given = _given(request)
    named = {lab.name: lab for lab in given.values()}
    for lab in named.values():
        left: list[object] = [*end_left(lab, ticks, since)]
        for files in (files for name, files in before.items() if given.get(name) == lab):
            left += put_back(lab, files, first_processes(lab.name))
        if left:
            words = f"{request.node.nodeid} left on the lab's hosts: " + "; ".join(map(str, left))
            warnings.warn(pytest.PytestWarning(words), stacklevel=1)
    if request.node.stash.get(FAILED, False):
        for lab in named.values():
            if lab in [given.get(name) for name in OWN_LABS] and not _is_busy(lab):
                renew(lab)


def _given(request: pytest.FixtureRequest) -> dict[str, Lab]:
    """The labs that the test's fixtures have made so far and not taken down, by the fixture's name."""
    values: dict[str, Any] = getattr(request.node, "funcargs", None) or {}  # None once the run is being ended
    return {name: value for name, value in values.items() if isinstance(value, Lab) and value.folder.exists()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remembers that the test failed, for what is done after it."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


def renew(lab: Lab) -> None:
    """Hosts that have nothing of what was done to them, as after `inv lab.up`; the shared folder stays."""
    nodes.end(lab.name, nodes.running(lab.name).values())
    for host in lab.hosts:
        for part in ("upper", "work"):
            shutil.rmtree(lab.host_folder(host) / part)
        nodes.prepare(lab, host)
    nodes.make_master(lab, lab.hosts[0])
    nodes.introduce(lab)
    labs.heal(lab, lab.hosts)


def _is_busy(lab: Lab) -> bool:
    """Whether something of an older fixture runs there."""
    return any(not one.is_of_the_host for one in processes(first_processes(lab.name)))


def end_left(lab: Lab, ticks: int, since: float) -> list[Process]:
    """What the test that began then left on the lab's hosts, which is ended, and its jobs and host failures removed."""
    deadline = time.monotonic() + GRACE_S
    firsts = first_processes(lab.name)
    while (left := left_by(lab, table := processes(firsts), ticks, since)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for one in left:
        with contextlib.suppress(ProcessLookupError):
            if one.started == _started(one.pid):
                os.kill(one.pid, signal.SIGKILL)
    for job in {one.environment.get("DLAMI_JOB") for one in left} - {None, ""}:
        shutil.rmtree(lab.shared / "jobs" / str(job), ignore_errors=True)  # else a rebooted master goes on with it
    shutil.rmtree(lab.shared / HOST_FAILURES, ignore_errors=True)
    if segments := [(host, path) for host, pid in firsts.items() for path in _segments(pid)]:
        busy = {one.host for one in table if one not in left and not one.is_of_the_host}
        for path in (path for host, path in segments if host not in busy):
            path.unlink(missing_ok=True)
    return left


def left_by(lab: Lab, table: list[Process], ticks: int, since: float) -> list[Process]:
    """Those that began after the test did, and are nobody else's."""
    by_pid = {one.pid: one for one in table}
    mine = {one.pid for one in table if one.started > ticks and not one.is_of_the_host and one.command}

    def is_of_what_was_there(one: Process) -> bool:
        above = by_pid.get(one.ppid)
        while above and above.pid in mine:
            above = by_pid.get(above.ppid)
        if above and not above.is_of_the_host:
            return True
        with contextlib.suppress(OSError):
            job = one.environment.get("DLAMI_JOB", "")
            return bool(job) and (lab.shared / "jobs" / job / "job.json").stat().st_mtime < since
        return False

    return [by_pid[pid] for pid in sorted(mine) if not is_of_what_was_there(by_pid[pid])]


_FIRSTS: dict[str, dict[str, tuple[int, int]]] = {}  # lab -> host -> pid and start of its first process


def first_processes(lab: str) -> dict[str, int]:
    """Host -> pid of its first process; remembered while each of them lives."""
    known = _FIRSTS.get(lab, {})
    if not known or any(_started(pid) != started for pid, started in known.values()):
        known = {host: (pid, _started(pid)) for host, pid in nodes.running(lab).items()}
        _FIRSTS[lab] = known
    return {host: pid for host, (pid, _) in known.items()}


def processes(firsts: dict[str, int]) -> list[Process]:
    """What runs on these hosts, by their PID namespaces; threads of the kernel and what is defunct are none."""
    hosts = {_namespace(pid): host for host, pid in firsts.items()}
    found = []
    for pid in (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
        if (host := hosts.get(_namespace(pid))) is not None and (stat := _read(pid, "stat")):
            name, _, tail = stat.partition("(")[2].rpartition(")")
            fields = tail.split()
            if fields[0] not in "ZX":
                found.append(Process(pid=pid, ppid=int(fields[1]), started=int(fields[19]), name=name, host=host))
    return found


def _segments(first: int) -> list[Path]:
    """Shared memory on the host of this first process."""
    try:
        return list(Path(f"/proc/{first}/root/dev/shm").iterdir())
    except OSError:
        return []


def _namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


def _started(pid: int) -> int:
    tail = _read(pid, "stat").rpartition(")")[2].split()
    return int(tail[19]) if tail else 0


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""

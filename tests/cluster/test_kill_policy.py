"""Which processes may be ended and whose each is: pure, on values, but for records and a folder in which one stands."""

import ctypes
import mmap
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.kill.onhost.leftovers import (
    HEALTH_S,
    SEGMENT,
    JobStates,
    LeftoversArguments,
    ProcEntry,
    _gpu_megabytes,
    _own_chain,
    _with_job,
    fate,
    find_processes,
    segments,
)

TICKS = os.sysconf("SC_CLK_TCK")


def now() -> int:
    """This moment as a process's start is counted."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)


def a_process(pid: int = 100, **changes: Any) -> ProcEntry:
    """One of this user's, of no job."""
    fields = {
        "pid": pid, "ppid": 1, "session": pid, "tty": 0, "state": "S", "uid": os.getuid(), "started": now(),
        "name": "python", "command": "python train.py", "job": "", "folder": "", "run": "", "is_training": False,
    }  # fmt: skip
    return ProcEntry(**{**fields, **changes})


def decided(one: ProcEntry, **asked: Any) -> str:
    request = LeftoversArguments(**{"going": [], "over": [], **asked})
    return fate(one, request, JobStates(request))


@pytest.mark.parametrize(
    ("changes", "asked", "expected", "of_all_mine"),
    [
        ({"uid": os.getuid() + 1, "job": "x"}, {"over": ["x"]}, "another user's", "another user's"),
        ({"job": "x"}, {"over": ["x"]}, "end", "end"),
        ({"job": "x"}, {"going": ["x"], "over": ["x"]}, "its job runs", "its job runs"),
        ({"job": "x"}, {"lost": ["x"]}, "its job is lost", "its job is lost"),
        ({"job": "x"}, {}, "its job is not known", "end"),
        ({"job": "health-1"}, {}, "its job is not known", "its job is not known"),
        ({"job": "health-1", "started": now() - int(HEALTH_S * TICKS) - 1}, {}, "its job is not known", "end"),
        ({"job": "x", "run": "r"}, {"over": ["x"]}, "end", "end"),
        ({"run": "r"}, {}, "another inv's", "another inv's"),
        ({"run": "r", "page": "p"}, {}, "another inv's", "another inv's"),
        ({"page": "p", "page_folder": "/nowhere"}, {}, "end", "end"),
        ({}, {}, "no job's", "end"),
        ({"is_training": True}, {}, "no job's", "end"),
    ],
)
def test_what_may_be_ended(changes: Any, asked: Any, expected: str, of_all_mine: str) -> None:
    """By whose it is, by what the master knows of its job, and by what was asked for: the surest word first."""
    one = a_process(**changes)

    assert expected == decided(one, **asked)
    assert of_all_mine == decided(one, **asked, all_mine=True)


def test_of_a_job_that_the_master_does_not_know_its_own_record_decides(tmp_path: Path) -> None:
    """One that is going, over, damaged, or was removed with its folder."""
    (tmp_path / "jobs/x").mkdir(parents=True)
    record = tmp_path / "jobs/x/state.json"
    one = a_process(job="x", folder=str(record.parent))
    for text, expected in (
        ('{"state": "running"}', "its job runs"),
        ('{"state": "failed"}', "end"),
        ('{"sta', "its job runs"),
        ("", "its job is not known"),
    ):
        record.write_text(text)
        assert expected == decided(one), text
    record.unlink()
    record.parent.rmdir()
    assert "end" == decided(one)
    assert "its job runs" == decided(one, going=["x"])


def test_a_page_that_somebody_looks_at_is_left_alone(tmp_path: Path) -> None:
    """As long as he has said so a moment ago."""
    one, seen = a_process(page="p", page_folder=str(tmp_path)), tmp_path / "seen"
    seen.touch()
    assert "another inv's" == decided(one, all_mine=True)
    os.utime(seen, (time.time() - 60, time.time() - 60))
    assert "end" == decided(one)


def of_job(pid: int, others: dict[int, ProcEntry]) -> tuple[str, str]:
    found = _with_job(others[pid], others)
    return found.job, found.folder


def test_what_has_no_tag_is_of_the_job_of_its_session_or_of_a_parent() -> None:
    """Its own tag first, then its session's leader, then the nearest of its parents that has one."""
    table = {
        one.pid: one
        for one in (
            a_process(10, job="x", folder="/x"),
            a_process(11, ppid=10, session=99),
            a_process(12, ppid=11, session=99),
            a_process(13, ppid=12, session=10),
            a_process(14, ppid=12, session=10, job="y", folder="/y"),
            a_process(15, ppid=14, session=10),
            a_process(20, ppid=21, session=99),
            a_process(21, ppid=20, session=99),
        )
    }
    assert [("x", "/x")] * 3 == [of_job(pid, table) for pid in (11, 12, 13)]
    assert [("y", "/y"), ("x", "/x")] == [of_job(pid, table) for pid in (14, 15)]
    assert [("", "")] * 2 == [of_job(pid, table) for pid in (20, 21)], "as numbers were used again"


def test_an_orphan_is_of_the_job_in_whose_code_it_stands(tmp_path: Path) -> None:
    """One without a session's leader and without a terminal: a person may stand there, too."""
    code = tmp_path / "jobs/dead/code/lib"
    code.mkdir(parents=True)
    standing = subprocess.Popen(["sleep", "4000"], cwd=code)
    try:
        orphan = a_process(standing.pid, session=1 << 30)
        assert ("dead", str(code.parents[1])) == of_job(orphan.pid, {orphan.pid: orphan})
        for more in ({"tty": 34816}, {"ppid": 2}, {"session": orphan.pid}):
            one = orphan._replace(**more)
            assert ("", "") == of_job(one.pid, {one.pid: one}), more
    finally:
        standing.kill()
        standing.wait()


def test_who_looks_is_not_listed_nor_what_is_of_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its parents nor what else its run started; an orphan is said to be one."""
    monkeypatch.setenv("DLAMI_RUN", "mine")
    me, parent = os.getpid(), os.getppid()
    table = {
        one.pid: one
        for one in (
            a_process(me, ppid=parent, is_training=True),
            a_process(parent, ppid=3, job="x"),
            a_process(3, ppid=0, is_training=True),
            a_process(4_000_001, run="mine", is_training=True),
            a_process(4_000_002, run="other"),
            a_process(4_000_003, ppid=3, job="x"),
            a_process(4_000_004),
            a_process(4_000_005, ppid=3, page="p"),
        )
    }

    assert {me, parent, 3, 4_000_001} == _own_chain(table)
    listed = find_processes(LeftoversArguments(going=[], over=["x"]), table)
    expected = [(4_000_002, "another inv's", True), (4_000_003, "end", False), (4_000_005, "end", False)]
    assert expected == [(p["pid"], p["fate"], p["orphan"]) for p in listed]
    monkeypatch.delenv("DLAMI_RUN")
    assert {me, parent, 3} == _own_chain(table)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("vader_segment.gpu0.0.7a1b0001.3", True),
        ("sm_segment.gpu0.1000.7a1b0001.0", True),
        ("osc_rdma.gpu0.7a1b0001.2.5", True),
        ("open_mpi.0001", True),
        ("nccl-a1B2c3", True),
        ("nccl-a1B2c3d", False),
        ("my-vader_segment.gpu0.7a1b0001.3", False),
        ("open_mpi.1", False),
        ("dlami-beat-0-x-1-0", False),
    ],
)
def test_shared_memory_is_known_by_its_whole_name(name: str, is_one: bool) -> None:
    """Of Open MPI and NCCL; what only begins or ends like it is another's."""
    assert is_one is (SEGMENT.fullmatch(name) is not None)


@pytest.fixture
def segment() -> Iterator[Path]:
    """A piece of shared memory that is called as NCCL's are."""
    file = Path("/dev/shm") / f"nccl-{secrets.token_hex(3)}"
    file.write_bytes(b"x" * 8192)
    file.chmod(0o600)
    yield file
    file.unlink(missing_ok=True)


def listed(file: Path, doomed: Sequence[int] = ()) -> list[dict[str, Any]]:
    return [one for one in segments(set(doomed)) if one["path"] == str(file)]


def test_shared_memory_that_somebody_uses_is_none_that_was_left(segment: Path) -> None:
    """Open or mapped, by whatever name; what those have that are to be ended does not count."""
    (one,) = listed(segment)
    assert {"path": str(segment), "inode": segment.stat().st_ino, "bytes": 8192} == one
    with segment.open("r+b") as file:
        assert [] == listed(segment)
        assert [one] == listed(segment, [os.getpid()])
        libc = ctypes.CDLL(None)  # Python's own keeps a descriptor open
        libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, *[ctypes.c_long] * 5)
        libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_long
        mapped = libc.mmap(None, 8192, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    assert [] == listed(segment)
    libc.munmap(mapped, 8192)
    assert [one] == listed(segment)


def test_shared_memory_of_another_name_or_kind_is_no_training_s(segment: Path) -> None:
    """Nor is a link in its place."""
    other = segment.rename(f"{segment}x")
    segment.symlink_to(other)
    try:
        assert [] == listed(segment) == listed(other)
    finally:
        other.unlink()


def test_gpu_memory_is_told_by_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the driver tells it; nothing where its tool is not there, or fails."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '%s\\n' '12, 34' '56, [N/A]' 'no processes'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert {} == _gpu_megabytes()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert {12: 34, 56: 0} == _gpu_megabytes()
    tool.write_text("no program")
    assert {} == _gpu_megabytes()

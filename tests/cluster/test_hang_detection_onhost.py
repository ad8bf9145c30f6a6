"""What runs on a job's hosts to read beats and stacks, and who listens to it: processes by hand, no job."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.hang_detection import rank_reports
from cluster.hang_detection.onhost import beats, ranks, stacks
from cluster.hang_detection.onhost.beats import OVER, pause
from cluster.hang_detection.onhost.ranks import (
    MAGIC,
    RECORD,
    VERSION,
    RankProcess,
    main_processes,
    of_program,
    stopped_daemon,
)
from cluster.hosts import Host
from cluster.ssh.result import FanOut, Result
from tests.conftest import PATIENCE_S
from tests.processes import begun


def a_process(pid: int, ppid: int = 1, name: str = "python", rank: int | None = None, state: str = "S") -> RankProcess:
    return RankProcess(pid=pid, ppid=ppid, state=state, cpu_s=0.5, name=name, rank=rank)


def test_the_first_process_of_a_rank_is_the_one_whose_parent_is_another_s() -> None:
    """Of several the oldest; what has no rank is none."""
    found = [
        a_process(10, name="orted"), a_process(11, 10, rank=0), a_process(12, 11, rank=0), a_process(13, 10, rank=1),
        a_process(15, 11, rank=2), a_process(14, 99, rank=0),
    ]  # fmt: skip
    assert {0: 11, 1: 13, 2: 15} == {rank: p.pid for rank, p in main_processes(found).items()}


def test_an_operator_s_program_is_known_by_its_wrapper() -> None:
    """As the parent of the rank, by its name."""
    wrapper, rank = a_process(10, name="dlami-rank"), a_process(11, 10, rank=0)
    assert of_program(rank, [wrapper, rank])
    assert not of_program(rank, [a_process(10, name="bash"), rank])
    assert not of_program(a_process(12, 11, rank=0), [wrapper, rank])
    assert not of_program(None, [wrapper])


@pytest.mark.parametrize(
    ("name", "rank", "state", "found"),
    [
        ("orted", None, "T", "orted"), ("mpirun", None, "t", "mpirun"), ("prted", None, "T", "prted"), ("orted", None, "S", ""),
        ("orted", 0, "T", ""), ("python", None, "T", ""),
    ],
)  # fmt: skip
def test_a_daemon_that_is_stopped_is_named(name: str, rank: int | None, state: str, found: str) -> None:
    """Of mpirun's, and no rank of that name."""
    assert found == stopped_daemon([a_process(1), a_process(2, name=name, rank=rank, state=state)])


@pytest.mark.parametrize(("name", "chosen"), [("python3", 11), ("bash", 12), ("python3.11", 11)])
def test_a_rank_s_python_is_the_first_there_is(name: str, chosen: int) -> None:
    """Behind whatever shells; its main process where there is none, and no other rank's."""
    main = a_process(11, name=name, rank=0)
    others = [a_process(13, rank=0), a_process(12, name="python3", rank=0), a_process(5, rank=1)]
    assert chosen == stacks.python_of(main, [main, *others]).pid
    assert 11 == stacks.python_of(main, [main, others[2]]).pid


@pytest.mark.parametrize(
    ("silences", "seconds"),
    [((), 3.0), ((20.0,), 3.0), ((20.5,), 1.0), ((1.0, 21.0), 1.0), ((None, 1.0), 3.0)],
)
def test_a_host_speaks_oftener_of_a_rank_that_is_silent(silences: tuple[float | None, ...], seconds: float) -> None:
    """For more than twenty seconds, and whose beats are not over."""
    told = [{"beat": None if s is None else {"at": 100.0 - s, "phase": 3}} for s in silences]
    assert seconds == pause({"now": 100.0, "ranks": told}, 3.0)
    over = [{"beat": {"at": 0.0, "phase": OVER}}]
    assert 3.0 == pause({"now": 100.0, "ranks": over}, 3.0)
    assert 1.0 == pause({"now": 100.0, "ranks": [{"beat": {"at": 0.0}}]}, 3.0)


def test_a_host_tells_each_rank_with_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """That which beats, else its first; beats that are over where only the program goes on; the processor time of all."""
    found = [
        a_process(10, name="dlami-rank"), a_process(11, 10, rank=0, state="S"), a_process(12, 11, rank=0, state="R"),
        a_process(21, 1, rank=1, state="D"), a_process(31, 10, rank=2, state="R"), a_process(41, 1, rank=3, name="orted"),
    ]  # fmt: skip
    said = {
        0: {"pid": 12, "phase": 3},
        2: {"pid": 99, "phase": 3},
        3: {"pid": 98, "phase": 3},
        4: {"pid": 97, "phase": 3},
    }
    monkeypatch.setattr(beats, "processes", lambda job, attempt: found)
    monkeypatch.setattr(beats, "beats", lambda job, attempt: said)
    monkeypatch.setattr(beats, "NOTICE", str(tmp_path / "notice"))
    told = beats.rank_states("j", "1")
    assert [
        (0, "R", 1.0, 3), (1, "D", 0.5, None), (2, "R", 0.5, OVER), (3, "", 0.5, 3), (4, "", 0, 3)
    ] == [(r["rank"], r["state"], r["cpu_s"], r["beat"] and r["beat"]["phase"]) for r in told["ranks"]]  # fmt: skip
    assert ("", None) == (told["stopped"], told["notice"])
    (tmp_path / "notice").write_text('{"when": 5}')
    assert {"when": 5} == beats.rank_states("j", "1")["notice"]
    (tmp_path / "notice").write_text("{" + " " * 5000 + "}")
    assert beats._notice() is None
    assert 3 == said[2]["phase"]


def test_a_host_speaks_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and again as long as the next word would be in time."""
    clock, told = [100.0], []
    monkeypatch.setattr(beats, "rank_states", lambda job, attempt: {"now": clock[0], "ranks": [], "of": (job, attempt)})
    monkeypatch.setattr(beats, "say", told.append)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda s: clock.__setitem__(0, clock[0] + s))
    beats.main("j", 2, 3.0, 9.0)
    assert [100.0, 103.0, 106.0, 109.0] == [one["now"] for one in told]
    assert ("j", "2") == told[0]["of"]


def a_beat(**more: Any) -> bytes:
    usual = {"count": 7, "magic": MAGIC, "version": VERSION, "again": 7, **more}
    values = (usual["count"], usual["magic"], usual["version"], 3, 42, 5, 1, 10.0, 9.0, *map(float, range(5)))
    return RECORD.pack(*values, usual["again"])


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        (a_beat(), True), (a_beat(again=8), False), (a_beat(again=6), False), (a_beat(magic=b"beet"), False), (a_beat(version=VERSION + 1), False),
        (a_beat()[:-1], False), (a_beat() + b"more", True),
    ],
)  # fmt: skip
def test_a_beat_is_a_whole_record_of_this_user(tmp_path: Path, data: bytes, is_one: bool) -> None:
    """Of our layout, and not in the middle of being written; nothing behind a link."""
    (tmp_path / "beat").write_bytes(data)
    (tmp_path / "link").symlink_to("beat")
    found = ranks._beat(str(tmp_path / "beat"))
    assert is_one is (found is not None)
    if found:
        assert {
            "count": 7, "phase": 3, "pid": 42, "step": 5, "first": 1, "at": 10.0, "since": 9.0, "longest": [0, 1, 2, 3, 4],
        } == found  # fmt: skip
    assert ranks._beat(str(tmp_path / "link")) is ranks._beat(str(tmp_path / "none")) is None


def test_beats_are_those_of_a_job_by_its_file_s_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose name may have dashes and stars; what is no number is no rank."""
    monkeypatch.setattr(os.path, "isdir", lambda _: False)
    monkeypatch.setattr(ranks.tempfile, "gettempdir", lambda: str(tmp_path))
    begin = f"dlami-beat-{os.getuid()}-"
    for name in ("1-x-2-0", "1-x-2-11", "1-x-3-0", "1-x-2-a", "1-x-2", "1-x-2-3-0", "1-*-2-5"):
        (tmp_path / f"{begin}{name}").write_bytes(a_beat())
    (tmp_path / f"dlami-beat-{os.getuid() + 1}-1-x-2-4").write_bytes(a_beat())
    assert [{0, 11}, {0}, {5}, set()] == [
        {*ranks.beats(*one)} for one in (("1-x", "2"), ("1-x", "3"), ("1-*", "2"), ("1-y", "2"))
    ]
    assert ("1-x", 2, 11) in ranks.all_beats()
    assert 5 == len(ranks.all_beats())


PY_SPY: list[dict[str, Any]] = [
    {"thread_name": "MainThread", "os_thread_id": 1, "frames": [{"name": "f", "filename": "a.py", "line": 3}]},
    {"thread_name": None, "os_thread_id": 3, "frames": []},
    {"thread_name": "other", "os_thread_id": 2, "frames": []},
]


@pytest.fixture
def other() -> Iterator[int]:
    """A process that is looked at, beside whose program there is no py-spy."""
    with begun(["sleep", "4321"]) as child:
        yield child.pid


@pytest.fixture
def spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What py-spy does and says, in a folder, and how it was called."""
    monkeypatch.setattr(stacks.shutil, "which", lambda name: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def put(script: str) -> str:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "py-spy").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\n{script}\n')
        (folder / "py-spy").chmod(0o755)
        return str(folder)

    return put


@pytest.mark.parametrize(("state", "flag"), [("S", ""), ("R", ""), ("T", " --nonblocking"), ("t", " --nonblocking"), ("D", " --nonblocking")])  # fmt: skip
def test_a_rank_s_threads_are_told_with_their_frames(
    tmp_path: Path, spy: Any, other: int, state: str, flag: str
) -> None:
    """The main one by its name or its number; forty at most; what cannot be halted is not halted for the look."""
    folder = spy(f"cat {tmp_path}/said")
    said = [PY_SPY[0], {**PY_SPY[1], "os_thread_id": other}, PY_SPY[2]]
    (tmp_path / "said").write_text(json.dumps(said))
    me = a_process(other, state=state)
    told = stacks.stack(me, [folder])
    assert [
        {"name": "MainThread", "is_main": True, "frames": [["f", "a.py", 3]]}, {"name": "", "is_main": True, "frames": []},
        {"name": "other", "is_main": False, "frames": []},
    ] == told["threads"]  # fmt: skip
    assert (other, state, "") == (told["pid"], told["state"], told["error"])
    assert f"dump --json --pid {other}{flag}\n" == (tmp_path / "asked").read_text()
    (tmp_path / "said").write_text(json.dumps(PY_SPY * 20))
    assert 40 == len(stacks.stack(me, [folder])["threads"])


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo first >&2; echo denied >&2; exit 2", "py-spy: denied"), ("exit 2", "py-spy: exited 2"),
        (f"echo {'x' * 300} >&2; exit 2", "py-spy: " + "x" * 192), ("exec sleep 60", "py-spy: TimeoutExpired"),
    ],
)  # fmt: skip
def test_a_stack_that_cannot_be_had_says_why(
    spy: Any, other: int, monkeypatch: pytest.MonkeyPatch, script: str, error: str
) -> None:
    """In its own last words; so does a process that is gone, and what is not installed."""
    folder, me = spy(script), a_process(other)
    if "sleep" in script:
        monkeypatch.setattr(stacks, "_DUMP_S", 0.05)
    assert (error, []) == ((told := stacks.stack(me, [folder]))["error"], told["threads"])
    assert "py-spy is not installed there" == stacks.stack(me, ["", "/none"])["error"]
    gone = stacks._stack_or_error(a_process(2**22 + 1, state="R"), [folder])
    assert (2**22 + 1, "R", []) == (gone["pid"], gone["state"], gone["threads"])
    assert gone["error"].startswith("no stack: FileNotFoundError: ")


def test_each_rank_s_stack_is_of_what_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else of its first Python; the folder's trouble goes with them."""
    found = [
        a_process(11, rank=0),
        a_process(12, 11, rank=0),
        a_process(21, rank=1, name="bash"),
        a_process(22, 21, rank=1),
    ]
    told: list[Any] = []
    monkeypatch.setattr(stacks, "processes", lambda job, attempt: found if (job, attempt) == ("j", "2") else [])
    monkeypatch.setattr(stacks, "beats", lambda job, attempt: {0: {"pid": 12}, 5: {"pid": 1}})
    monkeypatch.setattr(stacks, "stack", lambda process, folders, _: {"pid": process.pid, "in": folders})
    monkeypatch.setattr(stacks, "say", told.append)
    stacks.main("j", 2, "/none/x", ["f"])
    assert [(12, ["f"]), (22, ["f"])] == [(told[0]["stacks"][n]["pid"], told[0]["stacks"][n]["in"]) for n in (0, 1)]
    assert told[0]["folder"] == "is not there"


def test_what_hosts_say_is_handed_on_until_nobody_listens(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each host's words apart, however they are cut; a host that fails is said, a failure of our own is no end."""
    hosts = [Host(rank=n, address=a, slots=1) for n, a in enumerate("ab")]
    words = ["python3", "-c", "from cluster.ssh.onhost.frame import say; say({'n': 1})"]
    frame = subprocess.run(words, capture_output=True, check=True, cwd=Path(rank_reports.__file__).parents[2]).stdout
    rounds, heard, done = [0], [], threading.Event()

    class Reach:
        def __init__(self, cluster: Any) -> None:
            assert ("j", tuple(hosts)) == (cluster.name, cluster.hosts)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            done.set()

        def run(self, asked: Any, command: Any, *, on_output: Any, on_progress: Any, **_: Any) -> FanOut:
            rounds[0] += 1
            if rounds[0] == 1:
                raise OSError("no descriptor free")
            on_progress(None)
            for part in (frame[:5], frame[5:]):
                for host in asked:
                    on_output(host, "stdout", part)
                    on_output(host, "stderr", frame)
            return FanOut("x", {h: Result(host=h, exit_code=h.rank, stderr=b"bad", seconds=0.0) for h in asked})

    def hear(host: Host, said: Any) -> None:
        heard.append((host.address, said))
        if len(heard) >= 4:
            listener._end.set()

    monkeypatch.setattr(rank_reports, "Executor", Reach)
    monkeypatch.setattr(rank_reports, "EVERY_S", 0.0)
    listener = rank_reports.ReportListener(hosts, "j", 1, hear)
    listener.close()
    listener = rank_reports.ReportListener(hosts, "j", 1, hear)
    listener.start()
    assert done.wait(PATIENCE_S)
    listener.close()
    assert not listener._thread.is_alive()
    assert [("a", {"n": 1}), ("b", {"n": 1})] * 2 == heard
    said = capfd.readouterr().err
    assert "watching: OSError: no descriptor free\n" in said
    assert "watching: b: exited 1   | bad\n" in said
    assert "watching: a" not in said
    with pytest.raises(rank_reports._Over):
        listener._go_on(None)

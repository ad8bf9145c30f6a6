"""What a host reads of itself for health: files, sums, processes, cards, and rates between two."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.health import stray_processes
from cluster.health.check import About
from cluster.health.onhost import pairs, readings
from cluster.hosts import Host
from cluster.ssh.onhost import pci


def test_two_sides_measure_each_other() -> None:
    """How fast each way, how soon an answer comes, as each side sees it; the same rates on both."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said: dict[str, Any] = {}

    def side(name: str) -> None:
        said[name] = pairs.measured(name, "127.0.0.1", port, "word", 0.01, 2)

    other = threading.Thread(target=side, args=("listen",))
    other.start()
    side("connect")
    other.join()
    here, there = said["connect"], said["listen"]
    assert here["latency_s"] > 0
    assert there["latency_s"] is None
    assert here["to_peer"] == pytest.approx(there["from_peer"], rel=1e-5)
    assert here["from_peer"] == pytest.approx(there["to_peer"], rel=1e-5)
    assert min(here["to_peer"], here["from_peer"]) > 0


def test_a_peer_that_leaves_is_no_rate() -> None:
    """Neither in a byte that is waited for, nor in a measurement."""
    for does in (lambda end: pairs.take(end, 2), lambda end: pairs.receive(end, 1.0)):
        ours, theirs = socket.socketpair()
        theirs.sendall(b"\0")
        theirs.close()
        with ours, pytest.raises(ConnectionError, match="the peer left"):
            does(ours)


def test_a_place_takes_a_file_gives_it_back_and_lets_it_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says how much room there is; one that is not there, or takes none, says so."""
    said = readings.place(str(tmp_path))
    room = os.statvfs(tmp_path)
    assert (True, "", tmp_path.stat().st_dev, room.f_frsize, room.f_blocks) == tuple(
        said[name] for name in ("exists", "error", "device", "frsize", "blocks")
    )
    assert [] == [*tmp_path.iterdir()]
    assert {"path": f"{tmp_path}/none", "exists": False} == readings.place(f"{tmp_path}/none")
    monkeypatch.setattr(os, "read", lambda handle, size: b"x" * size)
    assert "gives back other bytes than were written" == readings.place(str(tmp_path))["error"]
    monkeypatch.undo()

    def full(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert "No space left on device" == readings.place(str(tmp_path))["error"]
    assert [] == [*tmp_path.iterdir()]


def test_a_project_is_its_code_and_its_python(tmp_path: Path) -> None:
    """Each by itself: both the tasks and the trainers, and a Python that may be run."""
    steps: list[tuple[Callable[[], Any], bool, bool]] = [
        (lambda: None, False, False),
        (lambda: (tmp_path / "tasks.py").touch(), False, False),
        (lambda: (tmp_path / "trainer").mkdir(), True, False),
        (lambda: (tmp_path / ".venv/bin").mkdir(parents=True), True, False),
        (lambda: (tmp_path / ".venv/bin/python").symlink_to("/bin/sh"), True, True),
    ]
    for step, code, python in steps:
        step()
        assert {"folder": str(tmp_path), "code": code, "python": python} == readings.project(str(tmp_path))


def test_versions_are_read_from_files(tmp_path: Path) -> None:
    """Python's, each package's that matters, and a sum of our own code that another byte changes."""
    site = tmp_path / ".venv/lib/python3.11/site-packages"
    for name, text in {
        "numpy-1.26.dist-info": "Name: numpy\nVersion: 1.26.4\n", "tensorflow_cpu-2.dist-info": "Version: 2.16\n",
        "horovod-1.dist-info": "Name: horovod\n", "other-1.dist-info": "Version: 1\n", "numpy-1.egg": "Version: 9\n",
    }.items():  # fmt: skip
        (site / name).mkdir(parents=True)
        (site / name / "METADATA").write_text(text)
    (tmp_path / ".venv/pyvenv.cfg").write_text("home = /usr\nversion = 3.11.9\n")
    (tmp_path / "cluster/jobs").mkdir(parents=True)
    (tmp_path / "cluster/jobs/a.py").write_text("1")
    found = readings.versions(str(tmp_path))
    own = {"Python": "3.11.9", "numpy": "1.26.4", "tensorflow": "2.16", "horovod": "unreadable"}
    assert own == {name: found.get(name) for name in own}
    assert "other" not in found
    (tmp_path / "cluster/jobs/a.py").write_text("2")
    assert 8 == len(found["our own code"])
    assert found["our own code"] != readings.versions(str(tmp_path))["our own code"]


def test_jobs_on_record_are_those_that_can_be_read(tmp_path: Path) -> None:
    """One that has ended holds no host; the public record comes before its user's own."""
    for name, state, records in (
        ("a", '{"state": "failed"}', {}),
        ("b", '{"state": "running"}', {"job.json": '{"id": "b", "hosts": [{"address": "h1"}]}'}),
        ("c", '{"state": "running"}', {"public.json": '{"id": "c", "hosts": []}', "job.json": "{"}),
        ("d", '{"state": "running"}', {}),
        ("e", "{", {}),
        ("f", "{}", {}),
    ):
        folder = tmp_path / "jobs" / name
        folder.mkdir(parents=True)
        for file, text in {"state.json": state, **records}.items():
            (folder / file).write_text(text)
    assert [
        {"id": "a", "over": True, "hosts": []},
        {"id": "b", "over": False, "hosts": ["h1"]},
        {"id": "c", "over": False, "hosts": []},
    ] == readings.jobs(str(tmp_path), ["failed"])


def test_gpu_processes_are_told_with_whose_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the driver's own lines; what is no number has no owner."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf '%s\\n' '{os.getpid()}, 10 MiB' '[N/A], 1 MiB' ''\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    said = readings.gpu_processes()
    assert f"{os.getpid()}, 10 MiB\n[N/A], 1 MiB\n\n" == said["apps"]
    assert [str(os.getpid())] == list(said["owners"])


def test_a_process_that_spins_is_told_and_one_that_sleeps_is_not() -> None:
    """With its share of a processor, its states and its age."""
    clean = {k: v for k, v in os.environ.items() if k != "DLAMI_RUN"}
    script = "import sys; print(flush=True); sys.argv[1] == 'spin' and [None for _ in iter(int, 1)]; sys.stdin.read()"
    made = [
        subprocess.Popen([sys.executable, "-c", script, how], env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for how in ("spin", "sleep")
    ]
    try:
        for one in made:
            assert one.stdout
            assert one.stdout.readline(), "it is there"
        found = {one["pid"]: one for one in readings.processes(0.2)}
    finally:
        for one in made:
            one.kill()
            one.communicate()
    spins, sleeps = made
    assert sleeps.pid not in found
    assert "RRRRR" == found[spins.pid]["states"]
    assert 0 <= found[spins.pid]["cpu"] <= 2
    assert 0 <= found[spins.pid]["age_s"] < 3600


def test_cards_are_counted_as_the_pci_bus_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's that compute or show, and Amazon's that are EFA; whatever drivers say."""
    bus = {
        "1": ("0x10de", "0x030200", ""), "2": ("0x10de", "0x030000", ""), "3": ("0x10de", "0x068000", ""),
        "4": ("0x1d0f", "0x020000", "0xefa1"), "5": ("0x1d0f", "0x020000", "0xec20"), "6": ("0x8086", "0x030000", "0xefa1"),
    }  # fmt: skip
    for number, texts in bus.items():
        (tmp_path / number).mkdir()
        for name, text in zip(("vendor", "class", "device"), texts, strict=True):
            (tmp_path / number / name).write_text(f"{text}\n")
    monkeypatch.setattr(pci, "BUS", str(tmp_path))
    assert {"gpus": 2, "efas": 1} == readings.devices()


def test_each_process_on_a_gpu_is_judged_by_itself() -> None:
    """One without a number and one of a running job hide none that comes after them."""
    who = {"user": "ann", "is_other": False, "job": "old", "record": "over", "command": "python"}
    owners = {"7": {**who, "job": "here"}, "8": who, "9": who}
    apps = "0, 5 MiB\n7, 1 MiB\n8, 2 MiB\n9, 3 MiB\n"
    about = About(host=Host(rank=0, address="a", slots=1), jobs=frozenset({"here"}))
    found = stray_processes.gpu_stray_problems(json.dumps({"apps": apps, "owners": owners}), about)
    assert ["process 8", "process 9"] == [p.what[:9] for p in found]
    assert "holds 2 MiB of a GPU: python" in found[0].what

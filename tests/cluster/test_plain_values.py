"""Small parts that many tasks stand on: names of nodes, facts of hosts, cells, numbers, files, words of a command line."""

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.launch.facts import _interface_of
from cluster.launch.onhost import aws_node_names, survey
from cluster.launch.onhost.rank import _node_of, defaults, folders, world
from cluster.matrix import file as matrix_file
from cluster.ssh.onhost.free_port import free_port
from dlami.tasks.command import unwritten
from lab import neighbours, network, nodes
from tests.conftest import PATIENCE_S

# Names of nodes -------------------------------------------------------------------------------------------------------


def test_names_are_written_where_they_are_other(tmp_path: Path) -> None:
    """Whole, for all to read; what was there before is told, and what is the same keeps its time."""
    (tmp_path / "etc").mkdir()
    for path in (aws_node_names.HOSTS, aws_node_names.PROFILE):
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
    told, top = [("10.0.0.1", 8)], str(tmp_path)
    assert "" == aws_node_names.write_names(told, "/s", is_master=True, into=top)
    assert 0o644 == 0o777 & (tmp_path / aws_node_names.HOSTS[1:]).stat().st_mode
    for path in (aws_node_names.HOSTS, "/etc/hosts"):
        os.utime(tmp_path / path[1:], (1, 1))
    assert "localhost slots=8\n" == aws_node_names.write_names(told, "/s", is_master=True, into=top)
    assert [1, 1] == [(tmp_path / path[1:]).stat().st_mtime for path in (aws_node_names.HOSTS, "/etc/hosts")]
    aws_node_names.write_names([("10.0.0.1", 4)], "/s", is_master=True, into=top)
    assert "localhost slots=4\n" == (tmp_path / aws_node_names.HOSTS[1:]).read_text()
    assert not list(tmp_path.rglob(".names-*"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        aws_node_names.write(str(tmp_path / "folder"), "text")
    assert not list(tmp_path.glob(".names-*")), "nothing half made stays"
    assert "" == aws_node_names.text_of(str(tmp_path / "none"))


def test_the_list_is_asked_for_and_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, then each time it is due: soon while there is none, after a minute once there is."""
    clock = {"now": 1.0}
    asked: list[float] = []
    answers = iter(["", "10.0.0.1 8\n", "10.0.0.2 8\n"])

    def ask(*where: str) -> str:
        asked.append(clock["now"])
        return next(answers, "")

    def sleep(seconds: float) -> None:
        clock["now"] += seconds + 0.5
        if clock["now"] > 150:
            raise KeyboardInterrupt

    made: list[tuple[str, str]] = []
    monkeypatch.setattr(aws_node_names, "time", SimpleNamespace(monotonic=lambda: clock["now"], sleep=sleep))
    monkeypatch.setattr(aws_node_names, "ask", ask)
    monkeypatch.setattr(
        aws_node_names, "write_names", lambda nodes, _shared, *, is_master: made.append((nodes[0][0], is_master))
    )
    monkeypatch.setattr(aws_node_names, "_as_user", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        aws_node_names.follow(str(tmp_path / "list"), "/s", "ubuntu", ("p", "r", "n"))
    assert [1.0, 6.5] == asked[:2]
    assert 60 < asked[2] - asked[1] < 70
    assert [("10.0.0.1", True), ("10.0.0.2", True)] == made
    assert "10.0.0.2 8\n" == (tmp_path / "list").read_text()
    asked.clear()
    made.clear()
    clock["now"] = 130.0
    with pytest.raises(KeyboardInterrupt):
        aws_node_names.follow(str(tmp_path / "list"), "/s", "ubuntu")
    assert ([], [("10.0.0.2", False)]) == (asked, made), "a worker asks nobody"


# Facts of hosts ---------------------------------------------------------------------------------------------------------

LINKS = {
    "lo": {"addresses": ["127.0.0.1/8"]},
    "down": {"addresses": []},
    "eth0": {"addresses": ["fe80::1/64", "10.0.1.5/24"]},
}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.1.5", ("eth0", "10.0.1.0/24", "10.0.1.5")),
        ("127.0.0.1", ("lo", "127.0.0.0/8", "127.0.0.1")),
        ("10.0.1.6", (None, None, "")),
        ("gpu1", ("eth0", "fe80::/64", "fe80::1")),
    ],
)
def test_a_host_s_card_has_its_address(address: str, expected: Any) -> None:
    """Where it is a name the first card that is up, which the loopback is none of."""
    assert expected == _interface_of(address, LINKS)
    if address == "gpu1":
        assert (None, None, "") == _interface_of(address, {name: LINKS[name] for name in ("lo", "down")})


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe leaves nothing; a port that is given is free."""
    assert "yes" == survey._is_writable(str(tmp_path))
    assert [] == list(tmp_path.iterdir())
    assert "is not there" == survey._is_writable(str(tmp_path / "none"))
    assert "cannot be written" == survey._is_writable("/proc")
    assert 0 < free_port() < 32768
    assert 5 == free_port(64, 5) % 64
    monkeypatch.setattr(survey.shutil, "which", lambda _: None)
    assert [] == survey._gpus()
    monkeypatch.setattr(survey.shutil, "which", lambda _: "x")
    for said, expected in ((None, None), ("GPU 0: A\nno\nGPU 1: B\n", ["GPU 0: A", "GPU 1: B"])):
        monkeypatch.setattr(survey, "_said", lambda *_, said=said, **__: said)
        assert expected == survey._gpus()


# A rank's place -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("per", "rank", "node", "own"),
    [("gpu", 0, 0, 2), ("gpu", 1, 0, 2), ("gpu", 2, 1, 4), ("gpu", 5, 1, 4), ("node", 1, 1, 4)],
)
def test_a_rank_knows_its_host(per: str, rank: int, node: int, own: int) -> None:
    """Ranks fill hosts in order, by slots, or one on each; torchrun's own variables are for programs of a node."""
    told = {
        "DLAMI_NODES": "10.0.0.1:2,10.0.0.2:4", "DLAMI_PER": per, "DLAMI_HOSTFILE": "/h", "DLAMI_JOB": "j",
        "DLAMI_JOB_DIR": "/s/jobs/j", "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "6",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_PORT": "77",
    }  # fmt: skip
    said = world(told)

    assert (str(node), "2", str(own), "6") == tuple(
        said[name] for name in ("NODE_RANK", "NNODES", "DSTACK_GPUS_PER_NODE", "DSTACK_GPUS_NUM")
    )
    assert ("10.0.0.1\n10.0.0.2", "10.0.0.1", "/s") == tuple(
        said[name] for name in ("SKYPILOT_NODE_IPS", "DSTACK_MASTER_NODE_IP", "EFS_MOUNT")
    )
    assert (per == "node") == ("PET_NNODES" in said)
    assert ("77" if per == "node" else None) == said.get("PET_MASTER_PORT")
    assert (per == "gpu") == ("OMP_NUM_THREADS" in defaults(told, ""))
    with pytest.raises(ValueError, match="rank 6 is on no host"):
        _node_of(6, [2, 4])
    assert {"PYTHONUNBUFFERED", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"} <= set(defaults(told, "eth0"))
    assert "NCCL_SOCKET_IFNAME" not in defaults({**told, "NCCL_SOCKET_IFNAME": "eth1"}, "eth0")
    assert "eth0" == defaults({**told, "NCCL_SOCKET_IFNAME": "10.0.0.0/24"}, "eth0")["NCCL_SOCKET_IFNAME"]
    assert {"PATH": "/own:/bin", "PYTHONPATH": "/m:/s/jobs/j/lib"} == folders(
        {**told, "DLAMI_PATH": "/own", "PATH": "/bin", "PYTHONPATH": "/m"}
    )


# Matrices -------------------------------------------------------------------------------------------------------------


def made(tmp_path: Path, text: str) -> Any:
    (tmp_path / "m.toml").write_text(text)
    return matrix_file.read(tmp_path / "m.toml")


# Words, numbers and files ---------------------------------------------------------------------------------------------


def test_output_that_nobody_takes_ends_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silently for a closed pipe, with a word for a full disk; a file's own error is another thing."""
    monkeypatch.setattr(sys, "stdout", None)
    assert unwritten(OSError(errno.EPIPE, "x", "/file")) is None
    assert unwritten(OSError(errno.ENOENT, "x")) is None
    closed = unwritten(OSError(errno.EPIPE, "x"))
    assert closed
    assert (None, 141) == (closed.message, closed.code)
    for number in (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        full = unwritten(OSError(number, "full"))
        assert full
        assert ("its output, or a file, could not be written: full", 1) == (full.message, full.code)


# Labs -----------------------------------------------------------------------------------------------------------------


def test_limits_of_neighbours_are_raised_and_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To what the labs need, the last four times as much; never lowered; as they were once the last lab is gone."""
    limits = tmp_path / "limits"
    limits.mkdir()
    monkeypatch.setattr(neighbours, "LIMITS", limits)
    monkeypatch.setattr(neighbours, "BEFORE", tmp_path / "before.json")
    monkeypatch.setattr(neighbours, "lab_names", lambda: ["a"])
    neighbours.make_room([64])
    assert not (tmp_path / "before.json").exists(), "they are not shown here"
    before = dict(zip(neighbours.NAMES, (128, 512, 9999), strict=True))
    neighbours._set(before)
    neighbours.make_room([8, 8])
    assert before == neighbours._limits()
    neighbours.make_room([20])
    assert [400, 800, 9999] == list(neighbours._limits().values()), "the first of them counts"
    neighbours.make_room([30, 10])
    assert [1000, 2000, 9999] == list(neighbours._limits().values())
    neighbours.make_room([50])
    assert [2500, 5000, 10000] == list(neighbours._limits().values())
    neighbours.restore()
    assert 2500 == neighbours._limits()["gc_thresh1"]
    monkeypatch.setattr(neighbours, "lab_names", lambda: [])
    neighbours.restore()
    assert before == neighbours._limits()
    assert not (tmp_path / "before.json").exists()
    neighbours.restore()
    monkeypatch.setattr(neighbours, "lab_names", lambda: ["a", "b", "c"])

    def load(name: str) -> Any:
        if name == "b":
            raise ConfigError("damaged")
        return SimpleNamespace(hosts=[1, 2]) if name == "a" else None

    monkeypatch.setattr(neighbours, "load_lab", load)
    assert [2] == neighbours.sizes()


def test_only_the_lab_s_own_cables_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are named; its bridge and all cables only where all of it goes."""
    there = {"lo", "laba.1", "laba.2", "lab-a", "labab.1", "lab-ab"}
    removed: list[str] = []
    monkeypatch.setattr(network, "links", lambda: there)
    monkeypatch.setattr(network, "_tool", lambda *_, stdin, **__: removed.extend(stdin.split()[2::3]))
    network.unplug("a")
    assert [] == removed
    network.unplug("a", ["laba.1", "gone"])
    assert ["laba.1"] == removed
    removed.clear()
    network.unplug("a", all_of_it=True)
    assert ["lab-a", "laba.1", "laba.2"] == removed
    assert "02:00:0a:14:00:ff" == network._hardware_address(SimpleNamespace(address="10.20.0.255"))


def test_a_lab_host_that_failed_says_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has ended; one that is still there has not, until it is killed, and is then waited for."""
    host = nodes.Starting.__new__(nodes.Starting)
    host._log = tmp_path / "log"
    for said, last in (("", "(nothing)"), ("one\n\n two \n\n", " two")):
        host._log.write_text(said)
        assert last.strip() == host.last_words().strip()
    monkeypatch.setattr(nodes, "_is_elsewhere", nodes._is_alive)
    with (
        subprocess.Popen(["sleep", "1000"]) as host._outer,
        subprocess.Popen(["sleep", "1000"]) as other,
        contextlib.ExitStack() as at_end,
    ):
        at_end.callback(host._outer.kill)
        at_end.callback(other.kill)
        assert not host.has_ended()
        nodes.end("x", [host._outer.pid, 1 << 30])
        assert -9 == host._outer.wait(PATIENCE_S)
        assert host.has_ended()
        assert other.poll() is None
    assert {Path("/tmp"), Path("/run"), Path("/dev")} <= nodes.hidden_folders()
    assert Path("/") not in nodes.hidden_folders()

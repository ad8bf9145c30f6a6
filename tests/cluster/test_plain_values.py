"""Small parts that many tasks stand on: names of nodes, facts of hosts, cells, numbers, files, words of a command line."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.launch.onhost import aws_node_names
from cluster.launch.onhost.rank import _node_of, defaults, folders, world
from cluster.matrix import file as matrix_file
from dlami.tasks.command import unwritten

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


# Facts of hosts ---------------------------------------------------------------------------------------------------------


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

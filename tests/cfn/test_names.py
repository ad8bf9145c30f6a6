"""The names of the reference on a node: what its scripts read at the places where they look."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cfn import aws
from cluster.launch.onhost import aws_node_names
from cluster.launch.onhost.aws_node_names import files, listed, with_names, write_examples, write_names
from tests.conftest import PATIENCE_S

NODES = [("10.0.0.9", 8), ("10.0.0.5", 8), ("10.0.0.7", 8)]


def hosts(*ranks: int, spare: int | None = None) -> str:
    """What the stack's nodes are, as `cfn.replace_instance` answers."""
    each = [{"address": f"10.0.0.{rank}", "rank": rank, "is_spare": rank == spare} for rank in ranks]
    return json.dumps({"slots": 8, "hosts": each})


def test_the_list_is_of_the_nodes_that_train_in_their_order() -> None:
    """No spare; the master is first."""
    assert "10.0.0.0 8\n10.0.0.1 8\n10.0.0.2 8\n" == listed(hosts(2, 0, 3, 1, spare=3))


@pytest.mark.parametrize(
    "answer",
    ["", "{}", "[]", "null", '{"slots": "x", "hosts": []}', hosts(), hosts(1).replace("10.0.0.1", "x\\nroot::0")],
)
def test_no_answer_is_no_list(answer: str) -> None:
    """What cannot be read leaves the names as they were."""
    assert "" == listed(answer)


def test_a_login_shell_has_the_four_variables(tmp_path: Path) -> None:
    """As the reference's nodes export them, and the workers' file by name."""
    shared = "/a folder's"
    write_names(NODES, shared, is_master=True, into=make(tmp_path))
    words = '. ./etc/profile.d/deeplearning.sh; printf "%s\\n" "$EFS_MOUNT" "$DEEPLEARNING_WORKERS_PATH" '
    words += '"$DEEPLEARNING_WORKERS_COUNT" "$DEEPLEARNING_WORKER_GPU_COUNT"'
    said = subprocess.run(
        ["sh", "-c", words], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )

    assert [shared, "/opt/deeplearning/workers", "3", "8"] == said.stdout.splitlines()
    workers = (tmp_path / "opt/deeplearning/workers").read_text()
    assert ["deeplearning-worker1", "deeplearning-worker2", "deeplearning-worker3"] == workers.split()
    assert (
        "localhost slots=8\n10.0.0.5 slots=8\n10.0.0.7 slots=8\n"
        == files(NODES, shared, is_master=True)["/opt/deeplearning/hosts"]
    )
    assert "10.0.0.9 slots=8\n" in files(NODES, shared, is_master=False)["/opt/deeplearning/hosts"]


def make(tmp_path: Path) -> str:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hosts").write_text("127.0.0.1 localhost")
    return str(tmp_path)


def test_etc_hosts_has_the_names_of_today_once(tmp_path: Path) -> None:
    """What others wrote there stays; a successor takes its predecessor's name."""
    once = with_names("127.0.0.1 localhost", NODES)
    twice = with_names(once + "10.9.9.9 mine\n", [NODES[0], ("10.0.0.6", 8)])

    assert "10.0.0.9 deeplearning-master\n10.0.0.9 deeplearning-worker1\n10.0.0.5 deeplearning-worker2\n" in once
    assert twice.startswith("127.0.0.1 localhost\n10.9.9.9 mine\n")
    assert "10.0.0.6 deeplearning-worker2\n" in twice and "10.0.0.5" not in twice and "worker3" not in twice
    assert 1 == twice.count("names of the nodes")


@pytest.mark.parametrize(("there", "after"), [(None, "new\n"), ("old\n", "new\n"), ("edited\n", "edited\n")])
def test_the_examples_file_is_followed_until_it_is_edited(tmp_path: Path, there: Any, after: str) -> None:
    """`hosts` in the home, and beside the examples where they are installed."""
    examples = tmp_path / "examples/horovod/tensorflow"
    examples.mkdir(parents=True)
    for folder in (tmp_path, examples):
        if there is not None:
            (folder / "hosts").write_text(there)
    write_examples(str(tmp_path), "old\n", "new\n")

    assert [after, after] == [(folder / "hosts").read_text() for folder in (tmp_path, examples)]


def test_a_supervisor_finds_aws_where_first_boot_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was started over ssh and has nothing of that environment; on AWS itself there is nothing to find."""
    conf = tmp_path / "dlami-cluster.conf"
    conf.write_text(
        'declare -- NAME="demo"\ndeclare -x AWS_ENDPOINT_URL="http://10.0.0.1:5000"\ndeclare -x AWS_EMPTY=""\n'
    )
    assert {"AWS_ENDPOINT_URL": "http://10.0.0.1:5000"} == aws.endpoints(conf)
    assert {} == aws.endpoints(tmp_path / "none")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert (
        "http://10.0.0.1:5000"
        == aws.aws_of_node("us-east-1", conf).in_region("eu-west-1").client("ec2").meta.endpoint_url
    )
    assert "AWS_ENDPOINT_URL" not in os.environ, "ranks that the supervisor starts would inherit it"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://10.0.0.2:5000")
    assert "http://10.0.0.2:5000" == aws.aws_of_node("us-east-1", conf).client("ec2").meta.endpoint_url


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

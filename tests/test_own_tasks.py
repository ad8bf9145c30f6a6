"""`from dlami import cluster`: what docs/own-tasks.md says is run line by line, and what it promises beside that."""

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster
from cluster.jobs.state import JobState
from cluster.ssh import connections
from dlami import cluster as own
from lab.record import Lab
from tests.conftest import PATIENCE_S, wait_for

PAGE = (ROOT / "docs/own-tasks.md").read_text()


def recipe(number: int) -> str:
    """The text of a recipe."""
    return PAGE.split("\n## ")[number].partition("\n")[2]


@pytest.fixture
def here(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own, from which the lab is meant."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTER", f"lab:{lab.name}")
    return tmp_path


def test_the_recipes_do_what_they_say(here: Path) -> None:
    """Each line of recipes 2 to 5, in one session as one would type them."""
    text = "\n".join(recipe(number) for number in (2, 3, 4, 5))
    lines = doctest.DocTestParser().get_doctest(text, {}, "docs/own-tasks.md", None, 0)
    said = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):
        outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(lines, out=said.write)

    assert 20 < outcome.attempted
    assert 0 == outcome.failed, said.getvalue()


def test_the_task_is_one_as_any_other(here: Path, cluster: Cluster) -> None:
    """Recipe 1: its output, its options, and an error as a message."""
    blocks = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}|\n {4}))+", recipe(1), re.M)
    (here / "tasks.py").write_text(textwrap.dedent(blocks[0]))

    def inv(*words: str) -> "subprocess.CompletedProcess[str]":
        given = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [sys.executable, "-m", "invoke", *words], capture_output=True, text=True, env=given, timeout=PATIENCE_S
        )

    full = inv("room", "--hosts", "@workers", "--least", "1000000000")
    strange = inv("room", "--hosts", "@nobody")

    assert [h.address for h in cluster.hosts[1:]] == [line.split()[0] for line in full.stdout.splitlines()], full.stderr
    assert all(line.endswith(" GB left") for line in full.stdout.splitlines())
    assert (2, "") == (strange.returncode, strange.stdout)
    assert "'@nobody' is not a group of hosts" in strange.stderr and "Traceback" not in strange.stderr


def test_fabric_s_connection_is_inside_the_open_one(here: Path, cluster: Cluster) -> None:
    """It comes from the host itself; when that connection ends it ends, and the next command opens it again."""
    host = cluster.hosts[1]
    one = own.load().connection(host)
    came_from = one.run("echo $SSH_CONNECTION", hide=True).stdout.split()[0]

    assert host.address == came_from
    connections.disconnect()
    wait_for(lambda: not one.is_connected, 60, "it has ended too")
    assert 0 == one.run("true", hide=True).exited
    one.close()


def test_a_stranger_is_refused_by_fabric_too(here: Path, lab: Lab, cluster: Cluster) -> None:
    """A host that shows another key inside the connection than the one we know; the text is that of every task."""
    gpus = own.load()
    host = cluster.hosts[2]
    one = gpus.connection(host)
    gpus.run("true", host).check()
    known = one.client.get_host_keys()
    other = known.lookup(cluster.hosts[1].address)["ssh-ed25519"]
    known.lookup(host.address)["ssh-ed25519"] = other

    with pytest.raises(ClusterError, match=f"{host.address}: its SSH host key is not the one we know"):
        one.open()


HERE = Host(rank=0, address="localhost", slots=1)
THERE = Host(rank=1, address="10.255.255.1", slots=1)


def alone(*hosts: Host) -> own.OpenCluster:
    return own.OpenCluster(Cluster(name="mine", hosts=hosts, folder=ROOT, shared="/x", project=str(ROOT)))


def test_no_host_is_never_all_hosts() -> None:
    """A list that turned out empty, or that holds another cluster's hosts, is refused before anything runs."""
    mine = alone(HERE, THERE)
    with pytest.raises(ConfigError, match="no host is named"):
        mine.run("true", [])
    with pytest.raises(ConfigError, match="no host is named"):
        mine.copy("/etc/hosts", "/tmp/x", [])
    with pytest.raises(ConfigError, match=r"10\.9\.9\.9: no host of mine"):
        mine.run("true", Host(rank=0, address="10.9.9.9", slots=1))
    assert (HERE,) == mine.select(HERE) == mine.select([HERE, HERE]) == mine.select("@master")


def test_what_cannot_be_is_said_before_anything_runs() -> None:
    """Of Fabric: one host, not this machine. Of a command: no secret. Of a job: no option that there is not."""
    mine = alone(HERE, THERE)
    with pytest.raises(ConfigError, match="'@all' names 2 hosts: name one, or take group"):
        mine.connection("@all")
    with pytest.raises(ConfigError, match="localhost is this machine, which needs no connection"):
        mine.group()
    with pytest.raises(ConfigError, match="would be visible in the process list"):
        mine.run("true", environment={"API_TOKEN": "x"})
    with pytest.raises(ConfigError, match=r"train\.run has no option 'quick': there are attempts_per_hour"):
        mine.jobs.submit(["true"], quick=True)


def test_this_machine_is_a_cluster_too(tmp_path: Path) -> None:
    """Results and files without any SSH."""
    mine = alone(HERE)
    answer = mine.run("cat; echo $DEPTH", stdin=b"in ", environment={"DEPTH": "2"}).check()[HERE]
    (tmp_path / "file").write_text("x")
    copied = mine.copy(tmp_path / "file", f"{tmp_path}/copy").check()

    assert "in 2\n" == answer.text
    assert [1] == [o.files for o in copied.outcomes]
    assert "x" == (tmp_path / "copy").read_text()


def test_its_first_line_does_not_wait() -> None:
    """No Fabric, boto3 or the like is imported before it is used."""
    heavy = ["boto3", "fabric", "invoke", "paramiko", "tomlkit", "numpy", "cluster.jobs.client.client"]
    code = f"import sys; from dlami import cluster; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert "[]\n" == done.stdout


class Away:
    """A master that answers in turn as it is told: errors, and states of a job."""

    def __init__(self, *answers: "Exception | JobState") -> None:
        self.answers = list(answers)

    def show(self, job: str) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(id="a-job", state=answer)


def waiting(monkeypatch: pytest.MonkeyPatch, *answers: "Exception | JobState") -> own.Jobs:
    """Jobs of such a master, where a minute passes between two looks."""
    clock = [0.0]
    monkeypatch.setattr(own.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(own.time, "sleep", lambda s: clock.__setitem__(0, clock[0] + 50))
    jobs = alone(HERE).jobs
    jobs._client = Away(*answers)  # type: ignore[assignment]
    return jobs


def test_a_job_is_waited_for_while_its_master_is_away_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for ever, not past the time that was given, and not for a job that there is not."""
    gone, on, over = ClusterError("the master does not answer"), JobState.HEALING, JobState.FAILED
    assert over is waiting(monkeypatch, on, gone, gone, on, gone, JobState.RUNNING, over).wait().state
    assert JobState.LOST is waiting(monkeypatch, JobState.QUEUED, JobState.LOST).wait("a-job").state
    with pytest.raises(ClusterError, match="the master does not answer"):
        waiting(monkeypatch, on, gone, gone, gone, gone, over).wait()
    with pytest.raises(ClusterError, match=r"a-job goes on after 60 s: wait longer, or stop it with jobs\.stop"):
        waiting(monkeypatch, on, on, on, over).wait(timeout_s=60)
    with pytest.raises(ConfigError, match="no job"):
        waiting(monkeypatch, ConfigError("no job 'x'"), over).wait("x")

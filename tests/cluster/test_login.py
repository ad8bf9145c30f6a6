"""One host for a person, over Fabric."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.inventory import ROOT, Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.login import login
from lab.record import Lab
from tests.conftest import PATIENCE_S, Inv, wait_for


@pytest.mark.promise("ssh")
def test_a_command_runs_on_the_one_host_and_its_exit_code_comes_back(inv: Inv, cluster: Cluster) -> None:
    """Output as it comes, nothing on stderr that is not the command's."""
    done = inv("login", "1", "--", "sh", "-c", "hostname; exit 5")

    assert f"{cluster.name}-1\n" == done.stdout
    assert "" == done.stderr
    assert 5 == done.returncode


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Any]:
    """An ssh-agent without keys; its socket."""
    path = str(tmp_path / "agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    wait_for(lambda: Path(path).exists(), 60, "the agent listens")
    yield path
    process.terminate()
    process.wait()


def test_the_agent_is_forwarded_where_that_was_asked_for(
    cluster: Cluster, agent: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And nowhere else: who is root on a host may use it."""
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    login(cluster, cluster.hosts[1], "echo plain=$SSH_AUTH_SOCK")
    login(cluster, cluster.hosts[1], "test -S $SSH_AUTH_SOCK && echo forwarded", forward_agent=True)

    assert "plain=\nforwarded\n" == capfd.readouterr().out


@pytest.mark.parametrize("socket", [None, "/nowhere/agent"])
def test_an_agent_that_is_not_there_is_not_forwarded(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, socket: Any
) -> None:
    """Said before anything is tried: without one, what asks it there waits for ever."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    if socket:
        monkeypatch.setenv("SSH_AUTH_SOCK", socket)

    with pytest.raises(ConfigError, match="there is no ssh-agent to forward here: start one"):
        login(cluster, cluster.hosts[1], "true", forward_agent=True)


def test_without_an_agent_here_there_is_no_word_of_it(
    inv: Inv, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a traceback nor a socket there that nobody answers."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    done = inv("login", "1", "--", "ssh-add -l; echo $SSH_AUTH_SOCK")

    assert "\n" == done.stdout
    assert "Traceback" not in done.stderr


def test_sigterm_ends_it(lab: Lab, cluster: Cluster, reach: Executor) -> None:
    """At once, whatever runs there."""
    there = f"sleep 1000.{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "invoke", "login", "1", "--", f"trap '' INT TERM HUP; {there}"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "CLUSTER": f"lab:{lab.name}"},
    )
    host, count = cluster.hosts[1], f"pgrep -fxc '{there}' || true"
    try:
        wait_for(lambda: int(reach.run([host], count).check()[host].text) > 0, 120, "it runs there")
        process.send_signal(signal.SIGTERM)
        assert 128 + signal.SIGTERM == process.wait(timeout=PATIENCE_S)
    finally:
        process.kill()  # whatever became of it
        process.wait()
        reach.run([host], f"pkill -KILL -fx '{there}'")

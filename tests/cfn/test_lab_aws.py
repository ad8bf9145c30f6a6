"""Trying the stack by hand: the fake AWS with lab hosts behind it, and where `hosts.write` takes its hosts from."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.clusterfile import text
from cluster.errors import ConfigError
from cluster.inventory import ROOT
from cluster.locate import LABS
from dlami import fake_aws
from dlami.tasks import stack_actions
from lab import lab as labs
from lab.record import SHARED
from tests.conftest import PATIENCE_S


@pytest.fixture
def some_labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of labs, empty."""
    for module in ("cluster.locate", "dlami.tasks.stack_actions"):
        monkeypatch.setattr(f"{module}.LABS", tmp_path / "labs")
    return tmp_path / "labs"


def test_a_cluster_file_with_the_stacks_tables_means_the_stack(some_labs: Path, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    text.write(path, text.render({"name": "demo"}))
    (some_labs / "one").mkdir(parents=True)
    (some_labs / "one/hosts").write_text("10.0.0.1 slots=1\n")
    assert "stack" == stack_actions.source_of_hosts(str(path))


def test_without_a_stack_the_only_lab_is_meant(some_labs: Path, tmp_path: Path) -> None:
    """A cluster.toml that a lab or a hand wrote has no table of the stack; a lab half made does not count."""
    path = tmp_path / "cluster.toml"
    path.write_text('name = "lab"\n[ssh]\nuser = "root"\n')
    for name in ("one", "half"):
        (some_labs / name).mkdir(parents=True)
    (some_labs / "one/hosts").write_text("10.0.0.1 slots=1\n")
    assert "lab:one" == stack_actions.source_of_hosts(str(path))
    assert "lab:one" == stack_actions.source_of_hosts(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(("names", "said"), [((), "there is no lab"), (("a", "b"), "there are 2 labs (a, b)")])
def test_neither_says_what_to_give(some_labs: Path, tmp_path: Path, names: tuple[str, ...], said: str) -> None:
    for name in names:
        (some_labs / name).mkdir(parents=True)
        (some_labs / name / "hosts").write_text("10.0.0.1 slots=1\n")
    with pytest.raises(ConfigError, match="--source stack with --file, or --source lab:NAME") as error:
        stack_actions.source_of_hosts(str(tmp_path / "none.toml"))
    assert said in str(error.value)


@pytest.mark.usefixtures("lab_allowed")
def test_lab_aws_serves_a_stack_of_real_hosts_and_leaves_nothing() -> None:
    """`inv lab.aws --nodes lab` says how to use it; a stack made there has lab hosts; after Ctrl-C nothing is left."""
    name = f"c{os.getpid() % 10_000_000}"
    words = [sys.executable, "-m", "invoke", "lab.aws", "--nodes", "lab", "--name", name]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=clean) as server:
        try:
            assert server.stdout
            said = server.stdout.readline().split()
            assert "export" == said[0]
            file = server.stdout.readline().split()[-1]
            made = subprocess.run(
                [sys.executable, "-m", "invoke", "stack.create", "--yes", "--file", file],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                env={**clean, **dict(pair.split("=", 1) for pair in said[1:])},
                check=False,
            )
            assert made.returncode == 0, made.stderr
            assert 4 == len(labs.named(name).hosts)
        finally:
            server.send_signal(signal.SIGINT)
        assert 0 == server.wait(PATIENCE_S)
    assert not (LABS / name).exists()
    assert not labs.is_anything_left(name)


def test_an_installed_command_simulates_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lab host's first boot needs a checkout; told to boot one, it says so before anything is made."""
    seen: list[str] = []
    monkeypatch.setattr(fake_aws, "IS_CHECKOUT", False)
    monkeypatch.setattr(fake_aws.os, "geteuid", lambda: 0)
    monkeypatch.setattr(fake_aws, "_serve_simulated", lambda port, scale, nodes: seen.append(nodes))

    fake_aws.serve("mine", 7, 0.0, "")
    with pytest.raises(ConfigError, match="--nodes ready"):
        fake_aws.serve("mine", 7, 0.0, "lab")
    assert ["ready"] == seen


def test_a_fake_of_other_nodes_or_of_a_lab_that_is_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is made."""
    with pytest.raises(ConfigError, match="--nodes many is not known: give one of lab, ready, none"):
        fake_aws.serve("mine", 0, 0.0, "many")
    monkeypatch.setattr(fake_aws, "lab_names", lambda: ["mine"])
    with pytest.raises(ConfigError, match="there is a lab mine already: 'inv lab"):
        fake_aws.serve("mine", 0, 0.0, "lab")


def test_a_cluster_file_for_lab_hosts_is_theirs(tmp_path: Path) -> None:
    """Its network halved, its key, and a way in without public addresses; it is one that can be read."""
    lab = SimpleNamespace(name="mine", network="10.77.0.0/16", key=tmp_path / "key", project=ROOT)

    values = fake_aws.cluster_values(lab)
    read = text.parse(tomllib.loads(text.render(values)))

    assert (read.name, read.access.mode, read.nodes.workers, read.ssh.user) == ("mine", "ssm", 3, "root")
    assert (values["network.cidr"], values["network.public_cidr"], values["network.private_cidr"]) == (
        "10.77.0.0/16",
        "10.77.0.0/17",
        "10.77.128.0/17",
    )
    assert (read.shared, read.project, read.ssh.key) == (SHARED, str(ROOT), str(tmp_path / "key"))

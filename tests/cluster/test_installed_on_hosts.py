"""The installed command on hosts: what trainings need travels with it, no checkout is anywhere."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.inventory import load_cluster
from cluster.setup.on_demand import bring_project
from lab import lab as labs
from lab.record import Lab
from tests.conftest import PATIENCE_S
from tests.wheel import install_wheel


@pytest.fixture
def plain(lab_allowed: None) -> Iterator[Lab]:
    """A lab of two hosts of one slot."""
    name = f"v{os.getpid() % 10_000_000}"
    yield labs.up(name, 2, 1)
    labs.down(name)


@pytest.fixture(scope="module")
def dlami(lab_allowed: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The installed command, typed in a repository elsewhere that has a program."""
    commands = install_wheel(tmp_path_factory.mktemp("installed"))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "where.sh").write_text('echo "rank $RANK of $WORLD_SIZE on $(hostname)"\n')
    for words in (["init", "-q"], ["add", "where.sh"]):
        subprocess.run(["git", *words], cwd=elsewhere, check=True, timeout=PATIENCE_S)
    own = {k: v for k, v in os.environ.items() if k not in ("CLUSTER", "PYTHONPATH")}

    def run(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(commands / "dlami"), *words],
            cwd=elsewhere,
            env={**own, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    return run


def test_a_lab_of_the_installed_command_trains_at_once(dlami: Any) -> None:
    """lab.up, health, train.run from a folder elsewhere, and a trainer's own help for what its environment lacks."""
    name = f"w{os.getpid() % 10_000_000}"
    try:
        up = dlami("lab.up", "-n", "2", "--slots", "1", "--name", name)
        assert 0 == up.returncode, up.stderr
        assert "dlami health" in up.stdout and "inv " not in up.stdout
        health = dlami("health", CLUSTER=f"lab:{name}")
        assert (0, "") == (health.returncode, health.stderr), health.stdout
        for more in ((), ("--unchecked",)):
            done = dlami("train.run", *more, "--", "sh", "where.sh", CLUSTER=f"lab:{name}")
            assert 0 == done.returncode, done.stdout + done.stderr
            assert f"rank 1 of 2 on {name}-1" in done.stdout
    finally:
        dlami("lab.down", "--yes", "--name", name)
    assert not labs.is_anything_left(name)


def test_hosts_without_a_checkout_get_what_a_training_needs(dlami: Any, plain: Lab, tmp_path: Path) -> None:
    """By the command that starts it; `health` names the command before that. A second start brings nothing."""
    made = load_cluster(f"lab:{plain.name}")
    text = (made.folder / "cluster.toml").read_text().replace(f'"{made.project}"', '"/opt/nowhere"')
    (tmp_path / "cluster.toml").write_text(text)
    (tmp_path / "hosts").write_text((made.folder / "hosts").read_text())
    chosen = {"CLUSTER": str(tmp_path)}

    health = dlami("health", **chosen)
    assert 0 != health.returncode and "dlami sync --hosts" in health.stdout
    planned = dlami("train.run", "--dry-run", "--", "sh", "where.sh", **chosen)
    assert 2 == planned.returncode and "this project is not on" in planned.stderr
    done = dlami("train.run", "--", "sh", "where.sh", **chosen)
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "bringing this project to" in done.stderr and f"rank 1 of 2 on {plain.name}-1" in done.stdout
    again = dlami("train.run", "--", "sh", "where.sh", **chosen)
    assert (0, False) == (again.returncode, "bringing" in again.stderr)
    with pytest.raises(ConfigError, match=r"the packages of this trainer are not on .*'inv setup'"):
        bring_project(load_cluster(str(tmp_path)), made.hosts, needs_packages=True)

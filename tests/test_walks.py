"""The pages' walks, typed as printed by somebody who has only installed the command, from an empty folder."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import lab as labs
from tests.conftest import PATIENCE_S
from tests.pages import block, own_variables, typed
from tests.wheel import install_wheel

RANK = 'import os; print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])\n'


@pytest.fixture(scope="module")
def installed(lab_allowed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment that has the wheel."""
    return install_wheel(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def name() -> Iterator[str]:
    """A lab that is taken down."""
    name = f"w{os.getpid() % 10_000_000}"
    yield name
    if labs.is_anything_left(name):
        labs.down(name)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A home with somebody's project in it: programs that say their rank, under the names that the pages use."""
    folder = tmp_path / "home/my-project"
    for file, text in {
        "train.py": RANK,
        "my/evaluation.py": RANK,
        "a.out": "#!/bin/sh\necho rank $RANK\n",
        "runs/go.sh": "#!/bin/sh\necho gone\n",
        "tests/keys/id_rsa": "-----BEGIN OPENSSH PRIVATE KEY-----\n",
    }.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
        (folder / file).chmod(0o755)
    subprocess.run("git init -q && git add train.py my a.out runs", shell=True, cwd=folder, check=True)
    return folder


@pytest.fixture
def aws(installed: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """`dlami lab.aws` in another terminal, whose instances report ready: the variables that it prints."""
    words = [str(installed / "dlami"), "lab.aws", "--nodes", "ready"]
    with subprocess.Popen(words, cwd=tmp_path, env=own_variables(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        yield dict(word.split("=", 1) for word in server.stdout.readline().split()[1:])
        server.send_signal(signal.SIGINT)
        assert 0 == server.wait(PATIENCE_S)


def test_the_readme_can_be_walked(
    installed: Path, name: str, aws: dict[str, str], project: Path, tmp_path: Path
) -> None:
    """From an empty folder: a cluster of the stand-in of AWS, then a lab, and a program on each of its hosts."""
    replaced = {
        "pipx install .": "true",  # done: a registry is not asked by tests
        "dlami stack.plan": "sed -i 's|^ssh_from = .*|ssh_from = \"203.0.113.7/32\"|' cluster.toml; dlami stack.plan",
        "stack.create": "stack.create --yes",
        "lab.up -n 4": f"lab.up -n 4 --slots 1 --name {name}; unset AWS_ENDPOINT_URL",
        "torchrun train.py": "python train.py",  # Debian's fails under Python 3.11
        "CLUSTER=lab": f"CLUSTER=lab:{name}",
    }
    (tmp_path / "empty").mkdir()
    lines = block("README.md", "pipx install .")
    train = next(n for n, line in enumerate(lines) if "train.run" in line)
    env = {**aws, "HOME": str(project.parent), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    made = typed(lines[:train], folder=tmp_path / "empty", path=installed, replaced=replaced, **env)
    assert "hosts" in next(text for line, text in made.items() if "lab.up" in line)
    env = {"HOME": str(project.parent), "XDG_CACHE_HOME": str(tmp_path / "cache"), "CLUSTER": f"lab:{name}"}
    said = typed(lines[train - 1 :], folder=tmp_path / "empty", path=installed, replaced=replaced, **env)

    own, launched, followed = (text for line, text in said.items() if line.startswith("dlami "))
    assert 4 == len(set(re.findall(r"rank (\d) of 4", own))), own
    assert "succeeded" in launched and "of 4" in launched, launched
    assert "of 4" in followed


def test_running_md_can_be_walked_with_the_installed_command(
    installed: Path, name: str, project: Path, tmp_path: Path
) -> None:
    """Every command of its first two blocks but accelerate's, which is not here."""
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CLUSTER": f"lab:{name}"}
    typed(
        [f"dlami lab.up -n 2 --slots 8 --name {name}"],
        folder=project,
        path=installed,
        XDG_CACHE_HOME=env["XDG_CACHE_HOME"],
    )
    (project / "conf").mkdir()
    (project / "conf/one.yaml").write_text("a: 1\n")
    (project / "notes.cfg").write_text("b\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/inv").symlink_to(
        installed / "dlami"
    )  # "in a folder without a tasks.py, type dlami instead of inv"
    first = [line for line in block("docs/running.md", "inv train.run --np 16") if "accelerate" not in line]
    code = [
        line
        for line in block("docs/running.md", "inv train.run --no-code")
        if "--no-code" not in line and "--include . " not in line
    ]
    replaced = {"inv train.run": "dlami train.run", "torchrun train.py": "python train.py"}
    said = typed([*first, *code], folder=project, path=installed, replaced=replaced, **env)

    assert len(said) == len(first) + len(code) >= 8
    assert all("succeeded" in text for line, text in said.items() if "--dry-run" not in line), said
    assert 16 == len(set(re.findall(r"rank (\d+)$", next(t for line, t in said.items() if "a.out" in line), re.M)))

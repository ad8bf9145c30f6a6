"""docs/stack.md's story on the stand-in of AWS, typed as printed, from an empty folder."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.hosts import read_hostfile
from cluster.locate import LABS
from lab import lab as labs
from tests.conftest import PATIENCE_S
from tests.pages import CHECKOUT, block, own_variables, typed


@pytest.fixture
def stand_in(lab_allowed: None, tmp_path: Path) -> Iterator[tuple[str, Path, dict[str, str]]]:
    """`inv lab.aws` in one terminal: its lab, the folder with `inv`, and what the other terminal exports."""
    name, commands = f"s{os.getpid() % 10_000_000}", tmp_path / "bin"
    commands.mkdir()
    (commands / "inv").write_text(CHECKOUT)
    (commands / "inv").chmod(0o755)
    words = [str(commands / "inv"), "lab.aws", "--name", name]
    with subprocess.Popen(words, cwd=tmp_path, env=own_variables(), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            exported = dict(word.split("=", 1) for word in server.stdout.readline().split()[1:])
            yield name, commands, exported | {"F": server.stdout.readline().split()[-1]}
        finally:
            server.send_signal(signal.SIGINT)
            code = server.wait(PATIENCE_S)
            if labs.is_anything_left(name):
                labs.down(name)
    assert 0 == code and not (LABS / name).exists()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_story_on_the_stand_in_can_be_typed_as_printed(
    stand_in: tuple[str, Path, dict[str, str]], tmp_path: Path
) -> None:
    """Create, train, lose a host, replace it, resume, delete."""
    name, commands, env = stand_in
    (tmp_path / "empty").mkdir()
    lines = block("docs/stack.md", "inv lab.aws ")[1:]
    crash = next(n for n, line in enumerate(lines) if line.startswith("inv lab.crash"))
    replaced = {f"inv stack.{verb}": f"inv stack.{verb} --yes" for verb in ("create", "replace", "delete")}
    first = typed(lines[:crash], folder=tmp_path / "empty", path=commands, replaced=replaced, **env)
    hosts = read_hostfile(LABS / name / "hosts")
    assert 4 == len(hosts)
    assert all(host.address in " ".join(first.values()) for host in hosts)

    lost = hosts[2].address
    replaced |= {"ADDRESS": lost, "--name aws": f"--name {name}", "last -f": "last -f || [ $? = 1 ]"}
    said = typed(lines[crash:], folder=tmp_path / "empty", path=commands, replaced=replaced, **env)

    assert lost in said[next(line for line in said if "jobs.logs" in line)]
    assert "stopped" in said[next(line for line in said if "jobs.stop" in line)]
    assert "fs-" in said[next(line for line in said if "stack.delete" in line)]

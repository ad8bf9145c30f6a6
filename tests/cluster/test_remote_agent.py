"""Programs that stay on a host and are asked again and again: what they may do wrong, on this machine without SSH."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.agent_exchange import AWAITED
from cluster.ssh.fanout import Executor
from cluster.ssh.onhost.frame import framed
from cluster.ssh.program import HostProgram, program
from cluster.ssh.remote_agent import AgentAnswer, Dialogue
from cluster.top.collector import one_frame
from cluster.top.snapshot import HostState, Visibility
from tests.conftest import PATIENCE_S

HERE = Host(rank=0, address="localhost", slots=1)
CLUSTER = Cluster(name="here", hosts=(HERE,), folder=Path(), shared="", project="")
LONG_S = PATIENCE_S


def a_program(folder: Path, shell: str) -> HostProgram:
    """A host's Python that is a shell script instead."""
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{shell}\n")
    script.chmod(0o755)
    return program("cluster.top.onhost.host", "/nowhere", python=str(script))


def answers(
    reach: Executor, asked: HostProgram, is_enough: Callable[[Dialogue, list[AgentAnswer]], bool]
) -> tuple[list[AgentAnswer], str]:
    """What comes until it is enough, and the trouble that there is then."""
    found: list[AgentAnswer] = []
    with Dialogue(reach, [HERE], asked, lambda _: [[]]) as dialogue:
        assert AWAITED == dialogue.trouble(HERE)
        deadline = time.monotonic() + LONG_S
        while not is_enough(dialogue, found):
            assert time.monotonic() < deadline, dialogue.trouble(HERE)
            dialogue.ask(HERE, False)
            found += dialogue.listen(0.1)
        return found, dialogue.nonsense(HERE) or dialogue.trouble(HERE)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("shell", "trouble"),
    [
        ("echo 'no such module' >&2; exit 3", "our program ended there with exit code 3: no such module"),
        ("kill -9 $$", "our program ended there with exit code -9"),
        ("printf 'Welcome!\\n'; exec sleep 1000", "Welcome!"),
    ],
)
def test_what_a_program_does_instead_of_answering_is_said(tmp_path: Path, shell: str, trouble: str) -> None:
    """Ends, dies, says something else; no error here."""
    asked = a_program(tmp_path, shell)
    with Executor(CLUSTER) as reach:
        found, said = answers(reach, asked, lambda d, _: bool(d.nonsense(HERE)) or d.trouble(HERE) not in ("", AWAITED))

    assert ([], True) == (found, said.startswith(trouble))


def test_a_flood_is_cut_off(tmp_path: Path) -> None:
    """It would keep us busy and tell nothing."""
    with Executor(CLUSTER) as reach:
        found, _ = answers(reach, a_program(tmp_path, "exec yes garbage"), lambda d, _: "too much" in d.trouble(HERE))

    assert [] == found


def test_one_that_hangs_owes_its_answer_and_is_not_asked_again(tmp_path: Path) -> None:
    """For how long is known; its end comes with the dialogue's."""
    asked = a_program(tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 1000")
    with Executor(CLUSTER) as reach, Dialogue(reach, [HERE], asked, lambda _: [[]]) as dialogue:
        assert dialogue.ask(HERE, False)
        assert not dialogue.ask(HERE, False)
        deadline = time.monotonic() + LONG_S
        while dialogue.waits_s(HERE) < 0.5 or not (pid := said_in(tmp_path / "pid")):
            assert time.monotonic() < deadline
            assert [] == dialogue.listen(0.1)
    assert not Path(f"/proc/{pid}").exists()


def said_in(file: Path) -> str:
    """What is written there by now."""
    return file.read_text().strip() if file.exists() else ""


def test_one_that_failed_is_tried_again(tmp_path: Path) -> None:
    """By itself, after a pause; its trouble is forgotten with the first answer."""
    (tmp_path / "answer").write_bytes(framed({"question": 1}))
    first = f"[ -e {tmp_path}/again ] || {{ touch {tmp_path}/again; exit 1; }}"
    asked = a_program(tmp_path, f"{first}\ncat {tmp_path}/answer; exec sleep 1000")
    with Executor(CLUSTER) as reach:
        found, trouble = answers(reach, asked, lambda _, found: bool(found))

    assert ("", {"question": 1}) == (trouble, found[0].answer)


REAL = 'exec /usr/bin/python3 "$@"'


def one_look(monkeypatch: pytest.MonkeyPatch, folder: Path, shell: str) -> HostState:
    """At this machine, whose Python is a shell script."""
    asked = a_program(folder, shell)
    monkeypatch.setattr("cluster.top.collector.program", lambda *_: asked)
    with Executor(CLUSTER) as reach:
        (seen,) = one_frame(reach, CLUSTER, [HERE]).hosts
    return seen


@pytest.mark.parametrize("second", ["sleep 1; cat {}", "head -c 30 {}; sleep 2.5; tail -c +31 {}"])
def test_one_look_waits_for_an_answer_that_is_slow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, second: str
) -> None:
    """For longer than the table that is drawn every second calls a host silent: a busy host is up."""
    with Executor(CLUSTER) as reach:
        told, _ = answers(reach, program("cluster.top.onhost.host", "/nowhere"), lambda _, found: len(found) == 2)
    for number, one in enumerate(told):
        (tmp_path / f"answer{number}").write_bytes(framed(one.answer))
    monkeypatch.setattr("cluster.top.collector.SILENT_S", 0.2)
    slow = f"cat {tmp_path}/answer0; {second.replace('{}', f'{tmp_path}/answer1')}; exec sleep 1000"
    seen = one_look(monkeypatch, tmp_path, slow)

    assert (Visibility.SEEN, "") == (seen.sight, seen.why)
    assert seen.rates


@pytest.mark.parametrize(
    "before",
    [
        "echo Welcome; sleep 1.5",
        'd=$(dirname "$0"); [ -e $d/again ] || { touch $d/again; exit 1; }',
    ],
)
def test_one_look_is_patient_with_what_comes_before_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str
) -> None:
    """A shell's greeting is no nonsense while a Python starts, and one failed start is not the end."""
    seen = one_look(monkeypatch, tmp_path, f"{before}\n{REAL}")

    assert (Visibility.SEEN, "") == (seen.sight, seen.why)

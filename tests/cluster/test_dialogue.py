"""Programs that stay on a host and are asked again and again: what they may do wrong, on this machine without SSH."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.dialogue import Dialogue, Told
from cluster.ssh.exchange import AWAITED
from cluster.ssh.fanout import Reach
from cluster.ssh.onhost.frame import framed
from cluster.ssh.program import Program, program

HERE = Host(rank=0, address="localhost", slots=1)
CLUSTER = Cluster(name="here", hosts=(HERE,), folder=Path(), shared="", project="")
LONG_S = 300.0


def a_program(folder: Path, shell: str) -> Program:
    """A host's Python that is a shell script instead."""
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{shell}\n")
    script.chmod(0o755)
    return program("cluster.top.onhost.host", "/nowhere", python=str(script))


def answers(reach: Reach, asked: Program, is_enough: Callable[[Dialogue, list[Told]], bool]) -> tuple[list[Told], str]:
    """What comes until it is enough, and the trouble that there is then."""
    found: list[Told] = []
    with Dialogue(reach, [HERE], asked, lambda _: [[]]) as dialogue:
        assert AWAITED == dialogue.trouble(HERE)
        deadline = time.monotonic() + LONG_S
        while not is_enough(dialogue, found):
            assert time.monotonic() < deadline, dialogue.trouble(HERE)
            dialogue.ask(HERE, False)
            found += dialogue.listen(0.1)
        return found, dialogue.nonsense(HERE) or dialogue.trouble(HERE)


def test_every_question_has_its_answer() -> None:
    """In their order, one at a time, with how long it took."""
    asked = program("cluster.top.onhost.host", "/nowhere")
    with Reach(CLUSTER) as reach:
        found, trouble = answers(reach, asked, lambda _, found: len(found) == 5)

    assert ("", [1, 2, 3, 4, 5]) == (trouble, [told.answer["question"] for told in found])
    assert all(0 < told.took_s < LONG_S for told in found)


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
    with Reach(CLUSTER) as reach:
        found, said = answers(reach, asked, lambda d, _: bool(d.nonsense(HERE)) or d.trouble(HERE) not in ("", AWAITED))

    assert ([], True) == (found, said.startswith(trouble))


def test_a_flood_is_cut_off(tmp_path: Path) -> None:
    """It would keep us busy and tell nothing."""
    with Reach(CLUSTER) as reach:
        found, _ = answers(reach, a_program(tmp_path, "exec yes garbage"), lambda d, _: "too much" in d.trouble(HERE))

    assert [] == found


def test_one_that_hangs_owes_its_answer_and_is_not_asked_again(tmp_path: Path) -> None:
    """For how long is known; its end comes with the dialogue's."""
    asked = a_program(tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 1000")
    with Reach(CLUSTER) as reach, Dialogue(reach, [HERE], asked, lambda _: [[]]) as dialogue:
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
    with Reach(CLUSTER) as reach:
        found, trouble = answers(reach, asked, lambda _, found: bool(found))

    assert ("", {"question": 1}) == (trouble, found[0].answer)

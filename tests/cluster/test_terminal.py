"""What a task says and asks: colour, counts, questions, and the values that a task's options become."""

import io
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from invoke import Context

from cluster import terminal
from cluster.errors import ConfigError
from cluster.hosts import is_this_machine
from dlami.tasks.command import command, option


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "expected"), [("y\n", True), ("Yes\n", True), ("\n", False), ("n\n", False), ("", False)]
)
def test_only_a_yes_is_a_yes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: Any, expected: Any
) -> None:
    """Return, and the end of the terminal's input, are a no."""
    screen = Screen(answer)
    monkeypatch.setattr(sys, "stdin", screen)

    assert expected is terminal.agreed("end 3 processes")


def test_where_nobody_can_be_asked_it_says_how_to_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's stdin is not an answer."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))

    with pytest.raises(
        ConfigError, match="end 3 processes\\? There is no terminal to ask on: add --yes if you mean it"
    ):
        terminal.agreed("end 3 processes")


@pytest.mark.parametrize(
    ("address", "expected"), [("127.0.0.1", True), ("localhost", True), ("", False), ("203.0.113.9", False)]
)
def test_this_machine_is_known_by_its_addresses(address: Any, expected: Any) -> None:
    """203.0.113.0/24 is nobody's."""
    assert expected is is_this_machine(address)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Those of a task in these tests."""

    name: str = option("x", "a name")
    seconds: float = option(1.5, "a time")
    also: Any = option(None, "more", repeats=True)


def test_a_task_s_options_come_as_one_value() -> None:
    """From the fields of a dataclass: their names, defaults and help; as it was given on the command line."""
    came = []

    @command(name="try")
    def attempt(c: Context, given: Options) -> None:
        """Try."""
        came.append(given)

    attempt(Context(), name="y")
    arguments = {a.name: a for a in attempt.get_arguments()}

    assert [Options(name="y")] == came
    assert {"name": str, "seconds": float, "also": list} == {n: a.kind for n, a in arguments.items()}
    assert (1.5, "a time") == (arguments["seconds"].default, arguments["seconds"].help)

"""What a task says and asks: colour, counts, questions, and the values that a task's options become."""

import io
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from invoke import Context
from invoke.exceptions import ParseError
from invoke.parser import Parser, ParserContext

from cluster import terminal
from cluster.commandline.command import REQUIRED, command, option
from cluster.errors import ConfigError
from cluster.hosts import Host, is_this_machine, table


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "no_color", "term", "is_coloured"),
    [
        (Screen(), "", "xterm", True),
        (Screen(), "1", "xterm", False),
        (Screen(), "", "dumb", False),
        (io.StringIO(), "", "xterm", False),
    ],
)
def test_colour_is_for_terminals_of_people_who_want_it(
    monkeypatch: pytest.MonkeyPatch, stream: Any, no_color: Any, term: Any, is_coloured: Any
) -> None:
    """https://no-color.org: set and not empty forbids it."""
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", term)

    assert ("\x1b[31mfailed\x1b[0m" if is_coloured else "failed") == terminal.painted("failed", "red", stream)
    assert "" == terminal.painted("", "red", stream)


@pytest.mark.parametrize(("number", "words"), [(0, "0 hosts"), (1, "1 host"), (2, "2 hosts"), (12345, "12,345 hosts")])
def test_one_is_not_a_plural(number: Any, words: Any) -> None:
    """`1 hosts` reads like a bug."""
    assert words == terminal.counted(number, "host")


def test_a_table_of_one_host() -> None:
    """Its foot counts."""
    assert "1 host, 1 slot" == table([Host(rank=0, address="a", slots=1)]).splitlines()[-1]
    assert (
        "2 hosts, 9 slots"
        == table([Host(rank=r, address=f"a{r}", slots=8 * r + 1 - r * 1) for r in (0, 1)]).splitlines()[-1]
    )


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


@dataclass(frozen=True, kw_only=True)
class OfAHost(Options):
    """Those of a task that needs a host."""

    host: str = option(REQUIRED, "a host")


def test_an_option_without_a_default_has_to_be_given() -> None:
    """As a word by itself; what another task's options are the base of keeps theirs."""

    @command(name="end", positional=["host"])
    def end(c: Context, given: OfAHost) -> None:
        """End."""

    arguments = {a.name: a for a in end.get_arguments()}

    assert {"name", "seconds", "also", "host"} == set(arguments)
    assert ["host"] == [name for name, a in arguments.items() if a.positional]
    with pytest.raises(ParseError, match="required positional"):
        Parser(contexts=[ParserContext(name="end", args=end.get_arguments())]).parse_argv(["end"])


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

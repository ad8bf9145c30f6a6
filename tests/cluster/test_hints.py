"""Commands that messages and health's problems tell the operator to type: each is one that the command line takes."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from invoke.exceptions import ParseError

from cluster.health.known_faults import ACTION, SOURCES
from cluster.inventory import ROOT
from tests.typed_words import parsed

PACKAGES = ("cluster", "cfn", "dlami", "eks", "lab", "trainer")
QUOTED = re.compile(r"['`](inv [a-z][^'`\n]*)['`]")
STANDS_FOR = "7"  # a value that is filled in: ranks, a number, a name
ELLIPSIS = re.compile(r"…|\.\.\.|<[^>]*>|\[[^\]]*\]|\b[A-Z]{3,}\b")  # of the syntax, not the command


def texts(path: Path) -> Iterator[str]:
    """Every string of a module; what an f-string fills in is STANDS_FOR."""
    tree = ast.parse(path.read_text())
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else STANDS_FOR for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def commands_in(text: str) -> list[str]:
    """The commands of a message, and a text that is a command itself."""
    whole = [text] if re.match(r"inv [a-z]", text) and "\n" not in text else []
    return [re.sub(r"\{\w*\}", STANDS_FOR, command) for command in [*whole, *([] if whole else QUOTED.findall(text))]]


def wrong(command: str) -> str:
    """Why the command line does not take it; "" if it does, or if it only names a task or a flag."""
    if ELLIPSIS.search(command.partition(" -- ")[0]):
        return ""
    try:
        words = shlex.split(command)
    except ValueError:
        return ""  # cut by a quote of its own: the whole is in docs or a problem's command
    if any(sign in words[1] for sign in ("*", ",", STANDS_FOR)):
        return ""  # of several tasks
    try:
        parsed(words[1:])
    except ParseError as e:
        is_a_name = (len(words) == 2 and "needs more words" in str(e)) or "needed value" in str(e)
        return "" if is_a_name else f"{command}: {e}"
    return ""


@pytest.mark.seconds
def test_every_command_that_a_message_names_is_taken() -> None:
    """With its flags, as the message has it."""
    files = [p for package in PACKAGES for p in (ROOT / package).rglob("*.py")]
    found = {command: p for p in files for text in texts(p) for command in commands_in(text)}

    assert len(found) > 100
    assert [] == sorted(f"{p.relative_to(ROOT)}: {why}" for command, p in found.items() if (why := wrong(command)))


def test_every_command_of_a_known_fault_is_taken() -> None:
    """Those that are data, and the usual ones of each verdict."""
    rows = [*SOURCES["nvidia-smi"]["failures"], *SOURCES["kernel"]["lines"]]
    commands = [*(row["command"] for row in rows if "command" in row), *(command for _, command in ACTION.values())]

    assert [] == [why for command in commands if (why := wrong(command.replace("{ranks}", STANDS_FOR)))]

"""docs/troubleshooting.md quotes messages as the code prints them, so that a search for one finds its row."""

import ast
import re
from collections.abc import Iterator

from cluster.inventory import ROOT

PAGE = ROOT / "docs/troubleshooting.md"
LEAST_ENTRIES = 60
LEAST_CHARACTERS = 10  # a shorter quotation stands in too many places to mean one message
BETWEEN = "\0"  # in the place of an interpolated value, which no quotation may span


def first_cells() -> list[str]:
    """Return the first cell of each row of the page's tables, without the rows that head them."""
    rows = re.findall(r"^\| (.+?) \|", PAGE.read_text(), re.MULTILINE)
    return [cell for cell in rows if cell != "message or symptom"]


def quoted() -> list[str]:
    """Return the messages that the first column has in backticks."""
    return [message for cell in first_cells() for message in re.findall(r"`([^`]+)`", cell)]


def printed(tree: ast.Module) -> Iterator[str]:
    """Yield a module's strings without its docstrings, an f-string as one."""
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):  # met before its value
            docstrings.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else BETWEEN for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def source() -> str:
    """Return all that the product can print: its modules' strings, and its scripts."""
    folders = ("cluster", "cfn", "trainer", "dlami", "eks", "lab")
    modules = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    strings = [text for path in modules for text in printed(ast.parse(path.read_text()))]
    return "\n".join([*strings, *(path.read_text() for path in sorted((ROOT / "scripts").glob("*.sh")))])


def test_every_message_stands_in_the_code() -> None:
    """As it is written there, so a message that is worded anew takes its row along."""
    said = source()

    assert [] == [message for message in quoted() if message not in said]


def test_the_page_is_worth_a_search() -> None:
    """It has many messages, none twice, and each with its cause and remedy."""
    messages = quoted()
    assert len(messages) >= LEAST_ENTRIES
    assert [] == [message for message in messages if messages.count(message) > 1 or len(message) < LEAST_CHARACTERS]
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert [] == [row for row in rows if len(re.findall(r"\|(?= |$)", row)) != 4]

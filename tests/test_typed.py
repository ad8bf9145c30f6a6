"""Every task is typed by a test: its name stands in one among the words of a command line."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from cluster.inventory import ROOT
from dlami.collection import ns

GOALS = {"demo.resnet50": "demo", "demo.maskrcnn": "demo-maskrcnn"}  # they are typed as the Makefile's goals


def words(path: Path) -> Iterator[str]:
    """What is handed to a function, or stands in a list, as a pattern: of an f-string the fields may be anything."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(args=elements) | ast.Tuple(elts=elements) | ast.List(elts=elements):
                for one in elements:
                    if isinstance(one, ast.Constant) and isinstance(one.value, str):
                        yield from map(re.escape, one.value.split())
                    elif isinstance(one, ast.JoinedStr):
                        fixed = [str(v.value) if isinstance(v, ast.Constant) else "" for v in one.values]
                        yield "".join(re.escape(text) or r"[\w-]+" for text in fixed)


def test_every_task_is_typed() -> None:
    """By its whole name, so that what it says to who types it was seen."""
    others = {ROOT / "tests/test_docs.py", ROOT / "tests/test_house.py", Path(__file__)}
    paths = {p for p in (ROOT / "tests").rglob("*.py") if p not in others}
    found = {word for path in paths for word in words(path) if word != r"[\w-]+"}
    typed = re.compile("|".join(sorted(found)))
    names = {name: GOALS.get(name, name) for name in ns.task_names}

    assert GOALS.keys() <= names.keys()
    assert [] == [name for name, word in names.items() if not typed.fullmatch(word)]

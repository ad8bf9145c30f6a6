"""What is printed says one host and two hosts, and never `host(s)`."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import terminal
from cluster.inventory import ROOT
from trainer.common.files import plural

SOURCES = sorted(
    p for folder in ("cluster", "cfn", "trainer", "dlami", "eks", "lab") for p in (ROOT / folder).rglob("*.py")
)
NOUNS = (
    "attempt checkpoint day detection epoch error event example failure file finding GPU header host hour image instance"
    " job label line minute node object package page parameter part picture place problem process rank record region"
    " resource result row second segment shard slot spare step token user vCPU value warning word worker"
)
SUCH = "more earlier whole equal validation crowd other"
PLURAL = re.compile(rf" (?:(?:{SUCH.replace(' ', '|')}) )?({'|'.join(NOUNS.split())})e?s\b(?![/=])")
BOTH = re.compile(r"[a-z]\(e?s\)")
RIGHT = {  # what stands before the plural is no number, or one that is never one there
    "{name} shards", "{sorted(ranks)} ranks",
    "{self.accumulate} equal parts",  # one part is not said
    "{step} minutes", "{minutes} minutes",  # of onhost/, which imports nothing: 15, 30 and 60
    "{len(rows)} files",  # of onhost/: "3 of 7 files", of a folder that was sent in parts
    "{design.file.nodes.workers} workers",  # the template's own description
    "{job.nodes} workers", "{len(workers)} workers",  # "1 of 2 workers"
    "{count} nodes",  # Kubernetes' own words: "0/1 nodes are available"
    "{wanted} ranks",  # of tensorpack's experiments, of which none is for one
}  # fmt: skip


def numbers_before_plurals(path: Path) -> Iterator[str]:
    """Each interpolation that a plural follows, but a decimal fraction or a limit of ours, in capitals."""
    for node in ast.walk(ast.parse(path.read_text())):
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        for number, after in itertools.pairwise(parts):
            if not (isinstance(number, ast.FormattedValue) and isinstance(after, ast.Constant)):
                continue
            names = {n.id for n in ast.walk(number.value) if isinstance(n, ast.Name)}
            spec = ast.unparse(number.format_spec) if number.format_spec else ""
            found = PLURAL.match(str(after.value))
            if (
                found
                and not (names and all(n.lstrip("_").isupper() for n in names))
                and not re.search(r"\.[1-9]f", spec)
            ):
                yield f"{{{ast.unparse(number.value)}}}{found[0]}"


def strings(path: Path) -> Iterator[str]:
    """The strings of a module, its docstrings aside."""
    tree = ast.parse(path.read_text())
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_a_plural_follows_a_number_that_is_counted() -> None:
    """By `counted`, which knows of one; a number that is written before a plural by hand may be one."""
    found = [(str(p.relative_to(ROOT)), text) for p in SOURCES for text in numbers_before_plurals(p)]

    assert [] == [one for one in found if not any(one[1].startswith(right) for right in RIGHT)]
    assert not RIGHT - {right for right in RIGHT for one in found if one[1].startswith(right)}


def test_nothing_is_one_or_many_in_one_word() -> None:
    """As in `host(s)`; AWS's and Kubernetes' own words, which the stand-ins repeat, and what NVIDIA's tool prints are theirs."""
    theirs = (ROOT / "lab/aws", ROOT / "lab/kube")
    ours = [p for p in SOURCES if not any(p.is_relative_to(folder) for folder in theirs)]

    assert {"bank(s)"} == {text for p in ours for text in strings(p) if BOTH.search(text)}


@pytest.mark.parametrize("counted", [terminal.counted, plural.counted])
def test_one_is_one_however_it_is_written(counted: object) -> None:
    """The two that count say the same."""
    assert callable(counted)
    assert ["0 steps", "1 step", "2 steps", "0.5 epochs", "1 epoch"] == [
        counted(0, "step"), counted(1, "step"), counted(2, "step"), counted(0.5, "epoch"), counted(1.0, "epoch")
    ]  # fmt: skip

"""Which test functions speak of a piece of the product: by the words that both use, rare ones counting most.

A test that reaches a module through a lab or another process is seen by no coverage; what it is called, says and types
names its subject all the same.
"""

import ast
import math
import re
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from mutants import Mutant

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_ENDINGS = re.compile(r"(ings?|ed|es|s|e)$")


class Likeness:
    """The test functions of a checkout by their words."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def nearest(self, mutant: Mutant, files: Iterable[str]) -> list[str]:
        """The test functions of these files that speak of what the change is in, the first the most."""
        asked = self._weighed(_words_around(self._root / mutant.path, mutant))
        among = set(files)
        scores = {
            test: sum(weight * asked[w] for w, weight in words.items() if w in asked)
            for test, words in self._tests.items()
            if test.partition("::")[0] in among
        }
        return sorted((t for t, s in scores.items() if s > 0), key=lambda t: (-scores[t], t))

    @cached_property
    def _counted(self) -> dict[str, Counter[str]]:
        """pytest's name of each test function -> how often it uses a word."""
        found: dict[str, Counter[str]] = {}
        for path in sorted((self._root / "tests").rglob("test_*.py")):
            tree, name = ast.parse(path.read_text()), path.relative_to(self._root).as_posix()
            for node in tree.body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    said = Counter(_words(ast.unparse(node)))
                    found[f"{name}::{node.name}"] = said + Counter([*_words(node.name), *_words(path.stem)] * 3)
        return found

    @cached_property
    def _rarity(self) -> dict[str, float]:
        """Word -> the logarithm of how few tests use it."""
        tests = Counter(word for words in self._counted.values() for word in words)
        return {word: math.log(len(self._counted) / n) for word, n in tests.items()}

    @cached_property
    def _tests(self) -> dict[str, dict[str, float]]:
        return {test: self._weighed(words) for test, words in self._counted.items()}

    def _weighed(self, words: Counter[str]) -> dict[str, float]:
        """Words' weights, of length 1 together; what no test uses has none."""
        found = {w: (1 + math.log(n)) * self._rarity[w] for w, n in words.items() if w in self._rarity}
        length = math.hypot(*found.values()) or 1.0
        return {word: weight / length for word, weight in found.items()}


def _words_around(path: Path, mutant: Mutant) -> Counter[str]:
    """The words of the functions and classes around a change, of the line, and of its module's name."""
    text = path.read_text()
    found = Counter([*_words(path.stem), *_words(text.splitlines()[mutant.line - 1])] * 3)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= mutant.line <= (node.end_lineno or 0):
            found += Counter([*_words(node.name), *_words(ast.get_docstring(node) or "")] * 3)
            found += Counter(_words(ast.unparse(node)) if isinstance(node, ast.FunctionDef) else ())
    return found


def _words(text: str) -> list[str]:
    """Its words without their endings: `stopped_hosts` and `stopsHost` have one in common."""
    return [_ENDINGS.sub("", word.lower()) for word in _WORD.findall(text) if len(word) > 2]

"""Which tests reach a line of the product: by coverage where that was measured, by the imports where not."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from likeness import Likeness
from mutants import Mutant
from tests.order import TRAININGS

PURE = "not lab and not slow and not long and not fuzz"
MAPPED = "not lab and not long and not fuzz and (not slow or inside)"
COLLECTION = "dlami/collection.py"
FARTHEST = 4  # imports from a test file to the changed module
SPEAKING = 12  # test functions that are tried for their words before whole files are
AT_ONCE = 40  # test functions of one run: an early one may notice
_CONTEXT = re.compile(r"(tests(?:\.\w+)+)\.(test_\w+)")


class Reach:
    """The tests of a checkout, with what they reach."""

    def __init__(self, root: Path, work: Path, *, anew: bool = False) -> None:
        self._root, self._data, self._likeness = root, work / "coverage", Likeness(root)
        if anew:
            self._measure()

    def lots_of(self, mutant: Mutant) -> list[list[str]]:
        """Tests in the order in which they are tried, a lot at a time.

        Test functions that run the line or speak of it, then the files that name its module, of both those first that
        take no lab, no stand-in of AWS and no trainer; then whole files that may reach it, the nearest first. Of those
        that take long and run the line, the likeliest come before any file.
        """
        distances = self._distances(mutant.path)
        all_running = self._running(mutant)
        running = [
            t for t in sorted(all_running, key=lambda t: (distances.get(_file(t), 9), t)) if not self._takes_long(t)
        ]
        likely = self._likeness.nearest(mutant, {*distances, *map(_file, all_running)})
        place = {t: n for n, t in enumerate(likely)}
        slow = sorted(all_running.difference(running), key=lambda t: (place.get(t, len(likely)), t))[:SPEAKING]
        speaking = [t for t in likely if t not in all_running and _file(t) in distances][: 2 * SPEAKING]
        long = [t for t in speaking if self._takes_long(t)]
        quick = [*running, *(t for t in speaking if t not in long)][: len(running) + SPEAKING]
        near = [f for *_, f in sorted((n, self._takes_long(f), len(self._imports[f]), f) for f, n in distances.items())]
        first = [f for f in near if distances[f] == 1 and not self._takes_long(f)]
        return [
            *(quick[n : n + AT_ONCE] for n in range(0, len(quick), AT_ONCE)),
            *([slow] if slow else []),
            *([f] for f in first),
            *([long[:SPEAKING]] if long else []),
            *([f] for f in near if f not in first),
        ]

    def _takes_long(self, test: str) -> bool:
        """Whether a file, or one function of it, trains, or asks for a lab, the stand-in of AWS or a trainer."""
        path, _, function = test.partition("::")
        trains = path.removeprefix("tests/") in TRAININGS
        return trains or (test in self._long if function else any(t.startswith(f"{path}::") for t in self._long))

    @cached_property
    def _long(self) -> set[str]:
        """pytest's names of the functions that are not pure."""
        said = self._said(
            "-m pytest -q --collect-only -p no:cacheprovider -m", f"not ({PURE})", may_end=(0, 5)
        )  # 5: none
        return {line.partition("[")[0] for line in said.splitlines() if "::" in line}

    def _measure(self) -> None:
        """One run of the tests in pytest's own process but for labs', under coverage, each function a context."""
        settings = self._data.with_suffix(".ini")
        settings.write_text(
            f"[run]\ndynamic_context = test_function\ndata_file = {self._data}\nsource = cfn,cluster,trainer\n"
            "disable_warnings = module-not-imported,no-data-collected\n"
        )
        print("looking which test runs which line, but for those of labs and trainers", flush=True)
        words = f"-m coverage run --rcfile={settings} -m pytest -q -p no:cacheprovider -m"
        self._said(words, MAPPED, may_end=(0, 1))  # 1: some failed

    def _said(self, words: str, marks: str, may_end: tuple[int, ...]) -> str:
        """What pytest prints. Raises SystemExit if it broke off: what it did not come to would count as not there."""
        command = [sys.executable, *words.split(), marks]
        done = subprocess.run(command, cwd=self._root, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode not in may_end:
            raise SystemExit(f"pytest broke off ({done.returncode}): {done.stdout[-800:]}{done.stderr[-800:]}")
        return done.stdout

    def _running(self, mutant: Mutant) -> set[str]:
        from coverage import CoverageData

        if not self._data.exists():
            return set()
        data = CoverageData(str(self._data))
        data.read()
        lines = data.contexts_by_lineno(str(self._root / mutant.path))
        of_line = set().union(*(lines.get(n, ()) for n in self._statement(mutant)))
        found = {t for c in of_line if (t := self._test(c))}
        if found or not of_line:
            return found
        return {t for cs in lines.values() for c in cs if (t := self._test(c))}  # it is run at the import

    def _statement(self, mutant: Mutant) -> range:
        """Lines of the smallest statement around it; of one with a body its first lines alone."""
        around = [
            range(node.lineno, (body[0].lineno if (body := getattr(node, "body", None)) else node.end_lineno + 1))
            for node in ast.walk(ast.parse((self._root / mutant.path).read_text()))
            if isinstance(node, ast.stmt) and node.end_lineno
        ]
        return min((r for r in around if mutant.line in r), key=len, default=range(mutant.line, mutant.line + 1))

    def _test(self, context: str) -> str | None:
        """pytest's name of the function that a context is called after."""
        match = _CONTEXT.fullmatch(context)
        path = match[1].replace(".", "/") + ".py" if match else ""
        return f"{path}::{match[2]}" if match and (self._root / path).exists() else None

    @cached_property
    def _modules(self) -> dict[str, str]:
        """Dotted name -> path, of the product and of the tests."""
        paths = (
            p.relative_to(self._root)
            for top in ("cfn", "cluster", "trainer", "dlami", "eks", "lab", "tests")
            for p in (self._root / top).rglob("*.py")
        )
        return {".".join(p.with_suffix("").parts).removesuffix(".__init__"): p.as_posix() for p in paths}

    def _called(self, text: str) -> Iterable[str]:
        """The file that a path, or the end of one, names; of a script what it starts with `python -m`."""
        found = [p for p in [*self._modules.values(), *self._scripts] if f"/{p}".endswith(f"/{text}")]
        if len(found) == 1:
            yield from self._scripts.get(found[0], found)

    @cached_property
    def _scripts(self) -> dict[str, list[str]]:
        """A shell script's path -> the modules that it starts."""
        paths = {p.relative_to(self._root).as_posix(): p.read_text() for p in self._root.glob("scripts/*.sh")}
        return {
            path: [self._modules[name] for name in re.findall(r"-m ([\w.]+)", text) if name in self._modules]
            for path, text in paths.items()
        }

    @cached_property
    def _tasks(self) -> dict[str, str]:
        """A task's name, as it is typed -> the file that has it."""
        from dlami.collection import ns

        return {name: f"{ns[name].body.__module__.replace('.', '/')}.py" for name in ns.task_names}

    @cached_property
    def _imports(self) -> dict[str, set[str]]:
        """File -> files that it imports, names in a string (a program for hosts), or types as a task.

        That the collection has every task brings nobody nearer.
        """
        texts = {path: (self._root / path).read_text() for path in self._modules.values() if path != COLLECTION}
        return {path: set(self._named(ast.parse(text))) for path, text in texts.items()}

    def _named(self, tree: ast.AST) -> Iterable[str]:
        for node in ast.walk(tree):
            names: list[str] = []
            match node:
                case ast.ImportFrom(module=str() as module, names=aliases):
                    own = [f"{module}.{a.name}" for a in aliases]
                    names = [n for n in own if n in self._modules] or [module]
                case ast.Import(names=aliases):
                    names = [a.name for a in aliases]
                case ast.Constant(value=str() as text) if "." in text:
                    names = [text, f"{text}.__main__"]  # `python -m` runs that
                    if text.endswith((".py", ".sh")):
                        yield from self._called(text)
                    if text in self._tasks:
                        yield self._tasks[text]
                case ast.Call(func=ast.Name(id=called), args=[ast.Constant(value=str() as text), *_]) if (
                    "inv" in called or called == "typed"
                ):
                    if text in self._tasks:
                        yield self._tasks[text]
            yield from (self._modules[n] for n in names if n in self._modules)

    def _distances(self, path: str) -> dict[str, int]:
        """Test file -> how many imports lead from it to this module."""
        found: dict[str, int] = {}
        edge = seen = {path}
        for n in range(1, FARTHEST + 1):
            edge = {f for f, named in self._imports.items() if f not in seen and named & edge}
            seen = seen | edge
            found |= {f: n for f in edge if re.search(r"(^|/)test_\w+\.py$", f)}
        return found


def _file(test: str) -> str:
    """The file of a test function."""
    return test.partition("::")[0]

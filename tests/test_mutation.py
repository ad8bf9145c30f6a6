"""Whether tests notice is itself noticed: what is drawn, what an outcome is, and that a run goes on where one ended."""

import argparse
import importlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT

CODE = {
    "cluster/__init__.py": "",
    "cluster/size.py": "def is_small(n):\n    return n < 10\n\n\ndef unheard(n):\n    return n > 10\n",
    "tests/test_size.py": "from cluster.size import is_small\n\n\ndef test_ten():\n    assert not is_small(10)\n",
}


@pytest.fixture
def mutation(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, which is no package's module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("mutation")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One function that a test holds and one that none does."""
    root = tmp_path / "checkout"
    for name, text in CODE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "pytest.ini").write_text(
        "[pytest]\naddopts = --import-mode=importlib\nmarkers =\n    lab\n    slow\n    inside\n    long\n    fuzz\n"
    )
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=root, check=True)
    (root / ".mutation").mkdir()
    return root


def test_a_change_elsewhere_leaves_what_is_drawn_of_a_module(mutation: Any, checkout: Path) -> None:
    """So a run goes on in a tree of days later; two seeds draw two orders, a larger count these and more."""

    def draw(**given: int) -> list[str]:
        found = mutation.mutants.draw(checkout, **{"count": 100, "seed": 1, **given})
        return [m.name.split(": ")[1] for m in found if m.path == "cluster/size.py"]

    before = draw()
    (checkout / "cluster/another.py").write_text("def f(n):\n    return n + 1\n")
    size = checkout / "cluster/size.py"
    size.write_text("# A line above.\n" + size.read_text())

    assert before == draw()
    assert before != draw(seed=2) and sorted(before) == sorted(draw(seed=2))
    some = mutation.mutants.draw(checkout, count=3, seed=1)
    assert some == mutation.mutants.draw(checkout, count=100, seed=1)[:3]


def test_a_change_is_tried_by_who_speaks_of_it_and_quick_tests_first(mutation: Any, checkout: Path) -> None:
    """A test on hosts that speaks of it comes after the files that name its module, and before the rest of its own."""
    (checkout / "tests/test_colour.py").write_text("def test_red():\n    assert 'red' in {'red', 'blue'}\n")
    (checkout / "tests/test_on_hosts.py").write_text(
        "import pytest\nfrom cluster.size import is_small\n\n\n@pytest.mark.lab\ndef test_small_on_hosts():\n    assert is_small(1)\n"
    )
    small = next(m for m in mutation.mutants.draw(checkout, count=100, seed=1) if m.line == 2)

    assert mutation.Reach(checkout, checkout / ".mutation").lots_of(small) == [
        ["tests/test_size.py::test_ten"],
        ["tests/test_size.py"],
        ["tests/test_on_hosts.py::test_small_on_hosts"],
        ["tests/test_on_hosts.py"],
    ]


def test_who_runs_the_line_slowly_is_tried_before_whole_files(mutation: Any, checkout: Path) -> None:
    """What asks the stand-in of AWS in pytest's own process is seen by coverage; what starts trainers is not asked."""
    (checkout / "tests/test_asks.py").write_text(
        "import pytest\nfrom cluster.size import is_small\n\npytestmark = pytest.mark.slow\n\n\n"
        "@pytest.mark.inside\ndef test_asked():\n    assert is_small(1)\n\n\n"
        "def test_trained():\n    assert is_small(2)\n"
    )
    small = next(m for m in mutation.mutants.draw(checkout, count=100, seed=1) if m.line == 2)

    assert mutation.Reach(checkout, checkout / ".mutation", anew=True).lots_of(small) == [
        ["tests/test_size.py::test_ten"],
        ["tests/test_asks.py::test_asked"],
        ["tests/test_size.py"],
        ["tests/test_asks.py"],
    ]


@pytest.mark.parametrize("anew", [True, False])
def test_a_look_at_the_tests_that_breaks_off_is_said(mutation: Any, checkout: Path, anew: bool) -> None:
    """Whatever it did not come to would count as a test that is not there."""
    (checkout / "conftest.py").write_text("raise RuntimeError('no room')\n")
    small = next(m for m in mutation.mutants.draw(checkout, count=100, seed=1) if m.line == 2)

    with pytest.raises(SystemExit, match=r"(?s)pytest broke off .*no room"):
        mutation.Reach(checkout, checkout / ".mutation", anew=anew).lots_of(small)


def test_a_lot_runs_as_it_is_ordered_in_a_checkout(mutation: Any, checkout: Path, tmp_path: Path) -> None:
    """Not as the suite's own order has it; and what asks git finds the files that it knows."""
    (checkout / "conftest.py").write_text("pytest_plugins = ['tests.order']\n")
    (checkout / "tests/order.py").write_text("def pytest_collection_modifyitems(items):\n    items.reverse()\n")
    (checkout / "tests/test_turns.py").write_text(
        "import pathlib, subprocess\n\nTOLD = pathlib.Path('told')\n\n\n"
        "def test_first():\n    assert not TOLD.exists()\n    TOLD.touch()\n\n\n"
        "def test_second():\n    assert TOLD.exists()\n\n\n"
        "def test_known():\n    subprocess.run(['git', 'ls-files', '--error-unmatch', 'cluster/size.py'], check=True)\n"
    )
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(checkout)]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "all"], check=True)
    room = mutation.Room(checkout, checkout / ".mutation/room", tmp_path)

    names = [f"tests/test_turns.py::test_{name}" for name in ("first", "second", "known")]
    assert ("passed", "") == room.tests(names, 120)


def test_who_noticed_a_change_before_is_asked_first(
    mutation: Any, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all its cases; unless the test is gone, or it was the run that ended."""
    monkeypatch.setattr(mutation, "ROOT", checkout)
    lots = [["tests/test_colour.py"]]

    assert [["tests/test_size.py::test_ten"], *lots] == mutation._first("tests/test_size.py::test_ten[3]", lots)
    for gone in (
        "",
        "tests/test_size.py::test_more",
        "tests/test_shape.py::test_ten",
        "tests/test_size.py",
        "it ended",
    ):
        assert lots == mutation._first(gone, lots)


def test_a_run_goes_on_where_one_before_it_ended(
    mutation: Any, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known is not tried again; once its module or the test that noticed it is another, it is."""
    monkeypatch.setattr(mutation, "ROOT", checkout)
    path = checkout / ".mutation/result.json"
    size, test = checkout / "cluster/size.py", checkout / "tests/test_size.py"
    drawn = {m.line: m for m in mutation.mutants.draw(checkout, count=100, seed=1) if "=" in m.new}

    class Near:
        """The one test file reaches all."""

        def lots_of(self, mutant: Any) -> list[list[str]]:
            return [["tests/test_size.py"]]

    def tried(*lines: int, minutes: float = 0.0, limit_s: float = 60.0) -> dict[int, dict[str, Any]]:
        asked = argparse.Namespace(limit=limit_s, jobs=1, minutes=minutes, seed=1, only="", count=2)
        asked.work = checkout / ".mutation"
        known = json.loads(path.read_text())["changes"] if path.exists() else []
        mutation.run([drawn[n] for n in lines], Near(), {r["change"]: r for r in known}, path, asked)
        return {int(r["change"].split(":")[1]): r for r in json.loads(path.read_text())["changes"]}

    assert {} == tried(2, 6, minutes=1e-9)
    first = tried(2)
    assert ("noticed", "tests/test_size.py::test_ten") == (first[2]["state"], first[2]["by"])
    both = tried(2, 6)
    assert (first[2], "survived") == (both[2], both[6]["state"])
    assert "1 tried of 1" in json.dumps(mutation.figures([both[2]], "", 3)[1])

    def is_kept(line: int, limit_s: float = 60.0) -> bool:
        return bool(mutation.holds(both[line], drawn[line], Near().lots_of(drawn[line]), limit_s))

    assert is_kept(2) and is_kept(6)
    assert is_kept(2, 90.0) and not is_kept(6, 90.0), "who had less time than is asked for now is tried again"
    test.write_text(test.read_text() + "\n\ndef test_more():\n    pass\n")
    assert not is_kept(2) and not is_kept(6)
    test.write_text(CODE["tests/test_size.py"])
    size.write_text("# Another line.\n" + size.read_text())
    assert not is_kept(2) and not is_kept(6)

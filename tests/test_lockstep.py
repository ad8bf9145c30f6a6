"""Programs that are compared step by step take turns."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.lockstep import Side, alternate

ROOT = Path(__file__).parents[1]
PROGRAM = """
import sys, time
from benchmarks.lockstep import Turns

def step():
    with open(sys.argv[1], "a") as log:
        log.write(sys.argv[2] + " begins\\n")
        time.sleep(0.01)
        log.write(sys.argv[2] + " ends\\n")

turns = Turns()
for _ in range(int(sys.argv[3])):
    turns.take(step)
sys.exit("out of steps")
"""


def side(folder: Path, name: str, steps: int) -> Side:
    """A program with so many steps that writes down when it is in one."""
    words = [sys.executable, "-c", PROGRAM, str(folder / "order"), name, str(steps)]
    return Side(words, folder / f"{name}.log", {**os.environ, "PYTHONPATH": str(ROOT)}, folder)


def test_no_program_is_in_a_step_while_another_one_is(tmp_path: Path) -> None:
    """They go on in turn; steps of the warm-up do not count."""
    with ExitStack() as stack:
        sides = {name: stack.enter_context(side(tmp_path, name, 10)) for name in "ab"}
        costs = alternate(sides, 2, 3)

    assert ["a begins", "a ends", "b begins", "b ends"] * 5 == (tmp_path / "order").read_text().splitlines()
    assert {"a": 3, "b": 3} == {name: len(of_side) for name, of_side in costs.items()}
    assert all(c.wall_s >= 0.01 and c.cpu_s >= 0 for of_side in costs.values() for c in of_side)


def test_a_program_that_ends_says_why(tmp_path: Path) -> None:
    """Instead of a step, and when it never took a turn."""
    with side(tmp_path, "a", 1) as a:
        a.step()
        with pytest.raises(SystemExit, match="out of steps"):
            a.step()
    with pytest.raises(SystemExit, match=r"b\.log: took no turn"):
        Side([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "b.log", os.environ, tmp_path)

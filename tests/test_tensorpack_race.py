"""Two trainings race to an AP: both from the same start, both going on until both are there."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks import tensorpack_race
from benchmarks.lockstep import Side
from benchmarks.tensorpack_race import check_loaded, outlines, race
from trainer.coco import masks

ROOT = Path(__file__).parents[1]
PROGRAM = """
import sys
from benchmarks.lockstep import Turns

turns = Turns()
for evaluation in range(1, 100):
    for _ in range(int(sys.argv[1])):
        turns.take(lambda: None)
    turns.begin()
    turns.end({"box_ap": 1.0, "mask_ap": evaluation * float(sys.argv[2])})
"""
Starts = Callable[..., dict[str, Callable[[], Side]]]


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starts:
    """Programs whose mask AP grows by so much with each evaluation, one every 5 steps and none after 20."""
    monkeypatch.setattr(tensorpack_race, "EVERY", 5)
    monkeypatch.setattr(tensorpack_race, "LIMIT", 20)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def programs(**growth: float) -> dict[str, Callable[[], Side]]:
        words = {name: [sys.executable, "-c", PROGRAM, "5", str(by)] for name, by in growth.items()}
        return {n: partial(Side, w, tmp_path / f"{n}.log", environment, tmp_path) for n, w in words.items()}

    return programs


def test_each_is_measured_at_its_own_first_evaluation_with_both_ap(starts: Starts) -> None:
    """The one that is there earlier goes on beside the other, without a change of its figures."""
    started, judged = race(starts(ours=0.5, theirs=0.2))

    assert {"ours": (5, 0.5), "theirs": (15, pytest.approx(0.6))} == {
        n: (j.steps, j.mask_ap) for n, j in judged.items()
    }
    assert all(j.is_there for j in judged.values())
    assert all(s > 0 for s in (*started.values(), *(j.spent_s for j in judged.values())))


def test_who_is_never_there_makes_a_row_without_a_ratio(starts: Starts) -> None:
    """It is said at which step the program was given up, and how far it was."""
    clock, start = tensorpack_race._rows("drawn", *race(starts(ours=0.5, theirs=0.1)))

    assert clock["ratio"] is None and clock["goal"] == 0.9
    assert clock["what"].endswith("AP 0.5: step 5, box AP 1.00, mask AP 0.50")
    assert clock["against"].endswith("not there at step 20, box AP 1.00, mask AP 0.40")
    assert start["ratio"] > 0 and start["goal"] is None


def test_outlines_cover_what_the_mask_does() -> None:
    """Two parts, one of them cut into: nearly the same pixels come back."""
    mask = np.zeros((60, 80), np.uint8)
    mask[5:40, 10:50] = 1
    mask[20:40, 30:50] = 0
    mask[45:58, 60:79] = 1

    back = masks.decode(outlines(mask), 60, 80)

    assert 2 == len(outlines(mask))
    assert (mask & back).sum() / (mask | back).sum() > 0.99


def test_weights_that_the_example_leaves_out_end_the_race(tmp_path: Path) -> None:
    """tensorpack warns and goes on from random ones; the step counter and the rate are none."""
    log = tmp_path / "theirs.log"
    warning = "WRN The following variables are in the graph, but not found in the dict: global_step, learning_rate"
    log.write_text(f"{warning}\n")
    check_loaded(log)

    log.write_text(f"{warning}, rpn/box/b:0\n")
    with pytest.raises(SystemExit, match="not the same start: WRN The following"):
        check_loaded(log)

"""tf_cnn_benchmarks is measured from its own checkout, and its rows outlive runs without it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import rounds, tf_cnn
from benchmarks.lockstep import Cost, Side

STEPS = """
def benchmark_one_step(number, *, log):
    with open(log, "a") as file:
        file.write(f"step {number}\\n")
"""
PROGRAM = """
import sys
import benchmark_cnn

if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        benchmark_cnn.benchmark_one_step(number, log=sys.argv[2])
    sys.exit("out of steps")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A program whose parts have the names of tf_cnn_benchmarks' own."""
    folder = tmp_path / "checkout/scripts/tf_cnn_benchmarks"
    folder.mkdir(parents=True)
    (folder / "benchmark_cnn.py").write_text(STEPS)
    (folder / "tf_cnn_benchmarks.py").write_text(PROGRAM)
    return tmp_path / "checkout"


def test_its_steps_take_turns_without_a_change_of_its_code(checkout: Path, tmp_path: Path) -> None:
    """From outside, by the function that does one: none comes before it was asked for, and its flags are its own."""
    folder, log = tf_cnn.program(checkout), tmp_path / "steps"
    words = [sys.executable, str(tf_cnn.PEERS / "tf_cnn_turns.py"), "2", str(log)]
    with Side(words, tmp_path / "said", tf_cnn.environment(folder), folder) as side:
        assert not log.exists()
        side.step()
        assert "step 0\n" == log.read_text()
        side.step()
        with pytest.raises(SystemExit, match="out of steps"):
            side.step()


def test_another_folder_is_no_checkout(tmp_path: Path) -> None:
    """What it should have been is said."""
    with pytest.raises(SystemExit, match=f"has no scripts/tf_cnn_benchmarks: give a checkout .* at {tf_cnn.COMMIT}"):
        tf_cnn.program(tmp_path)


def test_its_rows_stay_when_the_others_are_measured_anew(tmp_path: Path, monkeypatch: Any) -> None:
    """Each part of a result file is measured in runs of its own."""
    monkeypatch.setattr(rounds, "RESULTS", tmp_path)
    costs = {"ours": [Cost(1.0, 3.0), Cost(9.0, 4.0), Cost(2.0, 5.0)], "theirs": [Cost(4.0, 8.0)] * 3}
    beside = tf_cnn.cost_rows("a step", costs, "in turn", 0.95)
    other = rounds.row({"ours": [1.0], "fit": [2.0]}, "ours", "fit", 1.0)
    assert ([], []) == rounds.committed("it", tf_cnn.NAME)
    rounds.write("it", [other, *beside])

    assert (beside, [other]) == rounds.committed("it", tf_cnn.NAME)
    assert [0.5, 0.5] == [row["ratio"] for row in beside]
    assert [0.95, None] == [row["goal"] for row in beside]
    assert [[1.0, 9.0], [3.0, 5.0]] == [row["spread"] for row in json.loads(json.dumps(beside))]

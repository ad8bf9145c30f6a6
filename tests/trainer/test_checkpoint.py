"""A checkpoint is whole or not there."""

import numpy as np
import pytest

from trainer.checkpoint import Folder, write_atomically
from trainer.errors import TrainerError

ARRAYS = {"stage0/kernel": np.arange(12, dtype=np.float32).reshape(3, 4), "bias": np.zeros(2, np.float32)}


@pytest.fixture
def folder(tmp_path):
    """Two checkpoints, of step 10 and 20."""
    folder = Folder(tmp_path / "checkpoints")
    for step in (10, 20):
        folder.save(step, {name: array + step for name, array in ARRAYS.items()}, {"seed": 7})
    return folder


def test_what_was_saved_comes_back(folder):
    """Arrays bit by bit, facts as given, the time in UTC."""
    facts = folder.newest()
    arrays = folder.load(facts)

    assert (facts.step, facts.more) == (20, {"seed": 7})
    assert facts.time.endswith("Z")
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(array + 20, arrays[name])


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"),
        lambda path: path.unlink(),
        lambda path: path.with_suffix(".json").write_text("{"),
        lambda path: path.with_suffix(".json").write_text("{}"),
    ],
    ids=["shorter", "changed", "gone", "facts cut off", "facts empty"],
)
def test_a_damaged_newest_is_passed_over_with_a_message(folder, capsys, damage):
    """The one before it is used, and the operator is told."""
    damage(folder.arrays_file(20))

    assert folder.newest().step == 10
    assert "passed over" in capsys.readouterr().err


def test_a_write_that_was_cut_off_leaves_the_older_ones(folder):
    """Arrays without facts are no checkpoint; the half-written file is removed by the next attempt."""
    folder.facts_file(20).unlink()
    partial = folder.path / ".step-00000030.npz.1.partial"
    partial.write_bytes(b"half")
    folder.remove_partial()

    assert folder.newest().step == 10
    assert not partial.exists()


def test_only_the_newest_are_kept(folder):
    """As many as were asked for, whole ones."""
    folder.save(30, ARRAYS)
    folder.keep_newest(2)

    assert folder.steps() == [30, 20]
    assert len(list(folder.path.iterdir())) == 4


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    """Here its parent is a file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainerError, match="step 1 cannot be written"):
        Folder(tmp_path / "file" / "checkpoints").save(1, ARRAYS)


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one_and_nothing_else(tmp_path):
    """No unfinished file stays beside it, however often that happens."""
    path = tmp_path / "facts.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "half\ud800")

    assert "old" == path.read_text()
    assert [path] == list(tmp_path.iterdir())

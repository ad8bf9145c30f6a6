"""Checkpoints by time, written behind the training."""

import errno
import hashlib
import os
import random
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import PATIENCE_S
from trainer.common.checkpoints import npz_writer
from trainer.common.checkpoints.background_save import Saver
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.checkpoints.checkpoint_interval import LEAST_S, CheckpointInterval
from trainer.common.checkpoints.write_lease import ATTEMPT, FILE, JOB_FOLDERS, Replaced
from trainer.common.files import errors
from trainer.common.files.errors import CommonError, TrainerError, entry

ARRAYS = {"stage0/kernel": np.arange(12, dtype=np.float32).reshape(3, 4), "bias": np.zeros(2, np.float32)}
LIMIT_S = PATIENCE_S


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(costs=st.lists(st.floats(0, 20), max_size=20))
def test_saving_takes_at_most_a_hundredth_of_the_time(costs: list[float]) -> None:
    """After each checkpoint the next is due when a hundred times its cost has passed, and never before 30 s."""
    clock = Clock()
    pace = CheckpointInterval(None, clock)
    for cost in costs:
        due = clock.now + pace.interval_s
        clock.now = due - 0.01
        assert not pace.is_due
        clock.now = due + 0.01
        assert pace.is_due
        pace.begin()
        pace.learn(cost)
        assert pace.interval_s >= max(LEAST_S, 100 * cost - 1e-9)


@pytest.mark.parametrize(("seconds", "after_a_minute"), [(0.0, False), (59.0, True), (61.0, False), (None, True)])
def test_seconds_that_were_asked_for_are_kept(seconds: float | None, after_a_minute: bool) -> None:
    """Whatever a checkpoint costs; 0 is never."""
    clock = Clock()
    pace = CheckpointInterval(seconds, clock)
    if seconds is not None:
        pace.learn(1000.0)
    clock.now = 60.0

    assert after_a_minute == pace.is_due


@settings(max_examples=30)
@given(
    arrays=st.dictionaries(
        st.text("ab/:é", min_size=1, max_size=5),
        st.sampled_from(
            [
                np.float32(3).reshape(()),
                np.zeros((0, 3)),
                np.asfortranarray(np.arange(6.0).reshape(2, 3)),
                np.arange(8)[::2],
                np.arange(400_000, dtype=np.int64),
            ]
        ),
        max_size=4,
    )
)
def test_arrays_of_any_shape_come_back_and_the_checksum_is_the_files(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, np.ndarray]
) -> None:
    """Scalars, empty ones, other orders, more than one block."""
    path = tmp_path_factory.getbasetemp() / "arrays.npz"
    with path.open("wb") as file:
        sha256 = npz_writer.write(file, arrays)

    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    with np.load(path, allow_pickle=False) as found:
        assert set(arrays) == set(found)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array, strict=True)


class Gate:
    """Holds the writer at the begin of its file until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        write = npz_writer.write

        def held(file: Any, arrays: Any) -> str:
            self.reached.set()
            assert self.opened.wait(LIMIT_S)
            return write(file, arrays)

        monkeypatch.setattr(npz_writer, "write", held)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """The writer waits for the test."""
    return Gate(monkeypatch)


def saver_of(path: Path, **more: Any) -> Saver:
    """Into this folder, whenever it is asked for."""
    return Saver(CheckpointFolder(path), **{"keep": 3, "seconds": None, "cores": 1, "rate": "--lr", **more})


def test_the_training_goes_on_while_one_is_written_and_the_next_waits(tmp_path: Path, gate: Gate) -> None:
    """`save` returns before a byte is written; none is due meanwhile; the second begins when the first is whole."""
    saver = saver_of(tmp_path, seconds=1e-9)
    assert saver.is_due
    saver.look()  # at nothing
    saver.save(1, lambda: ARRAYS, {})
    assert gate.reached.wait(LIMIT_S)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saver, "wait", lambda: pytest.fail("who looks waits for the writer"))
        saver.look()

    assert (not saver.is_due, saver.written, []) == (True, None, saver.folder.steps())
    threading.Timer(0.2, gate.opened.set).start()
    saver.save(2, lambda: ARRAYS, {})
    assert 1 in saver.folder.steps()
    saver.wait()
    assert [2, 1] == saver.folder.steps()
    assert saver.written and 2 == saver.written.step
    saver.save(2, lambda: pytest.fail("the state of a step that is there is copied again"), {})


def test_a_folder_slower_than_the_interval_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next one is due when the last is written; nothing of it is lost."""
    saver = saver_of(tmp_path, seconds=1e-9)
    for step in (1, 2):
        saver.save(step, lambda: ARRAYS, {})
        saver.wait()

    assert 1 == len(re.findall(r"took \d+ s to write, so they come less often than every 0 s", capsys.readouterr().err))
    assert [2, 1] == saver.folder.steps()


def test_a_full_disk_is_the_error_of_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same sentence as of a checkpoint that is written while all wait; older ones stay, nothing half-written does."""
    saver = saver_of(tmp_path)
    saver.save(1, lambda: ARRAYS, {})
    saver.wait()

    def full(file: Any, arrays: Any) -> str:
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(npz_writer, "write", full)
    saver.save(2, lambda: ARRAYS, {})
    assert saver._thread
    saver._thread.join(LIMIT_S)
    with pytest.raises(TrainerError, match=r"step 2 cannot be written \(No space left on device\)"):
        saver.look()

    assert [1] == saver.folder.steps()
    assert 2 == len(list(tmp_path.iterdir()))


def test_an_attempt_that_was_replaced_while_it_wrote_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    """The thread looks at the lease when all is written; what is there stays, and nothing is removed in its name."""
    for name in JOB_FOLDERS:
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv(ATTEMPT, "1")
    saver = saver_of(tmp_path / "checkpoints", keep=1)
    gate.opened.set()
    saver.save(1, lambda: ARRAYS, {})
    saver.wait()
    gate.opened.clear()
    gate.reached.clear()
    saver.save(2, lambda: ARRAYS, {})
    assert gate.reached.wait(LIMIT_S)
    (tmp_path / FILE).write_text('{"attempt": 2}')
    gate.opened.set()

    with pytest.raises(Replaced, match="attempt 2 has begun"):
        saver.wait()
    assert ["step-00000001.json", "step-00000001.npz"] == sorted(p.name for p in saver.folder.path.iterdir())


def test_weights_that_are_no_numbers_are_never_saved(tmp_path: Path) -> None:
    """The array is named, and what to lower."""
    saver = saver_of(tmp_path)
    saver.save(7, lambda: {**ARRAYS, "dense/bias": np.array([1.0, np.inf])}, {})

    with pytest.raises(CommonError, match=r"dense/bias .* after step 6: lower --lr .* no checkpoint was written"):
        saver.wait()
    assert [] == saver.folder.steps()
    saver.save(8, lambda: ARRAYS, {})
    saver.wait()
    saver.save(9, lambda: {**ARRAYS, "dense/bias": np.array([1.0, np.nan])}, {})
    with pytest.raises(CommonError, match=r"the newest checkpoint is of step 8"):
        saver.wait()


def test_an_error_of_the_training_is_told_first_and_then_the_checkpoint_is_written(
    tmp_path: Path, gate: Gate, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """mpirun leaves little time to a rank when another has ended: the cause goes first, what was begun is not lost."""

    @entry
    def main(argv: Any) -> None:
        saver_of(tmp_path).save(1, lambda: ARRAYS, {})
        assert gate.reached.wait(LIMIT_S)
        raise TrainerError("of the training")

    def say(error: TrainerError) -> None:
        print(f"{error}, {len(list(tmp_path.glob('*.json')))} written")
        gate.opened.set()

    monkeypatch.setattr(errors, "report", say)
    assert 1 == main([])
    assert "of the training, 0 written\n" == capsys.readouterr().out
    assert [1] == CheckpointFolder(tmp_path).steps()


WRITER = """
import sys
from pathlib import Path
import numpy as np
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.checkpoints.background_save import Saver
folder = CheckpointFolder(Path(sys.argv[1]))
found = folder.newest()
step = found.step if found else 0
saver = Saver(folder, keep=2, seconds=None, cores=1, rate="", found=found)
while True:
    step += 1
    saver.save(step, lambda: {str(n): np.full(300_000, step, np.float32) for n in range(8)}, {"step": step})
    print(step, flush=True)
"""


def test_killed_at_any_moment_the_newest_whole_one_is_what_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six times kill -9 while one checkpoint follows the other: never half of one, never fewer than before."""
    draw, newest = random.Random(14), 0
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        ) as process:
            assert process.stdout
            for _ in range(3):
                said = process.stdout.readline()
            threading.Timer(draw.uniform(0, 0.1), process.kill).start()
            said = (process.stdout.read().split() or [said])[-1]
        folder = CheckpointFolder(tmp_path)
        found = folder.newest()
        assert found
        # The last that it began may be half-written, the one before it is whole; without a word of either.
        assert max(newest, int(said) - 1) <= found.step <= int(said) + 1
        assert {"step": found.step} == found.more
        assert all((array == found.step).all() for array in folder.load(found).values())
        assert "" == capsys.readouterr().err
        newest = found.step

"""A checkpoint is whole or not there."""

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.fuzzing import at_least
from trainer.common.checkpoints import checkpoint, npz_writer
from trainer.common.checkpoints.checkpoint import CheckpointFolder, write_atomically
from trainer.common.checkpoints.facts import CHECK
from trainer.common.checkpoints.write_lease import ATTEMPT, FILE, JOB_FOLDERS, Replaced, check_lease
from trainer.common.files.errors import TrainerError
from trainer.common.ranks.metrics import FILE as FILE_OF_METRICS
from trainer.common.ranks.metrics import MetricsWriter, read

ARRAYS = {"stage0/kernel": np.arange(12, dtype=np.float32).reshape(3, 4), "bias": np.zeros(2, np.float32)}


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    """Two checkpoints, of step 10 and 20."""
    folder = CheckpointFolder(tmp_path / "checkpoints")
    for step in (10, 20):
        folder.save(step, {name: array + step for name, array in ARRAYS.items()}, {"seed": 7})
    return folder


def test_what_was_saved_comes_back(folder: Any) -> None:
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
def test_a_damaged_newest_is_passed_over_with_a_message(
    folder: Any, capsys: pytest.CaptureFixture[str], damage: Any
) -> None:
    """The one before it is used, and the operator is told."""
    damage(folder.arrays_file(20))

    assert folder.newest().step == 10
    assert "passed over" in capsys.readouterr().err


def test_a_write_that_was_cut_off_leaves_the_older_ones(folder: Any) -> None:
    """Arrays without facts are no checkpoint; the half-written file is removed by the next attempt."""
    folder.facts_file(20).unlink()
    partial = folder.path / ".step-00000030.npz.1.partial"
    partial.write_bytes(b"half")
    folder.remove_partial()

    assert folder.newest().step == 10
    assert not partial.exists()


def test_only_the_newest_are_kept(folder: Any) -> None:
    """As many as were asked for, whole ones."""
    folder.save(30, ARRAYS)
    folder.keep_newest(2)

    assert folder.steps() == [30, 20]
    assert len(list(folder.path.iterdir())) == 4


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """Here its parent is a file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainerError, match="step 1 cannot be written"):
        CheckpointFolder(tmp_path / "file" / "checkpoints").save(1, ARRAYS)


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    """No unfinished file stays beside it, however often that happens."""
    path = tmp_path / "facts.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "half\ud800")

    assert "old" == path.read_text()
    assert [path] == list(tmp_path.iterdir())


def test_a_crash_in_a_rewrite_leaves_no_checkpoint_of_that_step(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never the old facts beside the new arrays: the older step is the newest then, with or without a look at arrays."""

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "_write_whole", dies)
    with pytest.raises(KeyboardInterrupt):
        folder.save(20, {name: array - 1 for name, array in ARRAYS.items()}, {"seed": 8})

    assert [10] == folder.steps()
    assert 10 == folder.newest().step == folder.peek().step


def test_the_facts_come_last(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When they are written the arrays are in their place, whole: a crash before leaves no facts without arrays."""
    found = []
    write = checkpoint._write_whole

    def look(path: Path, text: str) -> None:
        with np.load(folder.arrays_file(30)) as arrays:
            found.append((path.name, len(arrays.files)))
        write(path, text)

    monkeypatch.setattr(checkpoint, "_write_whole", look)
    folder.save(30, ARRAYS)

    assert [("step-00000030.json", 2)] == found


def test_damaged_checkpoints_do_not_displace_whole_ones(folder: Any) -> None:
    """Two newer ones are cut off; a run resumed from the one before them writes on, and what it writes stays."""
    for step in (95, 97):
        folder.save(step, ARRAYS)
        path = folder.arrays_file(step)
        path.write_bytes(path.read_bytes()[:100])
    resumed = CheckpointFolder(folder.path)
    assert 20 == resumed.newest().step
    for step in (21, 22):
        resumed.save(step, ARRAYS)
        resumed.keep_newest(2)

    assert [97, 95, 22, 21] == resumed.steps()
    assert 22 == CheckpointFolder(folder.path).newest().step


def change_facts(folder: Any, changes: Any) -> None:
    """The facts file of step 20 with other fields, its own checksum taken out; a field set to None is gone."""
    file = folder.facts_file(20)
    fields = {name: value for name, value in json.loads(file.read_text()).items() if name != CHECK}
    file.write_text(json.dumps({name: value for name, value in (fields | changes).items() if value is not None}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"step": 21}, "it is of step 21, not 20"),
        ({"step": "20"}, "step is 20"),
        ({"step": True}, "step is True"),
        ({"step": None}, "step is missing"),
        ({"bytes": -1}, "bytes is -1"),
        ({"bytes": 1e3}, "bytes is 1000.0"),
        ({"sha256": "abc"}, "sha256 is missing or no checksum"),
        ({"attempt": "2"}, "attempt is 2"),
        ({"time": 5}, "time is missing or no text"),
        ({"more": [1]}, "more is no table"),
    ],
)
def test_every_fact_is_checked(folder: Any, changes: Any, says: Any) -> None:
    """By itself; the sentence names the file and the field."""
    change_facts(folder, changes)

    with pytest.raises(TrainerError, match=says) as error:
        folder.facts(20)
    assert "step-00000020.json" in str(error.value)
    assert 10 == folder.peek().step


def test_facts_of_another_version_are_read(folder: Any) -> None:
    """Without the checksum of their own, as version 0.1.0 wrote them; with fields of a newer one, and its checksum."""
    change_facts(folder, {})
    assert (20, {"seed": 7}) == (folder.newest().step, folder.newest().more)

    fields = {**json.loads(folder.facts_file(20).read_text()), "shape": "round"}
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    folder.facts_file(20).write_text(json.dumps({**fields, CHECK: digest}))
    assert (20, {"seed": 7}) == (folder.newest().step, folder.newest().more)


def test_no_changed_character_makes_an_untrue_fact(folder: Any) -> None:
    """Each character of the facts by itself: the checkpoint is passed over, or all that it says is what was written."""
    file = folder.facts_file(20)
    text, whole = file.read_text(), folder.facts(20)
    for at, character in enumerate(text):
        file.write_text(text[:at] + ("1" if character == "0" else "0") + text[at + 1 :])
        found = folder.peek()
        assert found == whole or 10 == found.step, (at, text[:at])


@settings(max_examples=at_least(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_of_any_kind_are_a_checkpoint_as_it_was_or_none(folder: Any, data: st.DataObject) -> None:
    """Whatever happens to one file: never another error than ours, never an untrue fact, never another array."""
    whole = {path: path.read_bytes() for path in folder.path.iterdir()}
    path = data.draw(st.sampled_from(sorted(whole)))
    content = bytearray(whole[path])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(content) - 1, 0)))
        match data.draw(st.sampled_from(("flip", "cut", "insert", "drop"))):
            case "flip" if content:
                content[at] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del content[at:]
            case "insert":
                content[at:at] = data.draw(st.binary(max_size=4))
            case "drop":
                del content[at : at + data.draw(st.integers(1, 40))]
    try:
        path.write_bytes(content)
        found = CheckpointFolder(folder.path).newest()
        arrays = folder.load(found)
        assert found.step in (10, 20) and {"seed": 7} == found.more
        assert all((arrays[name] == array + found.step).all() for name, array in ARRAYS.items())
        CheckpointFolder(folder.path).keep_newest(1)
    finally:
        for other, content in whole.items():
            other.write_bytes(content)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.one_of(
        st.text(max_size=30),
        st.fixed_dictionaries(
            {}, optional={"step": st.one_of(st.integers(), st.text(), st.floats()), "score": st.floats() | st.none()}
        ).map(json.dumps),
        st.just("[" * 100_000),
    )
)
def test_a_damaged_note_of_the_best_is_no_best(folder: Any, text: Any) -> None:
    """Nothing is kept for its sake, and the next score is noted."""
    (folder.path / checkpoint.BEST).write_text(text)
    best = folder.best()
    assert best is None or (best.step in (10, 20) and math.isfinite(best.score))
    assume(best is None or best.score < sys.float_info.max)  # there is a better one
    folder.mark_best(10, math.nextafter(best.score, math.inf) if best else 0.0)
    assert 10 == folder.best().step


def lease(folder: Any, attempt: Any) -> None:
    """The job's note of its current attempt."""
    (folder / FILE).write_text(attempt if isinstance(attempt, str) else json.dumps({"attempt": attempt, "host": "a"}))


@pytest.mark.parametrize("name", JOB_FOLDERS)
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "while writing"])
def test_an_attempt_that_was_replaced_writes_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: Any, name: Any
) -> None:
    """Whether the newer one began before or while the arrays were written; nothing half-written stays, nor goes."""
    monkeypatch.setenv(ATTEMPT, "1")
    for other in JOB_FOLDERS:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, str(tmp_path))
    lease(tmp_path, 1)
    folder = CheckpointFolder(tmp_path / "checkpoints")
    folder.save(10, ARRAYS)
    write = npz_writer.write

    def slow(file: Any, arrays: Any) -> str:
        sha256 = write(file, arrays)
        lease(tmp_path, 2)
        return sha256

    monkeypatch.setattr(npz_writer, "write", slow)
    if not is_late:
        lease(tmp_path, 2)
    before = sorted(folder.path.iterdir())
    for attempted in (
        lambda: folder.save(20, ARRAYS),
        lambda: folder.mark_best(10, 1.0),
        lambda: folder.keep_newest(1),
        lambda: MetricsWriter(tmp_path),
    ):
        with pytest.raises(Replaced, match=r"attempt 1 of .* may not write any more: attempt 2 has begun"):
            attempted()

    assert before == sorted(folder.path.iterdir())
    monkeypatch.setenv(ATTEMPT, "2")
    folder.save(20, ARRAYS)


@pytest.mark.parametrize("attempt", [1, 2, "", "{", '{"attempt": "9"}', "[" * 100_000, None])
def test_the_current_attempt_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str], attempt: Any) -> None:
    """Also where the note is absent or cannot be read, which is said."""
    if attempt is not None:
        lease(tmp_path, attempt)
    check_lease({ATTEMPT: "2", JOB_FOLDERS[0]: str(tmp_path)})

    unreadable = isinstance(attempt, str) and attempt != '{"attempt": "9"}'
    assert unreadable == ("lease.json cannot be read" in capsys.readouterr().err)


def test_metrics_pass_over_a_damaged_line_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the middle with a line on stderr; a last one that a crash cut off goes without saying."""
    (tmp_path / FILE_OF_METRICS).write_text('{"kind": "train", "step": 1}\n{"kind": 3}\nnull\n{"kind": "train", "st')

    assert [1] == [r["step"] for r in read(tmp_path)]
    said = capsys.readouterr().err
    assert ":2 is no record" in said and ":3 is no record" in said and ":4" not in said
    with MetricsWriter(tmp_path, 5) as writer:
        writer.write("train", 6, {"loss": 1.0})
    assert [1, 6] == [r["step"] for r in read(tmp_path)]


def test_metrics_that_cannot_be_written_are_one_sentence(tmp_path: Path) -> None:
    """A full disk, here the kernel's own; a folder that is a file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainerError, match="the metrics cannot be written"):
        MetricsWriter(tmp_path / "file" / "job")
    with pytest.raises(TrainerError, match="No space left"), MetricsWriter(tmp_path) as writer:
        writer._lines = open("/dev/full", "a", buffering=1)  # noqa: PTH123, SIM115  `Writer` closes it
        writer.write("train", 1, {"loss": 1.0})

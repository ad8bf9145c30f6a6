"""Where records lie is kept beside the shards, and found anew whenever it may have changed."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer.common.data import dataset, index_cache, records
from trainer.common.data.records import Index

SHARDS = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Shards of 0, 1 and 2 records."""
    for number in range(SHARDS):
        with (tmp_path / f"train-{number:05d}-of-{SHARDS:05d}").open("wb") as file:
            records.write(file, [b"x" * (10 * number + n) for n in range(number)])
    return tmp_path


def same(one: Index, other: Index) -> bool:
    """Every number."""
    numbers = ("shard", "offset", "length")
    return one.paths == other.paths and all(np.array_equal(getattr(one, n), getattr(other, n)) for n in numbers)


def test_the_second_look_reads_no_headers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says the same; where it is not to be kept nothing is written."""
    before = sorted(folder.iterdir())
    first = dataset.find_split(folder, "train").index()
    assert before == sorted(folder.iterdir())
    assert same(first, dataset.find_split(folder, "train").index(keeps=True))
    monkeypatch.setattr(records, "scan", lambda *_: pytest.fail("headers are read again"))

    assert same(first, dataset.find_split(folder, "train").index())


def longer(path: Path) -> None:
    """One record more."""
    with path.open("ab") as file:
        records.write(file, [b"more"])


def later(path: Path) -> None:
    """The same bytes, written again."""
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))


@pytest.mark.parametrize("change", [longer, later])
def test_a_shard_that_changed_is_read_anew(folder: Path, change: Any) -> None:
    """Its size or its time of change tells."""
    dataset.find_split(folder, "train").index(keeps=True)
    change(folder / "train-00001-of-00003")

    assert same(dataset.find_split(folder, "train").index(), records.scan(sorted(folder.glob("train-*"))))


def test_a_folder_that_takes_no_file_is_read_each_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word; nothing half-written stays."""

    def full(*_: Any) -> str:
        raise OSError(28, "No space left on device")

    before = sorted(folder.iterdir())
    monkeypatch.setattr(index_cache.npz_writer, "write", full)
    dataset.find_split(folder, "train").index(keeps=True)

    assert before == sorted(folder.iterdir())


def test_an_index_that_does_not_add_up_to_the_shards_is_not_believed(folder: Path) -> None:
    """Whoever wrote it: a record that seems longer than it is, one that seems to lie in another shard."""
    shards = sorted(folder.glob("train-*"))
    true, file = records.scan(shards), folder / "kept.npz"
    for wrong in (
        dataclasses.replace(true, length=true.length + np.array([0, 0, 1])),
        dataclasses.replace(true, length=true.length - true.length),
        dataclasses.replace(true, shard=np.array([0, 1, 2], np.int32)),
    ):
        index_cache.save(file, wrong)
        assert index_cache.load(file, shards, {}) is None
    index_cache.save(file, true)

    assert same(true, index_cache.load(file, shards, {}) or true)
    assert index_cache.load(file, shards, {shards[0].name: 1}) is None


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_of_any_kind_are_the_true_index_or_none(folder: Path, data: st.DataObject) -> None:
    """Whatever happens to the file."""
    shards = sorted(folder.glob("train-*"))
    true, file = records.scan(shards), folder / "kept.npz"
    index_cache.save(file, true)
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    found = index_cache.load(file, shards, {})

    assert found is None or same(true, found)

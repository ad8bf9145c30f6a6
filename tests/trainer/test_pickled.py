"""Weights in a pickle: arrays of numbers come out, and nothing that the file says is done."""

import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.common.checkpoints import weight_files
from trainer.common.files.errors import ConfigError

ARRAYS = {
    "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(3, 2)),
    "c": np.array([1, -2], ">i4"),
    "none": np.zeros((0, 3), np.float16),
}


class Runs:
    """Something that makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._folder),)


class Says:
    """An array by a state of our choice."""

    def __init__(self, *state: Any) -> None:
        self._state = state

    def __reduce__(self) -> tuple[Any, ...]:
        made: Any = np.zeros(1).__reduce__()
        return *made[:2], self._state


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL))
@pytest.mark.parametrize("whole", [ARRAYS, {"model": ARRAYS, "__author__": "somebody"}], ids=["arrays", "model zoo"])
def test_arrays_come_out_of_a_pickle_as_they_went_in(whole: Any, protocol: int, tmp_path: Path) -> None:
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(whole, protocol))
    found = weight_files.read(tmp_path / "w.pkl")

    assert list(ARRAYS) == list(found)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(array, found[name])
        assert array.dtype == found[name].dtype


def test_what_a_pickle_asks_for_beside_arrays_is_not_done(tmp_path: Path) -> None:
    """In the place of an array, of its parts, or beside all of them."""
    runs = Runs(tmp_path / "made")
    for whole in ({"a": runs}, {"model": ARRAYS, "more": runs}, {"a": np.array([runs], object)}, runs):
        (tmp_path / "w.pkl").write_bytes(pickle.dumps(whole))
        with pytest.raises(ConfigError, match=r"w\.pkl cannot be read as weights \(pkl\): .* asks for posix\.mkdir"):
            weight_files.read(tmp_path / "w.pkl")
    assert ["w.pkl"] == [file.name for file in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("whole", "says"),
    [
        ({"a": 1}, "'a' in it is no array"),
        ({1: ARRAYS["b"]}, "1 in it is no array"),
        ({}, "it holds no dictionary of arrays"),
        (ARRAYS["b"], "it holds no dictionary of arrays"),
        ({"a": np.array([None])}, "an array in it makes no sense"),
        ({"a": np.zeros(2, "f4,f4")}, "are not read"),
        ({"a": Says(1, (0, 10**30), np.dtype("f4"), False, b"")}, "an array in it makes no sense"),
        ({"a": Says(1, (3,), np.dtype("f4"), False, b"1234")}, r"an array of \(3,\) in it has 4 bytes"),
        ({"a": Says(1, (1,), "f4", False, b"1234")}, "an array in it makes no sense"),
        ({"a": Says(1, (1,))}, "an array in it is not whole"),
    ],
)
def test_what_is_no_array_of_numbers_is_named(whole: Any, says: str, tmp_path: Path) -> None:
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(whole))
    with pytest.raises(ConfigError, match=says):
        weight_files.read(tmp_path / "w.pkl")


def test_a_damaged_pickle_is_refused_or_read_and_nothing_else(tmp_path: Path) -> None:
    """Cut anywhere, or with a few bytes changed."""
    drawn, whole = random.Random(0), pickle.dumps(ARRAYS, 2)
    (tmp_path / "w.pkl").write_bytes(whole)
    for trial in range(400):
        damaged = bytearray(whole[: drawn.randrange(len(whole))] if trial % 2 else whole)
        for _ in range(drawn.randrange(4)):
            if damaged:
                damaged[drawn.randrange(len(damaged))] = drawn.randrange(256)
        (tmp_path / "w.pkl").write_bytes(damaged)
        try:
            found = weight_files.read(tmp_path / "w.pkl")
        except ConfigError as e:
            assert "w.pkl cannot be read as weights (pkl): " in str(e)
        else:
            assert all(isinstance(array, np.ndarray) for array in found.values())

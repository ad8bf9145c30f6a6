"""Weights of anybody's."""

import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import fuzzing
from trainer.common.checkpoints import npz
from trainer.common.files.errors import ConfigError

ARRAYS: dict[str, Any] = {"conv0/W:0": np.arange(60, dtype=np.float32).reshape(3, 4, 5), "step": np.int64(7)}


def test_arrays_come_back_without_their_output_s_number(tmp_path: Path) -> None:
    """tensorpack saves `conv0/W:0` where others say `conv0/W`."""
    np.savez(tmp_path / "a.npz", **ARRAYS)
    found = npz.read(tmp_path / "a.npz")

    assert {"conv0/W", "step"} == set(found)
    np.testing.assert_array_equal(found["conv0/W"], ARRAYS["conv0/W:0"])


def test_what_would_run_something_is_refused(tmp_path: Path) -> None:
    """A pickle inside, or instead of it; and one array without a name."""
    np.savez(tmp_path / "a.npz", a=np.array([Path]))
    (tmp_path / "b.npz").write_bytes(np.array([Path]).dumps())
    with (tmp_path / "c.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    for name in "abc":
        with pytest.raises(ConfigError, match=rf"{name}.npz cannot be read as weights"):
            npz.read(tmp_path / f"{name}.npz")


def test_a_length_that_is_damaged_hides_no_other_damage(tmp_path: Path) -> None:
    """NumPy takes the bytes of its array; where the file says that more follow nothing has looked at a checksum yet."""
    np.savez(tmp_path / "a.npz", **ARRAYS)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    number = data.index(np.float32(17).tobytes())
    directory = data.index(b"PK\1\2")
    data[number] ^= 1
    data[directory + 21] ^= 8  # the length as it is kept, and as it is unpacked
    data[directory + 25] ^= 8
    (tmp_path / "a.npz").write_bytes(data)

    with pytest.raises(ConfigError, match=r"a.npz cannot be read as weights"):
        npz.read(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "told",
    ["{'descr': '<f4', 'shape': (3,", "{[]: 1}", "'''"]
    + [
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({side},)}}" for side in ("True", "-1", "9" * 30, "9" * 11)
    ],
)
def test_an_array_s_header_that_makes_no_sense_is_refused_by_name(told: str, tmp_path: Path) -> None:
    """In a zip whose checksums are right: whoever wrote it wrote it so."""
    words = told.encode() + b"\n"
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("a.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(words)) + words + bytes(4))

    with pytest.raises(ConfigError, match=r"a.npz cannot be read as weights \(npz\): ."):
        npz.read(tmp_path / "a.npz")


def one_damaged_file(rng: Any) -> None:
    """Refused by name, or every array is one: what a zip's checksums do not cover are its names."""
    with fuzzing.folder() as folder:
        path = folder / "a.npz"
        (np.savez if rng.integers(2) else np.savez_compressed)(path, **ARRAYS)
        data = path.read_bytes()
        path.write_bytes(data[: int(rng.integers(len(data)))] if rng.integers(4) == 0 else fuzzing.damaged(data, rng))
        try:
            found = npz.read(path)
        except ConfigError as e:
            assert str(path) in str(e)
        else:
            assert all(
                (array == whole).all()
                for array in found.values()
                for whole in ARRAYS.values()
                if array.shape == whole.shape
            )


@pytest.mark.fuzz
@pytest.mark.slow
def test_damaged_weights_are_refused_by_name(tmp_path: Path) -> None:
    """Cut, changed or doubled anywhere: no other error, no other number."""
    fuzzing.survives(one_damaged_file, tmp_path, least=100)

"""Safe reader of named arrays from a pickle, the format of Detectron2's model zoo.

Nothing in the file is ever executed.

A pickle names functions to call. This reader accepts only the names that NumPy writes for an array, and replaces them
by stand-ins. These record their arguments, from whose bytes plain arrays of numbers are made.
"""

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_SIDE = 1 << 40
NUMBERS = ("f2", "f4", "f8", "i4", "i8", "u1", "b1")


def read(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of a dictionary, or of the dictionary in it that is named `model`.

    Raises:
        ValueError: the file holds something else than arrays of numbers by name, or is damaged.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        try:
            told = _Reader(file, encoding="latin1").load()
        except OSError:
            raise
        except Exception as e:  # a damaged pickle can raise any type
            raise ValueError(f"a pickle that is damaged or holds more than arrays: {e or type(e).__name__}") from e
    found = told.get("model", told) if isinstance(told, dict) else None
    if not isinstance(found, dict) or not found:
        raise ValueError("it holds no dictionary of arrays")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, _Array):
            raise ValueError(f"{name!r} in it is no array")
    return {name: value.array() for name, value in found.items()}


class _Kind:
    """Stand-in for numpy.dtype: the letter and the size of a number."""

    def __init__(self, letters: str, *_: Any) -> None:
        self._letters, self._order = letters, "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._order = state[1]

    def numpys(self) -> np.dtype[Any]:
        """Return NumPy's dtype. Raises ValueError if it is not a plain number's."""
        if self._letters not in NUMBERS or self._order not in ("<", ">", "|", "="):
            raise ValueError(f"numbers of type {self._order}{self._letters} are not read")
        return np.dtype(self._order + self._letters)


class _Array:
    """Stand-in for numpy.ndarray: shape, kind, order and bytes."""

    _state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def array(self) -> NDArray[Any]:
        """Return the NumPy array that was recorded. Raises ValueError if the recorded state is not that of an array."""
        if len(self._state) != 5:
            raise ValueError("an array in it is not whole")
        _, shape, kind, by_columns, data = self._state
        data = data.encode("latin1") if isinstance(data, str) else data  # Python 2 wrote bytes as text
        fits = isinstance(kind, _Kind) and isinstance(data, bytes) and isinstance(shape, tuple)
        if not fits or not all(isinstance(n, int) and 0 <= n < LARGEST_SIDE for n in shape):
            raise ValueError("an array in it makes no sense")
        if math.prod(shape) * kind.numpys().itemsize != len(data):
            raise ValueError(f"an array of {shape} in it has {len(data)} bytes")
        return np.frombuffer(data, kind.numpys()).reshape(shape, order="F" if by_columns else "C")


def _empty(*_: Any) -> _Array:
    """Stand-in for numpy's _reconstruct: returns the array that then gets its state."""
    return _Array()


def _as_bytes(text: str, _encoding: str = "latin1") -> bytes:
    """Stand-in for _codecs.encode, by which old protocols write bytes."""
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """Return empty bytes, as pickles of old protocols request by calling `bytes()`."""
    return b""


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _Kind,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
    ("_codecs", "encode"): _as_bytes,
    ("__builtin__", "bytes"): _no_bytes,
    ("collections", "OrderedDict"): dict,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Return the stand-in for the name in the pickle. Raises ValueError for any other name."""
        if (module, name) not in _STAND_INS:
            raise ValueError(f"it asks for {module}.{name}")
        return _STAND_INS[module, name]

"""Minimal reader of MATLAB's level 5 files, for the development kit's `meta.mat`.

Source: MathWorks, "MAT-File Format", the level 5 chapter. Elements are (type, size, data), and compressed ones contain
one more element. Only structures, numbers and text are supported.
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainer.common.files.errors import ConfigError
from trainer.common.files.plural import counted

HEADER_BYTES = 128
MATRIX, COMPRESSED = 14, 15
STRUCT, CHAR = 2, 4
NUMBERS = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
    16: "u1",
    17: "u2",
    18: "u4",
}


def read_structs(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return every array of structures in the file by name. Fields are text, a number, or None for anything else.

    Raises:
        ConfigError: the file cannot be read or is not of this format.
    """
    try:
        return structs(path.read_bytes())
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    except ValueError as e:
        raise ConfigError(f"{path} is no MATLAB file of level 5 ({e!r}): unpack the development kit again") from e


def structs(data: bytes) -> dict[str, list[dict[str, Any]]]:
    """Parse the arrays of structures in a file's bytes.

    Raises:
        ValueError: they are not of this format.
    """
    try:
        return _structs(data)
    except (struct.error, zlib.error, LookupError, OverflowError, RecursionError) as e:
        raise ValueError(f"damaged: {e!r}") from e


def _structs(data: bytes) -> dict[str, list[dict[str, Any]]]:
    if data[126:128] not in (b"IM", b"MI") or len(data) < HEADER_BYTES:
        raise ValueError("wrong header")
    order = "<" if data[126:128] == b"IM" else ">"
    found: dict[str, list[dict[str, Any]]] = {}
    for kind, body in _elements(data[HEADER_BYTES:], order):
        if kind == COMPRESSED:
            kind, body = next(_elements(zlib.decompress(body), order))
        if kind == MATRIX:
            name, value = _matrix(body, order)
            if isinstance(value, list):
                found[name] = value
    return found


def _elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position + 8 <= len(data):
        kind, size = struct.unpack_from(order + "II", data, position)
        if kind >> 16:  # a small one: size and data share the tag's eight bytes
            kind, size = kind & 0xFFFF, kind >> 16
            yield kind, data[position + 4 : position + 4 + size]
            position += 8
            continue
        yield kind, data[position + 8 : position + 8 + size]
        position += 8 + size + (0 if kind == COMPRESSED else -size % 8)


def _matrix(body: bytes, order: str) -> tuple[str, Any]:
    parts = list(_elements(body, order))
    if not parts:
        return "", None
    flags, shape, name = parts[0][1], _numbers(parts[1], order), parts[2][1].decode()
    kind = struct.unpack_from(order + "I", flags)[0] & 0xFF
    if kind == STRUCT:
        width = int(_numbers(parts[3], order)[0])
        names = [parts[4][1][i : i + width].split(b"\0")[0].decode() for i in range(0, len(parts[4][1]), width)]
        values = [_matrix(part[1], order)[1] for part in parts[5:]]
        count = int(np.prod(shape))
        if len(values) != count * len(names):
            raise ValueError(f"{name}: {counted(len(values), 'value')} for {count} x {len(names)} fields")
        return name, [dict(zip(names, values[i * len(names) :], strict=False)) for i in range(count)]
    if len(parts) < 4 or parts[3][0] not in NUMBERS:
        return name, None
    found = _numbers(parts[3], order)
    if kind == CHAR:
        return name, "".join(chr(int(v)) for v in found)
    return name, found[0].item() if len(found) == 1 else None


def _numbers(part: tuple[int, bytes], order: str) -> np.ndarray:
    return np.frombuffer(part[1], order + NUMBERS[part[0]])

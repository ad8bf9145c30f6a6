"""Reader and writer of TFRecord files without TensorFlow: framed records, `tf.train.Example` messages, record index.

Source of both formats: tensorflow/core/lib/io/record_writer.h and tensorflow/core/example/example.proto.
"""

import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np

from trainer.common.files.errors import TrainerError, mpi_rank

HEADER_BYTES = 12  # length (8), masked checksum of the length (4)
FOOTER_BYTES = 4  # masked checksum of the data

_ONE_BYTE = [bytes([n]) for n in range(0x80)]

Feature = bytes | str | int | list[int] | list[bytes] | list[float]


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C, rotated and offset as in TFRecord, so that a checksum of checksums stays safe."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """Return the data framed as one TFRecord, with its length and checksums."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", masked_crc(length)), data, struct.pack("<I", masked_crc(data))))


def _varint(value: int) -> bytes:
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, *payload: bytes) -> list[bytes]:
    """Return a field as pieces, so that an image inside messages inside a message is copied once."""
    return [_varint(number << 3 | 2) + _varint(sum(map(len, payload))), *payload]


def _feature(value: Feature) -> list[bytes]:
    values = value if isinstance(value, list) else [value]
    if all(isinstance(v, bytes | str) for v in values):
        encoded = (v.encode() if isinstance(v, str) else v for v in values)
        pieces = (piece for v in encoded for piece in _field(1, v))  # type: ignore[arg-type]  # all() narrows no list
        return _field(1, *pieces)
    if all(isinstance(v, int) for v in values):
        return _field(3, *_field(1, *(_varint(v) for v in values)))  # type: ignore[arg-type]
    return _field(2, *_field(1, struct.pack(f"<{len(values)}f", *values)))


def _entry(key: str, value: Feature) -> list[bytes]:
    return _field(1, *_field(1, key.encode()), *_field(2, *_feature(value)))


@lru_cache(maxsize=1 << 14)
def _known_entry(key: str, value: str | int) -> bytes:
    """Return a serialized entry from a cache, because sizes, labels and names repeat."""
    return b"".join(_entry(key, value))


def example(features: Mapping[str, Feature]) -> bytes:
    """Return a serialized `tf.train.Example`. An empty list of numbers becomes an empty float list."""
    pieces: list[bytes] = []
    for key, value in features.items():
        pieces += [_known_entry(key, value)] if isinstance(value, str | int) else _entry(key, value)
    return b"".join(_field(1, *pieces))


def parse(serialized: bytes) -> dict[str, list[bytes] | list[int]]:
    """Parse a serialized `tf.train.Example` to its bytes and integers by key. Floats are left out.

    Raises:
        ValueError: it is no such message.
    """
    found: dict[str, list[bytes] | list[int]] = {}
    for _, features in _message(serialized):
        for _, entry in _message(features):
            parts = dict(_message(entry))
            key = parts.get(1, b"").decode()  # protobuf omits empty fields
            for kind, values in _message(parts.get(2, b"")):
                if kind == 1:
                    found[key] = [value for _, value in _message(values)]
                elif kind == 3:
                    found[key] = [n for _, packed in _message(values) for n in _varints(packed)]
    return found


def _message(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (field, payload) of a message whose fields all have a length."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        length, position = _read_varint(data, position)
        if tag & 7 != 2 or position + length > len(data):
            raise ValueError("not a tf.train.Example")
        yield tag >> 3, data[position : position + length]
        position += length


def _varints(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        value, position = _read_varint(data, position)
        yield value - (1 << 64) if value >> 63 else value


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data):
            raise ValueError("not a tf.train.Example")
        byte = data[position]
        value, shift, position = value | (byte & 0x7F) << shift, shift + 7, position + 1
        if byte < 0x80:
            return value, position


def write(file: BinaryIO, records: Iterable[bytes]) -> int:
    """Frame and write the records. Returns their number."""
    count = 0
    for record in records:
        file.write(frame(record))
        count += 1
    return count


@dataclass(frozen=True)
class Index:
    """Index of the records of some shards: shard, offset and length of each."""

    paths: tuple[Path, ...]
    shard: np.ndarray  # [N] int32, position in paths
    offset: np.ndarray  # [N] int64, of the data, past the record's header
    length: np.ndarray  # [N] int64, bytes of the data

    def __len__(self) -> int:
        return len(self.shard)


def _damaged(path: Path, what: str) -> TrainerError:
    return TrainerError(f"{path}: {what}: prepare or copy this shard again")


def _spans(path: Path, bytes_expected: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of the data of each record, read from the headers alone."""
    position = 0
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while position < size:
            file.seek(position)
            header = file.read(HEADER_BYTES)
            if len(header) < HEADER_BYTES:
                raise _damaged(path, f"cut off in the header at byte {position}")
            length, crc = struct.unpack("<QI", header)
            if crc != masked_crc(header[:8]):
                raise _damaged(path, f"no TFRecord header at byte {position}")
            if position + HEADER_BYTES + length + FOOTER_BYTES > size:
                raise _damaged(path, f"cut off in the record at byte {position}")
            yield position + HEADER_BYTES, length
            position += HEADER_BYTES + length + FOOTER_BYTES
    if bytes_expected not in (None, size):  # cut off between two records, or another set's
        raise _damaged(path, f"{size} bytes, but the manifest says {bytes_expected}")


def _readable_spans(path: Path, bytes_expected: int | None) -> list[tuple[int, int]]:
    try:
        return list(_spans(path, bytes_expected))
    except OSError as e:
        raise TrainerError(f"{path} cannot be read: {e.strerror}") from e


def scan(paths: Iterable[Path], skip_damaged: bool = False, sizes: Mapping[str, int] | None = None) -> Index:
    """Return the index of these shards.

    With `skip_damaged` rank 0 warns on stderr about each damaged shard and skips it.

    Args:
        sizes: bytes that shards of these names must have. Nothing else detects a shard cut off between two records.

    Raises:
        TrainerError: a shard is not a TFRecord file, ends in the middle of a record or has another size. The message
            names it and the byte.
    """
    shards, spans = [], []
    for path in paths:
        try:
            found = np.array(_readable_spans(path, (sizes or {}).get(path.name)), np.int64).reshape(-1, 2)
        except TrainerError as e:
            if not skip_damaged:
                raise
            if mpi_rank() == 0:
                print(f"warning: the whole shard is left out: {e}", file=sys.stderr, flush=True)
            continue
        shards.append(path)
        spans.append(found)
    counts = [len(s) for s in spans]
    both = np.concatenate(spans) if spans else np.zeros((0, 2), np.int64)
    return Index(tuple(shards), np.repeat(np.arange(len(shards), dtype=np.int32), counts), both[:, 0], both[:, 1])


def read_all(path: Path) -> Iterator[bytes]:
    """Yield the data of each record, with every checksum verified."""
    with path.open("rb") as file:
        for offset, length in _spans(path):
            file.seek(offset)
            data, footer = file.read(length), file.read(FOOTER_BYTES)
            if footer != struct.pack("<I", masked_crc(data)):
                raise _damaged(path, f"wrong checksum of the record at byte {offset - HEADER_BYTES}")
            yield data

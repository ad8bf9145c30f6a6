"""Reader of records by number, from any shard, in any order, every checksum verified."""

import os
import struct
import sys

import numpy as np

from trainer.common.data import jpeg, records
from trainer.common.data.records import FOOTER_BYTES, HEADER_BYTES, Index, masked_crc
from trainer.common.files.errors import TrainerError


class InputError(TrainerError):
    """Error for an unusable shard or record.

    If it is raised inside an input pipeline, `images.unwrapped` raises it again.
    """


class RecordReader:
    """Reader of an index's records.

    Args:
        skip_damaged: a damaged record, or one whose image is damaged, is skipped with a warning on stderr. Otherwise a
            wrong checksum is an `InputError`, and images are left to the pipeline that decodes them.
    """

    def __init__(self, index: Index, *, skip_damaged: bool = False) -> None:
        self._index, self._skip = index, skip_damaged
        self._files: dict[int, int] = {}
        self._damaged: set[int] = set()
        self._judged = np.zeros(len(index), bool)  # records whose image has been checked

    def __len__(self) -> int:
        return len(self._index)

    @property
    def left_out(self) -> int:
        """Return the number of damaged records so far."""
        return len(self._damaged)

    def __call__(self, numbers: np.ndarray, *, replace: bool = False) -> np.ndarray:
        """Return the serialized examples, [len(numbers)] of bytes. Skipped damaged records make them fewer.

        Args:
            replace: replace a damaged record by the next intact one, so that none is missing.
        """
        found = []
        for number in numbers:
            data = self._whole(int(number))
            if data is None and replace:
                data = self._next_whole(int(number))
            if data is not None:
                found.append(data)
        out = np.empty(len(found), object)
        out[:] = found
        return out

    def _next_whole(self, number: int) -> bytes:
        for step in range(1, len(self)):
            data = self._whole((number + step) % len(self))
            if data is not None:
                return data
        raise InputError(f"every record of {self._index.paths[0].parent} is damaged: prepare the shards again")

    def _whole(self, number: int) -> bytes | None:
        try:
            record = self._read(number)
            if self._skip and not self._judged[number]:
                self._judge(number, record)
            return record
        except InputError as e:
            if not self._skip:
                raise
            if number not in self._damaged:
                self._damaged.add(number)
                print(f"warning: left out: {e}", file=sys.stderr, flush=True)
            return None

    def _judge(self, number: int, record: bytes) -> None:
        """Check a record's image, once per record: a pipeline cannot skip what it fails to decode."""
        try:
            (encoded,) = records.parse(record)["image/encoded"]
            header = jpeg.read_header(encoded) if isinstance(encoded, bytes) else None
            if header is None or not isinstance(encoded, bytes):
                raise jpeg.Unusable("it is no JPEG")
            jpeg.check(encoded, header)
        except (ValueError, KeyError, jpeg.Unusable) as e:
            path, offset = self._index.paths[int(self._index.shard[number])], int(self._index.offset[number])
            raise InputError(f"{path}: the image of the record at byte {offset - HEADER_BYTES} is damaged: {e}") from e
        self._judged[number] = True

    def _read(self, number: int) -> bytes:
        shard, length, offset = (int(a[number]) for a in (self._index.shard, self._index.length, self._index.offset))
        path = self._index.paths[shard]
        try:
            if shard not in self._files:
                self._files[shard] = os.open(path, os.O_RDONLY)
            data = os.pread(self._files[shard], length + FOOTER_BYTES, offset)
        except OSError as e:
            raise InputError(f"{path} cannot be read: {e.strerror}") from e
        if len(data) != length + FOOTER_BYTES:
            raise InputError(f"{path} became shorter while it was read")
        record = data[:length]
        if struct.unpack("<I", data[length:])[0] != masked_crc(record):
            raise InputError(
                f"{path}: wrong checksum of the record at byte {offset - HEADER_BYTES}: prepare or copy "
                "this shard again"
            )
        return record

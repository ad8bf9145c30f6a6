"""Writer of npz files that computes the checksum while it writes, so that the file need not be read again."""

import hashlib
import zipfile
from collections.abc import Mapping
from typing import BinaryIO, cast

import numpy as np

BLOCK = 1 << 20  # bytes at a time: they stay in the processor's cache for both checksums and the write


def write(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> str:
    """Write the arrays in a form that `numpy.load` reads. Returns the SHA-256 of the bytes written.

    It suits a thread beside a training: the interpreter's lock is free while checksums are computed and bytes are
    written, and no array is copied.
    """
    summed = _Summed(file)
    with zipfile.ZipFile(cast(BinaryIO, summed), "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                whole = np.asarray(array, order="C")
                np.lib.format.write_array_header_1_0(entry, np.lib.format.header_data_from_array_1_0(whole))
                data = whole.reshape(-1).view(np.uint8).data
                for start in range(0, len(data), BLOCK):
                    entry.write(data[start : start + BLOCK])
    return summed.sha256.hexdigest()


class _Summed:
    """File that is written sequentially and summed up. It has no `seek`, so that `zipfile` does not seek."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sha256 = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

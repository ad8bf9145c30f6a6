"""Speed measurements of a host's memory and disk, for the deep level."""

from __future__ import annotations

import os
import time
from typing import Any


def memory(size: int, runs: int) -> float:
    """Return the rate of a copy within memory in bytes per second, the best of some runs. Reads and writes count."""
    source, target = bytearray(os.urandom(1 << 20)) * (size >> 20), bytearray(size)
    best = 0.0
    for _ in range(runs):
        began = time.perf_counter()
        target[:] = source
        best = max(best, 2 * size / (time.perf_counter() - began))
    return best


def disk(folders: list[str], size: int) -> dict[str, float]:
    """Return the bytes per second written to a file in the first folder that exists, and read back past the cache."""
    folder = next(f for f in folders if os.path.isdir(f))
    path, block = f"{folder}/.dlami-disk-{os.getpid()}", os.urandom(1 << 20)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        began = time.perf_counter()
        for _ in range(size >> 20):
            os.write(handle, block)
        os.fsync(handle)
        written = size / (time.perf_counter() - began)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(handle, 0, os.SEEK_SET)
        began = time.perf_counter()
        while os.read(handle, 1 << 20):
            continue
        return {"write": written, "read": size / (time.perf_counter() - began)}
    finally:
        os.close(handle)
        os.unlink(path)


MEASURES: dict[str, Any] = {"memory": memory, "disk": disk}

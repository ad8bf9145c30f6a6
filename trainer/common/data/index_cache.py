"""Cache of a split's record index, stored beside its shards: reading one header per image takes minutes over a network.

A cached index is valid while each shard keeps its name, size and modification time. Its record lengths must also add up
to each shard's size. Otherwise the shards are scanned again. The records carry their own checksums.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from trainer.common.checkpoints import npz_writer
from trainer.common.data.records import FOOTER_BYTES, HEADER_BYTES, Index

AT_ONCE = 16  # parallel stat calls: each takes long on a network file system
FRAME = HEADER_BYTES + FOOTER_BYTES


def load(file: Path, shards: Sequence[Path], sizes: Mapping[str, int]) -> Index | None:
    """Return the cached index of these shards; None if there is no valid one.

    Args:
        sizes: bytes that shards of these names must have.
    """
    try:
        with np.load(file, allow_pickle=False) as kept:
            names, stats, counts, lengths = (kept[name] for name in ("names", "stats", "counts", "lengths"))
        if [path.name for path in shards] != list(names) or not np.array_equal(stats, _stats(shards)):
            return None
        if any(sizes.get(path.name, size) != size for path, size in zip(shards, stats[:, 0].tolist(), strict=True)):
            return None
        return _index(shards, counts.astype(np.int64), lengths.astype(np.int64), stats[:, 0])
    except Exception:  # NumPy and zipfile raise many types for damaged bytes
        return None


def save(file: Path, index: Index) -> None:
    """Save the index of intact shards. Skips it if there is no room, or no permission to write."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        arrays = {
            "names": np.array([path.name for path in index.paths]),
            "stats": _stats(index.paths),
            "counts": np.bincount(index.shard, minlength=len(index.paths)),
            "lengths": index.length,
        }
        with partial.open("xb") as out:
            npz_writer.write(out, arrays)
        partial.chmod(0o644)
        partial.replace(file)
    except OSError:
        partial.unlink(missing_ok=True)


def _stats(shards: Sequence[Path]) -> np.ndarray:
    """Return [shards, 2] int64: bytes, and modification time in nanoseconds."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(os.stat, shards))
    return np.array([(s.st_size, s.st_mtime_ns) for s in found], np.int64).reshape(-1, 2)


def _index(shards: Sequence[Path], counts: np.ndarray, lengths: np.ndarray, sizes: np.ndarray) -> Index | None:
    if len(counts) != len(shards) or counts.sum() != len(lengths) or (counts < 0).any() or (lengths < 0).any():
        return None
    shard = np.repeat(np.arange(len(shards), dtype=np.int32), counts)
    ends = np.concatenate([[0], np.cumsum(lengths + FRAME)])  # of all records, as if the shards were one file
    begins = ends[np.concatenate([[0], np.cumsum(counts)])]  # of each shard in it, and the end
    if not np.array_equal(np.diff(begins), sizes):
        return None
    return Index(tuple(shards), shard, ends[:-1] - begins[shard] + HEADER_BYTES, lengths)

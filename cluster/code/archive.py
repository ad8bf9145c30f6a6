"""Tar archive of a snapshot's files, for the transfer to the master."""

import hashlib
import io
import tarfile
import zlib
from pathlib import Path
from typing import IO

from cluster.code.onhost.content import FILE, LINK, MODES, TIME
from cluster.code.snapshot import File, Snapshot
from cluster.errors import ConfigError

_SAMPLE = 1 << 20  # bytes of an archive that are compressed as a test
_WORTH = 0.7


def write_archive(snapshot: Snapshot, file: IO[bytes]) -> None:
    """Write the snapshot's bytes, and nothing else, as an archive. Raises ConfigError if a file has changed since."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for one in snapshot.files:
            info = tarfile.TarInfo(one.path)
            info.mtime, info.size, info.mode = TIME, one.size, MODES.get(one.kind, MODES[FILE])
            if one.kind == LINK:
                info.type, info.linkname = tarfile.SYMTYPE, one.digest.removeprefix("-> ")
                archive.addfile(info)
            else:
                archive.addfile(info, io.BytesIO(_bytes_of(snapshot.root, one)))
    file.flush()


def is_worth_compressing(path: Path) -> bool:
    """Return True if the archive shrinks enough that compressing it saves time on a slow connection."""
    with path.open("rb") as file:
        sample = file.read(_SAMPLE)
    return len(zlib.compress(sample, 1)) < _WORTH * len(sample)


def compressed(path: Path) -> Path:
    """Return a compressed copy of the archive, in the same folder."""
    import gzip
    import shutil

    small = Path(f"{path}.gz")
    with path.open("rb") as source, gzip.open(small, "wb", compresslevel=1) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    return small


def _bytes_of(root: Path, one: File) -> bytes:
    try:
        data = (root / one.path).read_bytes()
    except OSError:
        data = b""
    if len(data) != one.size or hashlib.sha256(data).hexdigest() != one.digest:
        raise ConfigError(f"{root / one.path} changed while it was read: do it again once nothing writes there")
    return data

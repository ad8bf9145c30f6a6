"""Cache of the shards in memory or on a local disk, filled once per host, so that training does not read the network.

Other users can write to the parent folder and know the copies' names. So a training reads only copies in a folder that
this user owns.
"""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dlami.heartbeat import beat
from trainer.common.files.atomic_write import written_whole
from trainer.common.files.errors import TrainerError

MEMORY = "memory"
MEMORY_FOLDER = Path("/dev/shm")
COPIES_AT_ONCE = 8  # a network file system is faster with several


def place(where: str, shards: Sequence[Path]) -> Path:
    """Return the folder for copies of these shards: the same for all ranks of a host, another for other data."""
    parent = MEMORY_FOLDER if where == MEMORY else Path(where)
    source = hashlib.sha256(str(shards[0].resolve().parent).encode()).hexdigest()[:12]
    return parent / f"shards-{os.getuid()}-{source}"


def fill(folder: Path, shards: Sequence[Path]) -> None:
    """Copy the missing shards. One process per host calls it.

    Raises:
        TrainerError: there is no room, a file cannot be copied, or the folder is another user's.
    """
    try:
        _make_own(folder)
        todo = [shard for shard in shards if not _is_copied(shard, folder / shard.name)]
        needed, free = sum(shard.stat().st_size for shard in todo), shutil.disk_usage(folder).free
        if needed > free:
            raise TrainerError(
                f"--cache: {folder} needs {needed / 2**30:.1f} GiB, but {free / 2**30:.1f} are free: "
                "give another folder or leave the flag out"
            )
        with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
            for _ in pool.map(lambda shard: _copy(shard, folder / shard.name), todo):
                beat.alive()
    except OSError as e:
        raise TrainerError(f"--cache: {e.filename or folder} cannot be copied to {folder}: {e.strerror}") from e


def remove(folder: Path) -> None:
    """Delete a folder that `fill` made, to free its memory."""
    shutil.rmtree(folder, ignore_errors=True)


def _make_own(folder: Path) -> None:
    """Create the folder for this user alone. Raises OSError if another user made it or could replace it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    above = folder.parent.stat()
    if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        raise PermissionError(errno.EPERM, "every user can replace what is there: 'chmod +t' it", str(folder.parent))
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "it is not this user's folder: remove it", str(folder))
    if found.st_mode & 0o077:
        folder.chmod(0o700)


def _is_copied(shard: Path, copy: Path) -> bool:
    try:
        ours, theirs = copy.lstat(), shard.stat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(ours.st_mode) or ours.st_uid != os.getuid() or ours.st_mode & 0o022:
        return False
    return (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)


def _copy(shard: Path, copy: Path) -> None:
    with written_whole(copy) as partial:
        shutil.copyfile(shard, partial)
        stat = shard.stat()
        os.utime(partial, ns=(stat.st_atime_ns, stat.st_mtime_ns))

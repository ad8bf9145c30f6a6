"""Working copy of code: a folder unpacked from a host's store, which then belongs to one job. Runs on every host."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence

from cluster.code.onhost import store
from cluster.code.onhost.unpack import Damaged, unpack
from cluster.ssh.onhost.frame import say


def main(content: str, folder: str, files: Mapping[str, str], folders: Sequence[str], source: str) -> int:
    """Put code into this host's store, make a job's working copy of it, and report whether both are there.

    Args:
        folder: where to make the working copy, "" for none.
        files: further files of the job, by path.
        folders: further folders of the job.
        source: path of an archive of this content, which this host may lack.
    """
    try:
        kept = store.store_folder()
        archive = store.archive_path(kept, content)
        for path in folders:
            os.makedirs(path, exist_ok=True)
        for path, text in files.items():
            _write(path, text)
        is_there = not content or store.holds(archive) or _take(source, archive)
        if content and is_there and folder:
            is_there = _is_made(archive, content, os.path.expanduser(folder))
        store.forget(kept)
        say({"archive": archive, "is_there": is_there})
    except OSError as e:
        say({"error": f"{e.filename or folder}: {(e.strerror or str(e)).lower()}"})
    return 0


def _take(source: str, archive: str) -> bool:
    """Put an archive into the store: move one that was sent there, copy any other. Return False if it is missing."""
    if os.path.dirname(source) == os.path.dirname(archive):
        with contextlib.suppress(FileNotFoundError):  # another host of the same folder was first
            store.put(source, archive)
        return os.path.exists(archive)
    if not os.access(source, os.R_OK):
        return False
    part = f"{archive}.{os.urandom(4).hex()}.part"
    try:
        with open(source, "rb") as given, open(part, "xb") as file:
            shutil.copyfileobj(given, file, 1 << 20)
        store.put(part, archive)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    return True


def _is_made(archive: str, content: str, folder: str) -> bool:
    """Make the working copy. If the archive is damaged, remove it, so that it is sent again, and return False."""
    try:
        unpack(archive, content, folder)
    except Damaged:
        os.unlink(archive)
        return False
    return True


def _write(path: str, text: str) -> None:
    """Write a file atomically."""
    part = f"{path}.{os.getpid()}.part"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(part, "w") as file:
        file.write(text)
    os.replace(part, path)

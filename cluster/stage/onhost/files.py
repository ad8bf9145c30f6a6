"""Listing of the files below a folder, complete, or an error that names the unreadable path."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator

from cluster.ssh.onhost.partial_file import is_part


def files_below(top: str, heard: Callable[[], None] = lambda: None) -> dict[str, int]:
    """Return path below `top` and size of every file, in order, including our unfinished files.

    Links to folders are not followed. Raises OSError if a folder or its contents cannot be read.

    Args:
        heard: callback for each name, so that the watchdog does not report a stall.
    """
    found = {}
    for path in _walk(top, heard):
        size = _size_of_file(path)
        if size is not None:
            found[os.path.relpath(path, top)] = size
    return dict(sorted(found.items()))


def finished(files: dict[str, int]) -> dict[str, int]:
    """Return the finished files. Everything in the folder of an unfinished archive is unfinished."""
    return {below: size for below, size in files.items() if not any(map(is_part, below.split("/")))}


def _walk(top: str, heard: Callable[[], None]) -> Iterator[str]:
    folders = [top]
    while folders:
        folder = folders.pop()
        try:
            names = os.scandir(folder)
        except FileNotFoundError:
            if folder == top:
                raise
            continue  # removed since its name was read
        with names:
            for entry in names:
                heard()
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    yield entry.path


def _size_of_file(path: str) -> int | None:
    """Return the size of a file. None for a broken link, a socket, a device, or a file removed meanwhile."""
    try:
        found = os.stat(path)
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None

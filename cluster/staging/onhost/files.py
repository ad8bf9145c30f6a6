"""The files below a folder: all of them, or an error that names what could not be read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator

from cluster.ssh.onhost.part import is_part


def files_below(top: str, heard: Callable[[], None] = lambda: None) -> dict[str, int]:
    """Path below `top` and size of every file, in order, our unfinished ones too; not through links to folders.

    `heard` is told of each name. Raises OSError where a folder or what is in it cannot be read.
    """
    found = {}
    for path in _walk(top, heard):
        size = _size_of_file(path)
        if size is not None:
            found[os.path.relpath(path, top)] = size
    return dict(sorted(found.items()))


def finished(files: dict[str, int]) -> dict[str, int]:
    """Those of them that are whole: an archive on its way is a whole folder of unfinished ones."""
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
            continue  # gone since its name was read
        with names:
            for entry in names:
                heard()
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    yield entry.path


def _size_of_file(path: str) -> int | None:
    """None for a link that leads nowhere, a socket, a device, and what is gone since its name was read."""
    try:
        found = os.stat(path)
    except OSError as e:
        if e.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None

"""Destination folder of a stage. Files are written below it, through none of its links, and named when complete."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from typing import BinaryIO

from cluster.ssh.onhost.partial_file import open_part, part_of


class DestinationFolder:
    """Destination folder on this host."""

    def __init__(self, top: str) -> None:
        self.top = top
        self._made: set[str] = set()
        self._mode = 0o666 & ~_umask()

    def path_of(self, below: str) -> str:
        """Return the path of a name below the folder."""
        return os.path.join(self.top, below)

    def has(self, below: str, modified: float, size: int | None = None) -> bool:
        """Return True if a file of this size and time is there. Without a size, a folder of this time."""
        try:
            found = os.lstat(self.path_of(below))
        except OSError:
            return False
        kind_fits = (found.st_mode & 0o170000) == (0o040000 if size is None else 0o100000)
        return kind_fits and int(found.st_mtime) == int(modified) and size in (None, found.st_size)

    def write(self, below: str, modified: float, fill: Callable[[BinaryIO], None]) -> None:
        """Create a file atomically from what `fill` writes, with this time. Raises OSError, and what `fill` raises."""
        path = self._prepared(below)
        if os.path.isdir(path) and not os.path.islink(path):
            raise OSError(0, "is a folder here and an object there", path)
        with os.fdopen(open_part(path), "r+b") as file:
            try:
                file.truncate(0)
                fill(file)
                file.flush()
                os.utime(file.fileno(), (modified, modified))
                os.fchmod(file.fileno(), self._mode)
                os.replace(part_of(path), path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(part_of(path))
                raise

    def write_folder(self, below: str, modified: float, fill: Callable[[str], None]) -> None:
        """Create a folder atomically from what `fill` writes into the folder that it gets. Raises OSError."""
        path = self._prepared(below)
        part = part_of(path)
        shutil.rmtree(part, ignore_errors=True)
        os.mkdir(part)
        try:
            fill(part)
            if os.path.lexists(path):
                raise OSError(0, "is there already and is of another object: remove it first", path)
            os.replace(part, path)
            os.utime(path, (modified, modified))
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _prepared(self, below: str) -> str:
        """Make the folders above a file and return its path. Raises OSError if one of them is a link or a file."""
        path, *names = self.top, *below.split("/")
        if not self._made:
            os.makedirs(path, exist_ok=True)
        for name in names[:-1]:
            path = os.path.join(path, name)
            if path in self._made:
                continue
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
            if os.path.islink(path):
                raise OSError(0, "is a link here, and nothing is written through it: remove it", path)
            if not os.path.isdir(path):
                raise OSError(0, "is a file here and a folder there", path)
            self._made.add(path)
        return os.path.join(path, names[-1])


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current

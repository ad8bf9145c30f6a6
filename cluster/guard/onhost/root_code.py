"""Check of code before root runs it: only root may be able to change it. Python 3.9, as root.

    python3 root_code.py PROJECT [MAKER]     exits 0 if root may run it, else prints the first path that is not root's

MAKER: of a lab, the number of the user whose checkout it was made from; root runs that code already.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator


def not_roots(project: str, maker: int = 0) -> str:
    """Return the first path of the project, its parents or its interpreter that others could change; "" if none.

    maker: a user who counts as root, and whose group may write, too.
    """
    try:
        code, python = os.path.realpath(project), os.path.join(project, ".venv/bin/python")
        paths = (*_above(code), *_above(os.path.realpath(python)))
        return next((p for p in (*paths, *_below(code)) if _is_others(p, maker)), "")
    except OSError as e:
        return e.filename or project


def _above(path: str) -> Iterator[str]:
    while True:
        yield path
        if path == "/":
            return
        path = os.path.dirname(path)


def _below(folder: str) -> Iterator[str]:
    for above, folders, files in os.walk(folder):
        yield from (os.path.join(above, name) for name in (*folders, *files))


def _is_others(path: str, maker: int) -> bool:
    found = os.lstat(path)
    if found.st_uid not in (0, maker):
        return True
    if stat.S_ISLNK(found.st_mode) or (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        return False
    return bool(found.st_mode & (stat.S_IWOTH if maker else stat.S_IWOTH | stat.S_IWGRP))


def main(project: str, maker: str = "0") -> int:
    """Print the first path that another user could change, and return the exit code."""
    path = not_roots(project, int(maker))
    if path:
        print(path)
    return 1 if path else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Folders that a host needs for itself: they are never served to others, and nothing is mounted over them."""

from __future__ import annotations

import os
import posixpath
import pwd

_WITH_ALL_BELOW = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr")
_ALONE = ("", "home", "media", "opt", "root", "srv", "tmp", "var")  # folders below them may be shared


def is_the_systems(folder: str) -> bool:
    """Return True if the path, by its name, is one that every system has. Links are not followed."""
    first, *below = posixpath.normpath(folder).strip("/").split("/")
    return first in _WITH_ALL_BELOW or (first in _ALONE and not below)


def why_not(folder: str) -> str:
    """Return why this host cannot share a folder, with links resolved; "" if it can."""
    real = os.path.realpath(folder)
    if is_the_systems(real):
        return f"{folder} is a folder of the system: choose another with --shared"
    whose = sorted({one.pw_name for one in pwd.getpwall() if os.path.realpath(one.pw_dir) == real})
    if whose:
        return f"{folder} is the home of {', '.join(whose)}: choose another with --shared, one inside of it will do"
    return ""

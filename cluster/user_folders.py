"""Folders of this user for sockets, temporary files and caches, with fallbacks if the environment names none."""

import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cluster.errors import ConfigError

_RUNTIME_MOST = 64  # bytes: a control socket in it has a hashed name, and the kernel allows 107 for its path
_PLAIN = re.compile(r"/[\w./+@:%,=~-]*")  # ssh splits a control socket's path at blanks, and expands some characters


def runtime_folder() -> Path:
    """Return this user's folder for control sockets, which no other user may enter.

    It is below XDG_RUNTIME_DIR if that exists, is ours, writable and short, else below the temporary folder, or
    another one if somebody else has taken its name there. Raises ConfigError if there is no usable folder at all.
    """
    tried = []
    for base in dict.fromkeys(_runtime_bases()):
        folder = base / f"dlami-{os.getuid()}"
        if _may_be_used(base, folder):
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
            except OSError as e:
                tried.append(f"{base} ({e.strerror})")
                continue
            _refuse_others(folder)
            return folder
        tried.append(str(base))
    raise ConfigError(
        f"no folder can hold the sockets of SSH connections, tried {', '.join(tried)}: "
        "set XDG_RUNTIME_DIR to a short path of a folder of yours"
    )


def _runtime_bases() -> Iterator[Path]:
    if named := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(named)
    yield temporary_folder()
    yield Path("/tmp")
    yield Path("/var/tmp")
    yield Path("/dev/shm")
    yield Path(home_folder() or "/nonexistent") / ".cache"


def temporary_folder() -> Path:
    """Return the folder for temporary files. Unlike tempfile's, it is found even if the disk is full."""
    try:
        return Path(tempfile.gettempdir())
    except OSError:  # no folder takes a file now, for example because the disk is full
        return Path("/tmp")


def _may_be_used(base: Path, folder: Path) -> bool:
    """Return True if this user can make sockets in the folder and no other user can replace it."""
    try:
        found = base.stat()
    except OSError:
        return False
    if not base.is_absolute() or not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.getuid(), 0):
        return False
    if os.path.lexists(folder):
        if folder.lstat().st_uid != os.getuid():
            return False
        _refuse_others(folder)
    return bool(_PLAIN.fullmatch(str(folder))) and len(str(folder)) <= _RUNTIME_MOST


def _refuse_others(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(f"{folder} is not a folder of this user alone: remove it, or set XDG_RUNTIME_DIR")


def cache_folder() -> Path:
    """Return the folder for this user's caches, which no other user can read.

    It is below XDG_CACHE_HOME or ~/.cache, or beside the control sockets if those cannot be written.
    """
    home = Path(home_folder() or "/nonexistent")
    named = os.environ.get("XDG_CACHE_HOME", "")
    bases = [Path(named)] if named.startswith("/") else []
    bases += [home / ".cache"] if home.is_dir() else []
    usable = (base / "dlami-cluster" for base in bases if _can_be_made(base / "dlami-cluster"))
    return next(usable, None) or runtime_folder() / "cache"


def home_folder() -> str:
    """Return this user's home, "" if neither HOME nor the list of users has one."""
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.expanduser raises where there is none
    return home if home.startswith("/") else ""


def _can_be_made(folder: Path) -> bool:
    """Make the folder. Return True if it is there and can be written."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)

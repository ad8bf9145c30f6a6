"""Partial files: `.NAME.dlami-part` beside a file until it is complete. Each name has one, with only one writer."""

from __future__ import annotations

import fcntl
import hashlib
import os

SUFFIX = ".dlami-part"
_PLAIN_BYTES = 200  # of a name; a longer one is cut and gets a digest, as no name may have more than 255
_CUT_BYTES = 190  # with the digest it is longer than any plain one, so the two are never the same


def part_of(path: str) -> str:
    """Return the path of a file's partial file."""
    folder, name = os.path.split(path)
    raw = os.fsencode(name)
    if len(raw) > _PLAIN_BYTES:
        digest = hashlib.sha256(raw).hexdigest()[:16]
        name = raw[:_CUT_BYTES].decode(errors="ignore") + "." + digest
    return os.path.join(folder, f".{name}{SUFFIX}")


def is_part(name: str) -> bool:
    """Return True if this is the name of a partial file, which was never completed."""
    return name.startswith(".") and name.endswith(SUFFIX)


def open_part(path: str) -> int:
    """Return a descriptor of a path's partial file, created if missing, and locked.

    Raises OSError if another process has it.
    """
    part = part_of(path)
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.path.samestat(os.fstat(fd), os.lstat(part))  # not finished by another in this very moment
    except OSError:
        is_ours = False
    if not is_ours:
        os.close(fd)
        raise OSError(0, "another copy writes it now", path)
    return fd

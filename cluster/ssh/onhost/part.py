"""A file's name until it is whole: `.NAME.dlami-part` beside it, one for each name, and only one writer of it."""

from __future__ import annotations

import fcntl
import hashlib
import os

SUFFIX = ".dlami-part"
_PLAIN_BYTES = 200  # of a name; a longer one is cut and gets a digest, as no name may have more than 255
_CUT_BYTES = 190  # with the digest it is longer than any plain one, so the two are never the same


def part_of(path: str) -> str:
    """What the file of this path is called until it is whole."""
    folder, name = os.path.split(path)
    raw = os.fsencode(name)
    if len(raw) > _PLAIN_BYTES:
        digest = hashlib.sha256(raw).hexdigest()[:16]
        name = raw[:_CUT_BYTES].decode(errors="ignore") + "." + digest
    return os.path.join(folder, f".{name}{SUFFIX}")


def is_part(name: str) -> bool:
    """Whether a file of this name is one that was never finished."""
    return name.startswith(".") and name.endswith(SUFFIX)


def open_part(path: str) -> int:
    """A descriptor of the part of this path, made if it is not there, locked for us. Raises OSError."""
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

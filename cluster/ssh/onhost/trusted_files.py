"""Files in folders that other users can write to: opened without following links, and only if their owner is right.

A name on a shared folder proves nothing. So we check the kind and owner of the file behind it, which the kernel knows.
"""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import stat
from collections.abc import Collection

MOST_BYTES = 4 << 20  # of a record; a log is read by parts
_NOT_STICKY = "can be written by everybody and has no sticky bit"
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
_NO_WAIT = _NO_LINK | os.O_NONBLOCK | os.O_NOCTTY  # a FIFO without a writer opens at once, and is refused then


class Untrusted(OSError):
    """Error: a file or folder of the wrong kind, size or owner. `strerror` names what is wrong."""

    def __init__(self, path: str | os.PathLike[str], why: str) -> None:
        super().__init__(errno.EPERM, why, os.fspath(path))


def user_name(uid: int) -> str:
    """Return a user's name, or the number where the user has none here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def trusted_users(program: str | os.PathLike[str]) -> frozenset[int]:
    """Return the users whose records count for this user: himself, root, and the owner of the program that he runs.

    program: its file or folder.
    """
    return frozenset((0, os.geteuid(), os.lstat(program).st_uid))


def folder_owner(path: str | os.PathLike[str]) -> int:
    """Return the owner of a real folder. Raises Untrusted for a link or a file, OSError if there is nothing."""
    found = os.lstat(path)
    if stat.S_ISDIR(found.st_mode):
        return found.st_uid
    raise Untrusted(path, f"is {_kind(found)}, not a folder")


def open_folder(path: str | os.PathLike[str], owner: int | None = None) -> int:
    """Open a folder that is not a link, and belongs to `owner` if one is given.

    Raises Untrusted if it is a link or not that owner's, OSError if it cannot be opened.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK)
    except NotADirectoryError:  # a link as well: O_DIRECTORY is looked at first
        folder_owner(path)
        raise
    try:
        _check_owner(path, os.fstat(handle), owner)
    except OSError:
        os.close(handle)
        raise
    return handle


def open_file(path: str | os.PathLike[str], *, owner: int | None = None, write: bool = False) -> int:
    """Open a regular file in a folder that is not a link.

    Raises Untrusted if a check fails, OSError if it cannot be opened.

    In a user's own folder the file must be that user's. In a folder that all users write to, it may be anybody's, but
    must have no other name. A hard link there may be a file that its owner keeps elsewhere.

    owner: the required owner of the file, and of its folder unless all users write to that.
    """
    above, name = os.path.split(os.fspath(path))
    folder = open_folder(above or ".")
    try:
        found = os.fstat(folder)
        is_for_all = bool(found.st_mode & stat.S_IWOTH)
        if is_for_all and not found.st_mode & stat.S_ISVTX:
            raise Untrusted(above, _NOT_STICKY)
        if not is_for_all:
            _check_owner(above, found, owner)
            owner = found.st_uid
        handle = _opened(path, name, folder, write=write)
    finally:
        os.close(folder)
    try:
        check_file(path, os.fstat(handle), owner, is_alone=is_for_all)
    except OSError:
        os.close(handle)
        raise
    return handle


def check_file(
    path: str | os.PathLike[str], found: os.stat_result, owner: int | None, *, is_alone: bool = True
) -> None:
    """Raise Untrusted unless this is a regular file, of this owner if one is given.

    is_alone: refuse a file that has a second name, too.
    """
    if not stat.S_ISREG(found.st_mode):
        raise Untrusted(path, f"is {_kind(found)}, not a file")
    _check_owner(path, found, owner)
    if is_alone and found.st_nlink > 1:
        raise Untrusted(path, "has a second name elsewhere (a hard link)")


def read_file(
    path: str | os.PathLike[str],
    *,
    owner: int | None = None,
    owners: Collection[int] | None = None,
    most: int = MOST_BYTES,
) -> bytes:
    """Read a whole file, opened by `open_file`.

    Raises Untrusted if it is larger than `most` or not of one of `owners`, OSError if it cannot be read.
    """
    handle = open_file(path, owner=owner)
    if owners is not None and (uid := os.fstat(handle).st_uid) not in owners:
        os.close(handle)
        raise Untrusted(path, f"belongs to {user_name(uid)}")
    parts, left = [], most + 1
    with os.fdopen(handle, "rb", buffering=0) as file:
        while left and (part := file.read(min(left, 1 << 16))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise Untrusted(path, f"is larger than {most >> 10} KiB")
    return b"".join(parts)


def require_place(folder: str | os.PathLike[str], remedy: str = "") -> None:
    """Raise Untrusted unless only this user or root can replace what is in a folder.

    remedy: what to do, after the reason.
    """
    owner = folder_owner(folder)
    mode = os.lstat(folder).st_mode
    if owner not in (0, os.geteuid()):
        raise Untrusted(folder, f"belongs to {user_name(owner)}, who could replace what is in it{remedy}")
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise Untrusted(folder, f"{_NOT_STICKY}{remedy}")


def own_folder(above: str | os.PathLike[str], name: str) -> str:
    """Return this user's folder of this name, made if it is missing, in a folder that other users write to.

    If somebody else has taken the name, it is followed by characters that nobody can guess. Raises Untrusted if others
    can write to it, OSError if it cannot be made.
    """
    above, taken = os.fspath(above), False
    for one in (name, *sorted(n for n in os.listdir(above) if n.startswith(f"{name}+"))):
        path = os.path.join(above, one)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                taken = True
                continue
        require_own(path)
        return path
    assert taken
    path = os.path.join(above, f"{name}+{secrets.token_hex(8)}")
    os.mkdir(path, 0o700)
    return path


def require_own(folder: str | os.PathLike[str]) -> None:
    """Raise Untrusted unless this is a folder of this user in which no other user can write."""
    folder_owner(folder)
    found = os.lstat(folder)
    _check_owner(folder, found, os.geteuid())
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Untrusted(folder, "can be written by others: 'chmod go-w' it once you know all that is in it")


def _check_owner(path: str | os.PathLike[str], found: os.stat_result, owner: int | None) -> None:
    if owner is not None and found.st_uid != owner:
        raise Untrusted(path, f"belongs to {user_name(found.st_uid)}, not to {user_name(owner)}")


def _opened(path: str | os.PathLike[str], name: str, folder: int, *, write: bool) -> int:
    """Open a name in an open folder.

    Errors have the whole path, and name what is there in place of a file, such as a link or a socket.
    """
    try:
        return os.open(name, (os.O_RDWR if write else os.O_RDONLY) | _NO_WAIT, dir_fd=folder)
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            check_file(path, os.stat(name, dir_fd=folder, follow_symlinks=False), None)
        raise OSError(e.errno, e.strerror, os.fspath(path)) from None


def _kind(found: os.stat_result) -> str:
    kinds = {
        stat.S_IFLNK: "a link",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFREG: "a file",
    }
    return kinds.get(stat.S_IFMT(found.st_mode), "a device")

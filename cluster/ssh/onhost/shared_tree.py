"""Folders on the shared folder that every user of a cluster writes to: made once, by root. Python 3.9.

    python3 shared_tree.py SHARED [USER]     makes missing folders, and takes over those of USER, an operator

The owner of a folder can replace what others have in it. So root owns these, and the sticky bit protects each user's
files from the others.
"""

from __future__ import annotations

import os
import pwd
import stat
import sys
from collections.abc import Collection

FOLDERS = (
    "jobs",
    "environments",
    "notebooks",
    "host-failures",
    "matrices",
    "health",
    "health/looks",
    "health/baselines",
)
_MODE = 0o1777


def make(shared: str, heirs: Collection[int] = ()) -> list[str]:
    """Make the folders, as root. Return a line for each that belongs to somebody else, which stays as it is.

    heirs: users whose folders root takes over. They have root's rights anyway.
    """
    os.stat(shared)
    wrong = []
    for name in FOLDERS:
        path = os.path.join(shared, name)
        try:
            os.mkdir(path, _MODE)
            if os.lstat(path).st_uid != os.geteuid():  # an export with root_squash: nobody's is as bad as another's
                os.rmdir(path)
                wrong.append(
                    f"{path} is to be made on its file server, which gives root no right: install -d -m 1777 {path}"
                )
                continue
        except FileExistsError:
            found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, *heirs):
                wrong.append(f"{path} {trouble(path)}")
                continue
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.geteuid() == 0:
                os.fchown(handle, 0, -1)
            os.fchmod(handle, _MODE)  # whatever the umask
        finally:
            os.close(handle)
    return wrong


def trouble(path: str) -> str:
    """Return what is wrong with a folder that all users write to.

    Return an empty string if it belongs to root or this user, or is missing.
    """
    try:
        found = os.lstat(path)
    except OSError:
        return ""
    if not stat.S_ISDIR(found.st_mode):
        return f"is a link or a file: mv {path} {path}.old"
    if found.st_uid not in (0, os.geteuid()):
        return f"belongs to {_name(found.st_uid)}, who can replace what others have in it: chown root {path}"
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return f"can be written by everybody and has no sticky bit: chmod 1777 {path}"
    return ""


def troubles(shared: str) -> list[str]:
    """Return a line for each of these folders that is not as it should be."""
    paths = (os.path.join(shared, name) for name in FOLDERS)
    return [f"{path} {why}" for path in paths if (why := trouble(path))]


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def main(shared: str, user: str = "root") -> int:
    """Make the folders, and print what is wrong. Return the exit code."""
    wrong = make(shared, [pwd.getpwnam(user).pw_uid])
    print("\n".join(wrong)) if wrong else None
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Archives of code on the shared folder, each under its content's digest, written atomically. Runs on the master."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import tarfile
import time
from collections.abc import Sequence
from typing import Any

from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.trusted_files import require_place
from cluster.sync.onhost.content import LINK, Row, digest_of

_KEPT_S = 30 * 86400  # age from which unused archives are removed; jobs have their own copies
_UNFINISHED_S = 86400


def main(shared: str, digest: str, about: dict[str, Any], rows: Sequence[Row], part: str = "") -> int:
    """Store the described code if its archive is there. Report whether it is.

    Args:
        about: content of a job's `code.json`.
        part: name of an archive that has just been sent.
        rows: the rows that it must have.
    """
    try:
        say(answer(shared, digest, about, rows, part))
        return 0
    except OSError as e:
        say({"error": f"{e.filename or shared}: {(e.strerror or str(e)).lower()}"})
        return 0


def folder_in(shared: str) -> str:
    """Return the folder of this user's code. No other user may write to it or read it."""
    return os.path.join(shared, "code", _user())


def archive_path(folder: str, content: str) -> str:
    """Return the path of an archive of code."""
    return os.path.join(folder, f"{content}.tar")


def description_path(folder: str, digest: str) -> str:
    """Return the path of the description of a snapshot, which names its archive."""
    return os.path.join(folder, f"{digest}.json")


def answer(shared: str, digest: str, about: dict[str, Any], rows: Sequence[Row], part: str = "") -> dict[str, Any]:
    """Return the report of `main`: `folder` and `is_there`, or `error`. Raises OSError."""
    folder = _made(shared)
    content = about["content"]
    archive = archive_path(folder, content)
    if part:
        path = os.path.join(folder, part)
        try:
            if trouble := _trouble_of(path, content, rows):
                return {"error": trouble}
            _replace(path, archive)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    is_there = os.path.isfile(archive)
    if is_there:
        os.utime(archive)
        _write(description_path(folder, digest), json.dumps(about, indent=1))
    _forget(folder)
    return {"folder": folder, "is_there": is_there}


def _made(shared: str) -> str:
    """Make the folder, for this user only, and return its path. Raises OSError."""
    above, folder = os.path.join(shared, "code"), folder_in(shared)
    if not os.path.lexists(above):
        os.makedirs(above, exist_ok=True)
        os.chmod(above, 0o1777)
    require_place(above, f": as root, 'chown root {above}'")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    if os.path.islink(folder) or os.stat(folder).st_uid != os.geteuid():
        raise OSError(0, "is another user's, and code would be run from there: remove it", folder)
    return folder


def _trouble_of(path: str, content: str, rows: Sequence[Row]) -> str:
    """Return why the archive does not have exactly these rows and this content, "" if it does."""
    if digest_of(rows) != content:
        return "what it consists of did not arrive as it was sent"
    wanted = {str(row[0]): (row[1], row[2], row[3]) for row in rows}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                kind, size, digest = wanted.pop(member.name, ("", 0, ""))
                if kind == LINK:
                    found = f"-> {member.linkname}" if member.issym() else ""
                else:
                    file = archive.extractfile(member) if member.isreg() else None
                    found = hashlib.sha256(file.read()).hexdigest() if file else ""
                if not found or found != digest or member.size != size:
                    return f"{member.name!r} did not arrive as it was sent"
    except tarfile.TarError as e:
        return f"the archive did not arrive whole: {e}"
    return f"{len(wanted)} of {len(rows)} files did not arrive" if wanted else ""


def _replace(path: str, place: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(path, place)


def _write(path: str, text: str) -> None:
    """Write a file atomically, for this user only."""
    part = f"{path}.{os.getpid()}.part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    os.replace(part, path)


def _forget(folder: str) -> None:
    """Remove archives that were not used for a long time, and unfinished ones."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            age = time.time() - os.lstat(path).st_mtime
            if age > (_UNFINISHED_S if name.endswith(".part") else _KEPT_S):
                os.unlink(path)


def _user() -> str:
    """Return this user's name, or its number if it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())

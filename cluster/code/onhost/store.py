"""Store of code on a host: archives that never change, each named by its content's digest. Runs on every host."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Sequence
from typing import Any

from cluster.code.onhost.content import LINK, Row, digest_of
from cluster.code.onhost.unpack import Damaged, unpack
from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.trusted_files import require_own

FOLDER = "~/.cache/dlami-cluster/code"
OLD_COPIES = "jobs"  # in it: working copies of jobs that an older version started
_KEPT_S = 30 * 86400  # age from which unused code is removed; each job has its own archive
_UNFINISHED_S = 86400


def main(digest: str, about: dict[str, Any], rows: Sequence[Row], part: str = "", is_read: bool = False) -> int:
    """Store the described code if its archive is there. Report whether it is.

    Args:
        about: content of a job's `code.json`.
        part: name of an archive that has just been sent.
        rows: the rows that it must have.
        is_read: also unpack it, so that its programs can be read.
    """
    try:
        say(answer(digest, about, rows, part, is_read=is_read))
    except OSError as e:
        say({"error": f"{e.filename or FOLDER}: {(e.strerror or str(e)).lower()}"})
    return 0


def archive_path(folder: str, content: str) -> str:
    """Return the path of an archive of code."""
    return os.path.join(folder, f"{content}.tar")


def description_path(folder: str, digest: str) -> str:
    """Return the path of the description of a snapshot, which names its archive."""
    return os.path.join(folder, f"{digest}.json")


def answer(
    digest: str, about: dict[str, Any], rows: Sequence[Row], part: str = "", *, is_read: bool = False
) -> dict[str, Any]:
    """Return the report of `main`: `folder` and `is_there`, or `error`. Raises OSError."""
    folder = store_folder()
    content = about["content"]
    archive = archive_path(folder, content)
    if part:
        path = os.path.join(folder, part)
        try:
            if trouble := _trouble_of(path, content, rows):
                return {"error": trouble}
            _flush(path)
            put(path, archive)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    is_there = holds(archive)
    if is_there and is_read:
        try:
            unpack(archive, content, os.path.join(folder, content))
            os.utime(os.path.join(folder, content))  # it is used now
        except Damaged:
            os.unlink(archive)
            is_there = False
    if is_there:
        _write(description_path(folder, digest), json.dumps(about, indent=1))
    forget(folder)
    return {"folder": folder, "is_there": is_there}


def store_folder() -> str:
    """Return the store's folder, made for this user only. Raises OSError if another user can write to it."""
    folder = os.path.expanduser(FOLDER)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    require_own(folder)
    return folder


def holds(archive: str) -> bool:
    """Return True if the store has this archive, which then counts as used now."""
    if not os.path.isfile(archive):
        return False
    os.utime(archive)
    return True


def put(path: str, archive: str) -> None:
    """Give a complete file the archive's name, read-only."""
    os.chmod(path, 0o400)
    os.replace(path, archive)


def forget(folder: str) -> None:
    """Remove code that was not used for a long time, and unfinished files. Copies of older jobs stay."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            age = time.time() - found.st_mtime
            if name == OLD_COPIES or age <= (_UNFINISHED_S if name.endswith("part") else _KEPT_S):
                continue
            shutil.rmtree(path, ignore_errors=True) if stat.S_ISDIR(found.st_mode) else os.unlink(path)


def _trouble_of(path: str, content: str, rows: Sequence[Row]) -> str:
    """Return why the archive does not match these rows and this digest, or "" if it matches."""
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


def _flush(path: str) -> None:
    """Wait until a file is on disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(path: str, text: str) -> None:
    """Write a file atomically, for this user only."""
    part = f"{path}.{os.getpid()}.part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    os.replace(part, path)

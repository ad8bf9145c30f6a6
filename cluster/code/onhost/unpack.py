"""Unpacking of an archive of code into a folder that appears once it is complete. Runs on every host."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tarfile
from concurrent.futures import Future, ThreadPoolExecutor

from cluster.code.onhost.content import FILE, LINK, PROGRAM, TIME, Row, digest_of, link_digest

_WRITERS = 16  # a shared folder takes milliseconds per file, but many at once


class Damaged(Exception):
    """Error: an archive does not have the content whose name it has."""


def unpack(archive: str, content: str, folder: str) -> None:
    """Unpack an archive of this content into a folder, unless the folder is there. Raises Damaged, OSError.

    The folder appears once all of it is written and its digest is right.
    """
    if os.path.isdir(folder):
        return
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    fresh = f"{folder}.{os.urandom(4).hex()}.part"
    os.mkdir(fresh, 0o700)
    try:
        if digest_of(_write_all(archive, fresh)) != content:
            raise Damaged(f"{archive} is damaged")
        with contextlib.suppress(OSError):  # another process was first
            os.rename(fresh, folder)
        if not os.path.isdir(folder):
            raise OSError(0, "could not be made", folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _write_all(archive: str, folder: str) -> list[Row]:
    """Write an archive's files below a folder. Return their rows."""
    rows: list[Row] = []
    try:
        with tarfile.open(archive, "r:") as opened, ThreadPoolExecutor(_WRITERS) as writers:
            waiting: list[Future[None]] = []
            for member in opened:
                file = opened.extractfile(member) if member.isreg() else None
                data = file.read() if file else b""
                rows.append(_row(member, data))
                waiting.append(writers.submit(_write, os.path.join(folder, member.name), member, data))
                if len(waiting) > 2 * _WRITERS:
                    waiting.pop(0).result()
            for one in waiting:
                one.result()
    except tarfile.TarError as e:
        raise Damaged(f"{archive} is damaged: {e}") from None
    return rows


def _row(member: tarfile.TarInfo, data: bytes) -> Row:
    if member.issym():
        return [member.name, LINK, 0, link_digest(member.linkname)]
    kind = PROGRAM if member.mode & 0o100 else FILE
    return [member.name, kind, len(data), hashlib.sha256(data).hexdigest()]


def _write(path: str, member: tarfile.TarInfo, data: bytes) -> None:
    """Write a file or link of the archive. No member lies behind a link: git tracks none there."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if member.issym():
        os.symlink(member.linkname, path)
        return
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, member.mode), "wb") as file:
        file.write(data)
    os.utime(path, (TIME, TIME))

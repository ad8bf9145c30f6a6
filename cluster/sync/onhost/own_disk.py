"""Code on a host's own disk: for each job a copy in which its ranks run. Runs on every host.

A copy is made once, atomically, and then belongs to the job: files that its program writes beside its code stay, and
the job's next attempt finds them. If the job has written nothing into the copy, the copy is kept when the job ends. It
is renamed for the next job of the same content. The host from which the others get the code keeps an archive, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator

from cluster.copying.onhost.unpack import Unpacking
from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.part import open_part, part_of
from cluster.sync.onhost.content import FILE, LINK, PROGRAM, TIME, Row, digest_of, link_digest

FOLDER = "~/.cache/dlami-cluster/code"
_KEPT_S = 30 * 86400  # since a job last began with it
_UNFINISHED_S = 86400
_MOST_KEPT = 2  # copies kept for a next job
_CACHE = "__pycache__"  # Python's compiled modules, which follow from the content
_HOSTFILE = "hosts"  # a link of that name is ours (`cluster/launch/onhost/rank.py`)


def main(verb: str, content: str, job: str, archive: str = "") -> int:
    """Run `source` or `keep`.

    `source` provides the archive, to pass it on, and the job's copy. `keep` keeps the copy of a job that has ended.

    Args:
        job: the job's id, "" for none.
        archive: path from which this host may copy the archive.
    """
    top = os.path.expanduser(FOLDER)
    try:
        if verb == "keep":
            say({"is_kept": _keep(top, content, job)})
        else:
            _be_source(top, content, job, archive)
            say({})
    except OSError as e:
        say({"error": f"{e.filename or FOLDER}: {(e.strerror or str(e)).lower()}"})
    _forget(top)
    return 0


def archive_in(top: str, content: str) -> str:
    """Return the path of the archive in the folder of code."""
    return os.path.join(top, f"{content}.tar")


def copy_in(top: str, job: str) -> str:
    """Return the path of the copy in which this job's ranks run."""
    return os.path.join(top, "jobs", job)


def kept_in(top: str, content: str) -> str:
    """Return the path of the copy that is kept for the next job."""
    return os.path.join(top, "kept", content)


def own_archive(content: str) -> str:
    """Return the path of the archive on this host's own disk."""
    return archive_in(os.path.expanduser(FOLDER), content)


def _be_source(top: str, content: str, job: str, archive: str) -> None:
    own = archive_in(top, content)
    if not _is_whole(own):
        _copy(archive, own)
    if job and not os.path.isdir(copy_in(top, job)):
        unpack(own, copy_in(top, job))


def unpack(archive: str, folder: str) -> None:
    """Unpack an archive into a folder, atomically."""
    unpacking = Unpacking(folder)
    try:
        unpacking.finish(archive)
    finally:
        unpacking.abandon()


def _is_whole(archive: str) -> bool:
    """Return True if the archive is there and unchanged since it was made."""
    try:
        s = os.lstat(archive)
    except OSError:
        return False
    return stat.S_ISREG(s.st_mode) and s.st_mtime == TIME


def _copy(archive: str, place: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part_of(place))
    with open(archive, "rb") as source, open(open_part(place), "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    os.utime(part_of(place), (TIME, TIME))
    os.replace(part_of(place), place)


def _keep(top: str, content: str, job: str) -> bool:
    """Keep the job's copy for the next job if it is unchanged to the last byte. Return True if it is kept."""
    place, kept = copy_in(top, job), kept_in(top, content)
    if os.path.lexists(kept) or not os.path.isdir(place) or not _is_as_brought(place, content):
        return False
    os.utime(place)
    os.makedirs(os.path.dirname(kept), mode=0o700, exist_ok=True)
    os.rename(place, kept)
    _forget_older(os.path.dirname(kept))
    return True


def _forget_older(kept: str) -> None:
    """Remove all kept copies but the newest ones."""
    for path in sorted((os.path.join(kept, name) for name in os.listdir(kept)), key=os.path.getmtime)[:-_MOST_KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def _is_as_brought(place: str, content: str) -> bool:
    """Return True if the copy is unchanged. Then also remove the files that every run leaves."""
    rows: list[Row] = []
    left: list[str] = []
    unread: list[OSError] = []
    for top, folders, names in os.walk(place, onerror=unread.append):
        if _CACHE in folders:
            folders.remove(_CACHE)
            left.append(os.path.join(top, _CACHE))
        if not (folders or names):
            return False
        for path in (os.path.join(top, name) for name in (*names, *folders)):
            if os.path.basename(path) == _HOSTFILE and os.path.islink(path) and os.path.isabs(os.readlink(path)):
                left.append(path)
            elif os.path.islink(path) or not os.path.isdir(path):
                rows.append(_row(path, os.path.relpath(path, place)))
    if unread or digest_of(rows) != content:
        return False
    for path in left:
        os.unlink(path) if os.path.islink(path) else shutil.rmtree(path)
    return True


def _row(path: str, name: str) -> Row:
    s = os.lstat(path)
    if stat.S_ISLNK(s.st_mode):
        return [name, LINK, 0, link_digest(os.readlink(path))]
    if not stat.S_ISREG(s.st_mode):
        return [name, "", 0, ""]
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    return [name, PROGRAM if s.st_mode & 0o100 else FILE, s.st_size, digest]


def _forget(top: str) -> None:
    """Remove copies that no job has used for a long time, and unfinished ones."""
    for path in _all_in(top):
        with contextlib.suppress(OSError):
            s = os.lstat(path)
            since = s.st_ctime if stat.S_ISREG(s.st_mode) else s.st_mtime
            if time.time() - since > (_UNFINISHED_S if path.endswith("part") else _KEPT_S):
                os.unlink(path) if stat.S_ISREG(s.st_mode) else shutil.rmtree(path, ignore_errors=True)


def _all_in(top: str) -> Iterator[str]:
    parts = ("jobs", "kept")
    for folder in (top, *(os.path.join(top, part) for part in parts)):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name not in parts:
                yield os.path.join(folder, name)

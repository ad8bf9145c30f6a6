"""File or folder as a list of entries, and what of it a host lacks. Runs on every host."""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

_KINDS = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l"}


class FileEntry(NamedTuple):  # every host starts this program anew, and dataclasses take a quarter of that time
    """Entry of a copy: one file, folder or link."""

    path: str  # below the top; "" is the top itself
    kind: str  # "f", "d" or "l"
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int = 0
    target: str = ""  # of a link

    def row(self) -> list[Any]:
        """Return the entry as a list for JSON."""
        return list(self)


def scan(top: str, excludes: Sequence[str] = ()) -> tuple[list[FileEntry], list[str]]:
    """Return the entries below `top` that are not excluded, folders before their contents, and the paths left out.

    A pattern is one name, or a path below the top, with shell wildcards. Sockets and devices are left out. Raises
    OSError if something cannot be read.
    """
    first = _entry(top, "")
    if first is None:
        raise OSError(0, "is neither a file nor a folder", top)
    entries, left_out = [first], []
    if first.kind == "d":
        for path, below in _walk(top, ""):
            if is_excluded(below, excludes) or (entry := _entry(path, below)) is None:
                left_out.append(below)
                continue
            entries.append(entry)
        kept = {e.path for e in entries}
        entries = [e for e in entries if not e.path or os.path.dirname(e.path) in kept]
    return entries, [x for x in left_out if os.path.dirname(x) in {e.path for e in entries}]


def listed(
    rows: Sequence[Sequence[Any]] | None, top: str, excludes: Sequence[str], *, foreseen: bool
) -> tuple[list[FileEntry], list[str]]:
    """Return the entries to copy, and the paths left out.

    Without `rows`, scan `top`. With `rows` and `foreseen`, return exactly the rows, since their files are not at `top`
    yet. Otherwise read the rows' entries at `top`. Raises OSError if one of them does not match its row.
    """
    if rows is None:
        return scan(top, excludes)
    if foreseen:
        return [FileEntry(*row) for row in rows], []
    sent = {entry.path: entry for entry in (FileEntry(*row) for row in rows)}
    there = [e for e in scan(top)[0] if e.path in sent]
    for path in sent.keys() - {e.path for e in there if _content(e) == _content(sent[e.path])}:
        raise OSError(0, "is not there as it was sent: copy again when nothing else writes it", join(top, path))
    return there, []


def obstacle(entries: Sequence[FileEntry], top: str) -> str | None:
    """Return why the copy cannot go to this host, None if it can.

    The copy never replaces a device, pipe or socket, nor a folder by something else. It does not follow a link at the
    top.
    """
    for entry in entries:
        path = join(top, entry.path)
        try:
            there = os.lstat(path).st_mode
        except OSError:
            continue
        kind = _KINDS.get(stat.S_IFMT(there))
        if kind is None:
            what = "pipe" if stat.S_ISFIFO(there) else "socket" if stat.S_ISSOCK(there) else "device"
            return f"{path} is a {what} here, which a copy does not replace: name another DST, or remove it"
        if entry.path == "" and kind == "l" and entry.kind != "l":
            return (
                f"{path} is a link here to {os.readlink(path)}, and a copy follows none: name that place, or remove it"
            )
        if entry.kind != "d" and kind == "d":
            into = "end DST with a slash to copy into it" if entry.path == "" else "name another DST, or remove it"
            return f"{path} is a folder here and none in the source: {into}"
        if entry.kind == "d" and kind != "d":
            return f"{path} is no folder here, but one in the source: name another DST, or remove it"
    return None


def missing(entries: Sequence[FileEntry], top: str) -> list[int]:
    """Return the numbers of files that are missing here or differ in size or time.

    Links and folders are not counted: they are set in any case.
    """
    return [n for n, e in enumerate(entries) if e.kind == "f" and not _is_same(e, join(top, e.path))]


def surplus(entries: Sequence[FileEntry], top: str, excludes: Sequence[str] = ()) -> list[str]:
    """Return the paths below `top` that are not among the entries, the deepest first.

    Excluded names are not counted, nor are the folders that hold one.
    """
    if not os.path.isdir(top) or os.path.islink(top):
        return []
    there = [below for _, below in _walk(top, "")]
    kept = {e.path for e in entries}
    for below in there:
        if is_excluded(below, excludes):
            kept.update(_with_folders(below))
    found = [below for below in there if below not in kept]
    return sorted(found, key=lambda p: (-p.count("/"), p))


def join(top: str, below: str) -> str:
    """Return the path of an entry below `top`."""
    return os.path.join(top, below) if below else top


def _with_folders(below: str) -> Iterator[str]:
    """Yield a path and each of the folders above it, without the top."""
    while below:
        yield below
        below = os.path.dirname(below)


def _walk(top: str, below: str) -> Iterator[tuple[str, str]]:
    with os.scandir(top) as found:
        names = sorted(found, key=lambda e: e.name)
    for entry in names:
        path = f"{below}/{entry.name}" if below else entry.name
        yield entry.path, path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, path)


def _entry(path: str, below: str) -> FileEntry | None:
    s = os.lstat(path)
    kind = _KINDS.get(stat.S_IFMT(s.st_mode))
    if not kind:
        return None
    return FileEntry(
        below,
        kind,
        stat.S_IMODE(s.st_mode),
        s.st_uid,
        s.st_gid,
        s.st_mtime_ns,
        s.st_size if kind == "f" else 0,
        os.readlink(path) if kind == "l" else "",
    )


def _is_same(entry: FileEntry, path: str) -> bool:
    try:
        s = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(s.st_mode) and (s.st_size, s.st_mtime_ns) == (entry.size, entry.mtime_ns)


def _content(entry: FileEntry) -> tuple[str, int, str]:
    """Return the fields of an entry that are the same on every file system and for every user."""
    return entry.kind, entry.size, entry.target


def is_excluded(below: str, excludes: Sequence[str]) -> bool:
    """Return True if a pattern names the path, or a name on it."""
    parts = below.split("/")
    return any(fnmatch.fnmatchcase(below, x) or any(fnmatch.fnmatchcase(p, x) for p in parts) for x in excludes)

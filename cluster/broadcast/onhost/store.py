"""Stream of a copy, read from files and written to files. Runs on every host.

The stream is the contents of the files that some host needs, one after the other, cut into chunks of equal length. A
file shorter than 8 KiB takes 8 KiB of the stream, of which only its own bytes are sent. If all hosts that need a file
have its beginning, the stream has only the rest of it.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence

from cluster.broadcast.onhost.errors import Changed
from cluster.broadcast.onhost.file_tree import FileEntry, join
from cluster.ssh.onhost.partial_file import open_part, part_of

CHUNK = 256 << 10  # a hop sends a chunk on once it is complete: 16 hops of 10 ms at 200 Mbit/s
_HOLE = 64 << 10  # zeros of this length are not written: the file gets a hole
_ZEROS = bytes(CHUNK)
# Least share of the stream per file, so that one chunk does not hold a thousand small files to create.
_LEAST = CHUNK // 32


class Stream:
    """Layout of the stream: the file and the offset of each chunk."""

    def __init__(
        self, entries: Sequence[FileEntry], files: Sequence[int], begins: Mapping[int, int] | None = None
    ) -> None:
        self.files = [(n, entries[n]) for n in files]
        self.begins = dict(begins or {})  # where in a file its part of the stream begins, if not at 0
        self._starts, at = [], 0
        for n, entry in self.files:
            self._starts.append(at)
            at += max(_LEAST, entry.size - self.begins.get(n, 0))
        self.size = at
        self.num_chunks = -(-at // CHUNK)

    def parts(self, chunk: int) -> Iterator[tuple[int, FileEntry, int, int]]:
        """Yield the pieces of a chunk: number of the file, its entry, offset in it, length."""
        at, end = chunk * CHUNK, min(self.size, (chunk + 1) * CHUNK)
        place = max(0, bisect.bisect_right(self._starts, at) - 1)
        while at < end:
            number, entry = self.files[place]
            offset = self.begins.get(number, 0) + at - self._starts[place]
            ends = min(end, self._starts[place + 1] if place + 1 < len(self.files) else self.size)
            length = min(ends - at, entry.size - offset)
            if length > 0 or offset == entry.size == 0:
                yield number, entry, offset, length
            at, place = ends, place + 1


class ChunkReader:
    """Reader of chunks from complete files."""

    def __init__(self, stream: Stream, top: str) -> None:
        self._stream, self._top = stream, top
        self._open: tuple[str, int] | None = None

    def read(self, chunk: int) -> bytes:
        """Return a chunk's bytes. Raises Changed if a file is now too short, and OSError if one cannot be read."""
        pieces = [self._piece(entry, offset, length) for _, entry, offset, length in self._stream.parts(chunk)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Close the open file, if there is one."""
        if self._open:
            os.close(self._open[1])
            self._open = None

    def _piece(self, entry: FileEntry, offset: int, length: int) -> bytes:
        if not self._open or self._open[0] != entry.path:
            self.close()
            self._open = (entry.path, os.open(self.path_of(entry), os.O_RDONLY | os.O_CLOEXEC))
        data = os.pread(self._open[1], length, offset)
        if len(data) != length:
            raise Changed(self.path_of(entry))
        return data

    def path_of(self, entry: FileEntry) -> str:
        """Return the path from which a file of the stream is read."""
        return join(self._top, entry.path)


class CopySource(ChunkReader):
    """Reader of the copy's source. Raises Changed if a file differs from its listing before its last byte is read."""

    def __init__(self, stream: Stream, top: str) -> None:
        super().__init__(stream, top)
        self._began: tuple[int, ...] = ()

    def _piece(self, entry: FileEntry, offset: int, length: int) -> bytes:
        is_same_file = self._open is not None and self._open[0] == entry.path
        try:
            data = super()._piece(entry, offset, length)
        except FileNotFoundError:
            raise Changed(self.path_of(entry)) from None
        assert self._open
        now = os.fstat(self._open[1])
        if not is_same_file:
            self._began = _state(now)
        if (now.st_size, now.st_mtime_ns) != (entry.size, entry.mtime_ns) or _state(now) != self._began:
            raise Changed(self.path_of(entry))
        return data


class CopyStore(ChunkReader):
    """Unfinished copy: complete files get their names, and chunks are read again for the next host."""

    def __init__(self, stream: Stream, top: str, wanted: set[int]) -> None:
        super().__init__(stream, top)
        self._wanted = wanted
        self._writing: tuple[FileEntry, int] | None = None
        self.num_files = self.num_bytes = 0

    def write(self, chunk: int, data: bytes | bytearray) -> None:
        """Write a chunk to its files. Raises OSError if there is no room or no permission."""
        at = 0
        for number, entry, offset, length in self._stream.parts(chunk):
            if number in self._wanted:
                if offset == self._stream.begins.get(number, 0):
                    self._begin(entry, offset)
                assert self._writing and self._writing[0] is entry
                _write(self._writing[1], data[at : at + length] if length < len(data) else data, offset)
                self.num_bytes += length
                if offset + length == entry.size:
                    self._finish()
            at += length

    def abandon(self, *, keep: bool = False) -> None:
        """Remove an incomplete file, or with `keep` leave it for a copy that resumes it."""
        if self._writing:
            os.close(self._writing[1])
            if not keep:
                with contextlib.suppress(OSError):
                    os.unlink(self._part(self._writing[0]))
            self._writing = None
        self.close()

    def path_of(self, entry: FileEntry) -> str:
        """Return the file's path, or the path of its partial file while it is written."""
        writing = self._writing
        return self._part(entry) if writing and writing[0] is entry else super().path_of(entry)

    def _part(self, entry: FileEntry) -> str:
        return part_of(join(self._top, entry.path))

    def _begin(self, entry: FileEntry, kept: int = 0) -> None:
        fd = open_part(join(self._top, entry.path))
        if os.fstat(fd).st_size > kept:  # ext4 flushes a file at once that is truncated to 0, even an empty one
            os.ftruncate(fd, kept)
        os.ftruncate(fd, entry.size)  # holes at its end can be read before the rest is written
        self._writing = (entry, fd)

    def _finish(self) -> None:
        assert self._writing
        entry, fd = self._writing
        path = join(self._top, entry.path)
        set_owner(fd, entry)
        os.fchmod(fd, entry.mode)
        os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        if os.path.isdir(path) and not os.path.islink(path):
            raise OSError(0, "is a folder here and a file there", path)
        os.replace(self._part(entry), path)
        os.close(fd)
        self._writing = None
        self.num_files += 1


def _state(now: os.stat_result) -> tuple[int, ...]:
    """Return the stat fields that change when a file is written, even if its time is set back."""
    return now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino


def make_folders(entries: Sequence[FileEntry], top: str) -> None:
    """Make the folders of a copy and those above it. The copy's own folders stay writable until it is complete."""
    os.makedirs(os.path.dirname(top) or "/", exist_ok=True)
    for entry in entries:
        if entry.kind == "d":
            path = join(top, entry.path)
            if not os.path.isdir(path) or os.path.islink(path):
                if os.path.lexists(path):
                    raise OSError(0, "is no folder here, but one there", path)
                os.mkdir(path, 0o700)


def settle(entries: Sequence[FileEntry], top: str) -> None:
    """Make the links, and restore the folders' owner, mode and time, which writing into them has changed."""
    for entry in entries:
        path = join(top, entry.path)
        if entry.kind == "l" and not (os.path.islink(path) and os.readlink(path) == entry.target):
            part = part_of(path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            os.symlink(entry.target, part)
            os.replace(part, path)
            set_owner(path, entry, follow_symlinks=False)
            os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
    for entry in reversed(entries):
        if entry.kind == "d":
            path = join(top, entry.path)
            set_owner(path, entry)
            os.chmod(path, entry.mode)
            os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))


def remove(surplus: Sequence[str], top: str) -> None:
    """Remove the surplus that the operator agreed to lose, the deepest first. A folder that is not empty stays."""
    for below in surplus:
        path = join(top, below)
        if os.path.isdir(path) and not os.path.islink(path):
            try:
                os.rmdir(path)
            except OSError as e:
                if e.errno != errno.ENOTEMPTY:
                    raise
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def room_problem(entries: Sequence[FileEntry], wanted: Sequence[int], top: str) -> str | None:
    """Return why the wanted files do not fit, None if they do. Files being replaced use space until then."""
    folder = top
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder) or "/"
    room = os.statvfs(folder)
    need, free = sum(entries[n].size for n in wanted), room.f_bavail * room.f_frsize
    need -= sum(_allocated(part_of(join(top, entries[n].path))) for n in wanted)
    return f"no room in {folder}: {need:,} bytes to come, {free:,} free" if need > free else None


def _allocated(path: str) -> int:
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0


def set_owner(file: int | str, entry: FileEntry, *, follow_symlinks: bool = True) -> None:
    """Set the entry's owner if this user is root, and its group if this user is permitted to."""
    s = os.stat(file, follow_symlinks=follow_symlinks)
    if (s.st_uid, s.st_gid) != (entry.uid, entry.gid):
        with contextlib.suppress(PermissionError):
            os.chown(file, entry.uid if os.geteuid() == 0 else -1, entry.gid, follow_symlinks=follow_symlinks)


def is_hole(data: bytes | bytearray) -> bool:
    """Return True if the bytes are all zero."""
    return data == _ZEROS[: len(data)]


def _write(fd: int, data: bytes | bytearray, offset: int) -> None:
    """Write the data, but leave out long runs of zeros: a hole reads as zeros."""
    if len(data) < _HOLE:
        os.pwrite(fd, data, offset)
        return
    view = memoryview(data)
    start = None
    for at in range(0, len(data), _HOLE):
        if data[at] == 0 and is_hole(bytes(view[at : at + _HOLE])):
            if start is not None:
                _write_all(fd, view[start:at], offset + start)
            start = None
        elif start is None:
            start = at
    if start is not None:
        _write_all(fd, view[start:], offset + start)


def _write_all(fd: int, view: memoryview, offset: int) -> None:
    while view:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n

"""Index of the files in an uncompressed tar, built by reading its headers alone.

Python's tarfile takes a damaged header, and an end between two files, for the end of the archive and reports no error.
It is used only for headers that contain more than name, type and size. Source of the format: POSIX.1-2017, pax, "ustar
Interchange Format".
"""

import io
import os
import tarfile
from dataclasses import dataclass

BLOCK = 512
END = bytes(BLOCK)
FILES, FOLDER = (b"0", b"\0", b"7"), b"5"
POSIX = b"ustar\0"


@dataclass(frozen=True)
class TarMember:
    """File inside the archive, as a range of the bytes of the archive's own file."""

    name: str
    offset: int
    size: int


def files_in(file: io.BufferedReader, start: int = 0, size: int | None = None) -> list[TarMember]:
    """Return the files of a tar, or of an inner tar that begins at `start`. Several threads may call it at once.

    Raises:
        tarfile.ReadError: it is damaged, cut off, also between two files, or no tar.
    """
    end = start + (os.fstat(file.fileno()).st_size - start if size is None else size)
    found: list[TarMember] = []
    position = start
    while True:
        header = os.pread(file.fileno(), BLOCK, position) if position + BLOCK <= end else b""
        if header == END:
            return found
        if len(header) < BLOCK:
            raise tarfile.ReadError(f"it is cut off at byte {position - start}")
        if _number(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise tarfile.ReadError(f"no tar header at byte {position - start}")
        kind, name = header[156:157], _name(header)
        length = _number(header[124:136])
        if kind not in (*FILES, FOLDER) or length is None:
            return _any_files_in(file, start, end)
        position += BLOCK
        if kind in FILES and not name.endswith("/"):
            found.append(TarMember(name, position, length))
            position += length + -length % BLOCK


def _number(field: bytes) -> int | None:
    """Parse an octal number; None for any other content."""
    text = field.strip(b" \0")
    return int(text, 8) if text.isdigit() and not text.strip(b"01234567") else None


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == POSIX else b""
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "surrogateescape")


def _any_files_in(file: io.BufferedReader, start: int, end: int) -> list[TarMember]:
    """Return the files of a tar with long names, links and the like, through Python's tarfile."""
    with tarfile.open(fileobj=_Window(file, start, end - start), mode="r:") as tar:
        found = [TarMember(m.name, start + m.offset_data, m.size) for m in tar if m.isfile()]
        if os.pread(file.fileno(), BLOCK, start + tar.offset) != END:  # tarfile treats any damage as the end
            raise tarfile.ReadError(f"it is damaged or cut off at byte {tar.offset}")
        return found


class _Window(io.RawIOBase):
    """File object that exposes a byte range of an open file."""

    def __init__(self, file: io.BufferedReader, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        data = os.pread(self._file.fileno(), left if size < 0 else min(size, left), self._start + self._at)
        self._at += len(data)
        return data

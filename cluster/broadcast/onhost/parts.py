"""Partial files that interrupted copies left, and the offsets from which the next copy resumes. Runs on every host.

A partial file is written from its beginning, so its content is a prefix of the file. Each host claims its own prefix
with a digest. The head, which has the whole file, compares the digests. A file resumes at the end of the shortest
prefix, provided that all hosts that need the file have one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cluster.broadcast.onhost.file_tree import FileEntry, join
from cluster.ssh.onhost.partial_file import part_of

WORTH = 1 << 20  # bytes: a shorter prefix is sent again
_STEP = 64 << 10  # no file system's blocks are longer
_READ = 1 << 20

Claims = list[tuple[int, str]]  # bytes from the beginning, and their SHA-256


class Need(NamedTuple):
    """Needs of one or more hosts: numbers of missing files, and claims for those that all of them have begun."""

    files: set[int]
    parts: dict[int, Claims]

    def merged(self, other: Need) -> Need:
        """Return the needs of both. A file that one of them has no part of is sent from its beginning."""
        bare = (self.files - set(self.parts)) | (other.files - set(other.parts))
        both = {n: [*self.parts.get(n, ()), *other.parts.get(n, ())] for n in {**self.parts, **other.parts}}
        return Need(self.files | other.files, {n: sorted(set(c)) for n, c in both.items() if n not in bare})

    def is_served(self, files: Sequence[int], served: Mapping[int, tuple[int, Claims]]) -> bool:
        """Return True if a stream of these files, resumed at these claims, brings every missing file."""
        return self.files <= set(files) and all(
            set(self.parts.get(n, [(0, "")])) <= set(said) for n, (_, said) in served.items() if n in self.files
        )

    def message(self) -> dict[str, object]:
        """Return the needs as a message for the wire."""
        return {"files": sorted(self.files), "parts": sorted(self.parts.items())}

    @classmethod
    def read(cls, message: dict[str, object]) -> Need:
        """Return the needs from a message received from the wire."""
        parts: Sequence[tuple[int, Sequence[tuple[int, str]]]] = message["parts"]  # type: ignore[assignment]
        return cls(set(message["files"]), {n: [(at, said) for at, said in c] for n, c in parts})  # type: ignore[call-overload]


def claims(entries: Sequence[FileEntry], wanted: Sequence[int], top: str) -> dict[int, Claims]:
    """Return the claims for the wanted files of which this host has a usable partial file."""
    found = {}
    for n in wanted:
        path = part_of(join(top, entries[n].path))
        at = _prefix(path, entries[n].size) if entries[n].size > WORTH else 0
        if at >= WORTH and (digests := _digests(path, [at])):
            found[n] = [(at, digests[at])]
    return found


def starts(
    need: Need, entries: Sequence[FileEntry], path_of: Callable[[FileEntry], str]
) -> dict[int, tuple[int, Claims]]:
    """Return the offset at which each file resumes, and the claims that it is based on. Runs on the head.

    Files with a claim that does not match the source are left out: they start at their beginning.
    """
    found = {}
    for n, said in need.parts.items():
        digests = _digests(path_of(entries[n]), sorted({at for at, _ in said}))
        if all(digests.get(at) == digest for at, digest in said):
            found[n] = (min(at for at, _ in said), said)
    return found


def _prefix(path: str, size: int) -> int:
    """Return how many bytes of a partial file are certainly valid.

    The prefix ends at the first hole. One block before it is not counted, since it may be half-written.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        hole = min(os.lseek(fd, 0, os.SEEK_HOLE), size)
    except OSError:
        return 0
    finally:
        os.close(fd)
    return max(0, hole - _STEP) // _STEP * _STEP


def _digests(path: str, lengths: Sequence[int]) -> dict[int, str]:
    """Return the SHA-256 of the file's first bytes for each of these lengths, which are in ascending order.

    Lengths beyond the end of the file are left out.
    """
    found, at, digest = {}, 0, hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for length in lengths:
                while at < length and (data := file.read(min(_READ, length - at))):
                    digest.update(data)
                    at += len(data)
                if at == length:
                    found[length] = digest.hexdigest()
    except OSError:
        return {}
    return found

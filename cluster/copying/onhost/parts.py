"""What interrupted copies left of a file, and from where the next one goes on with it. Runs on every host.

A part is written from its beginning, so what is there of it is a prefix. Each host claims its own with a digest; the
head, which has the whole file, compares. A file goes on where the shortest prefix ends, if all who need it have one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cluster.copying.onhost.tree import Entry, join
from cluster.ssh.onhost.part import part_of

WORTH = 1 << 20  # bytes: less is sent again
_STEP = 64 << 10  # no file system's blocks are longer
_READ = 1 << 20

Claims = list[tuple[int, str]]  # bytes from the beginning, and their SHA-256


class Need(NamedTuple):
    """What some hosts need: files by their number, and of which of them all those hosts have a beginning."""

    files: set[int]
    parts: dict[int, Claims]

    def merged(self, other: Need) -> Need:
        """What both need. A file that one needs without having any of it begins at its beginning."""
        bare = (self.files - set(self.parts)) | (other.files - set(other.parts))
        both = {n: [*self.parts.get(n, ()), *other.parts.get(n, ())] for n in {**self.parts, **other.parts}}
        return Need(self.files | other.files, {n: sorted(set(c)) for n, c in both.items() if n not in bare})

    def is_served(self, files: Sequence[int], served: Mapping[int, tuple[int, Claims]]) -> bool:
        """Whether a stream of these files, which goes on by these claims, brings all that is needed."""
        return self.files <= set(files) and all(
            set(self.parts.get(n, [(0, "")])) <= set(said) for n, (_, said) in served.items() if n in self.files
        )

    def message(self) -> dict[str, object]:
        """As it goes over the wire."""
        return {"files": sorted(self.files), "parts": sorted(self.parts.items())}

    @classmethod
    def read(cls, message: dict[str, object]) -> Need:
        """From the wire."""
        parts: Sequence[tuple[int, Sequence[tuple[int, str]]]] = message["parts"]  # type: ignore[assignment]
        return cls(set(message["files"]), {n: [(at, said) for at, said in c] for n, c in parts})  # type: ignore[call-overload]


def claims(entries: Sequence[Entry], wanted: Sequence[int], top: str) -> dict[int, Claims]:
    """What is here of the files that are wanted."""
    found = {}
    for n in wanted:
        path = part_of(join(top, entries[n].path))
        at = _prefix(path, entries[n].size) if entries[n].size > WORTH else 0
        if at >= WORTH and (digests := _digests(path, [at])):
            found[n] = [(at, digests[at])]
    return found


def starts(need: Need, entries: Sequence[Entry], path_of: Callable[[Entry], str]) -> dict[int, tuple[int, Claims]]:
    """The head's answer: where each file of which all have a beginning goes on, and the claims that it goes by."""
    found = {}
    for n, said in need.parts.items():
        digests = _digests(path_of(entries[n]), sorted({at for at, _ in said}))
        if all(digests.get(at) == digest for at, digest in said):
            found[n] = (min(at for at, _ in said), said)
    return found


def _prefix(path: str, size: int) -> int:
    """How much there surely is of a part: up to its first hole, less what may be one half-written block."""
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
    """The SHA-256 of a file's first bytes, for each of these lengths, shortest first; what it is too short for not."""
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

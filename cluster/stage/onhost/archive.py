"""Unpacking of an archive as it arrives: only below one folder, never through its links, up to a maximum size."""

from __future__ import annotations

import posixpath
import tarfile
from typing import Any

_TIMES = 64  # largest ratio of contents to archive; text compresses ten to twenty times
_SMALL = 64 << 20  # bytes of contents that any archive may have
_MEMBER = 1024  # least bytes counted per member: millions of empty files are a burden, too


def unpack(stream: Any, size: int, folder: str) -> None:
    """Unpack a tar, compressed or not, into a folder. Raises OSError and tarfile.TarError.

    Args:
        size: bytes of the archive, which limit the size of its contents.
    """
    left, links = max(_SMALL, _TIMES * size), set()
    with tarfile.open(fileobj=stream, mode="r|*") as tar:
        for member in tar:
            left -= _MEMBER + member.size
            if left < 0:
                raise OSError(
                    f"it becomes more than {max(_SMALL, _TIMES * size):,} bytes from {size:,}: "
                    "stage it without --untar and unpack it by hand if that is right"
                )
            name = posixpath.normpath(member.name)
            if any(above in links for above in _with_folders(name)):
                raise OSError(f"its member {member.name!r} is written through a link of its own")
            if member.issym() or member.islnk():
                links.add(name)
            tar.extract(member, folder, filter="data")


def _with_folders(name: str) -> list[str]:
    """Return a path and all the folders above it."""
    found = [name]
    while "/" in name.strip("/"):
        name = posixpath.dirname(name)
        found.append(name)
    return found

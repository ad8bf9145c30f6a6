"""File paths for S3 keys: each key gets its own path below the folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cluster.ssh.onhost.partial_file import is_part

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_LONGEST = 255  # bytes of a name on every file system that we know


class Prefix(NamedTuple):
    """Requested part of a bucket."""

    listed: str  # beginning of all keys
    above: str  # part of each key that is left out of the file's path

    @classmethod
    def of(cls, text: str) -> Prefix:
        """Return the prefix for a text. `train` and `train/` are a folder, `train*` is the beginning of names."""
        if text.endswith("*"):
            return cls(text[:-1], text[:-1].rpartition("/")[0] + "/" if "/" in text else "")
        folder = text if text.endswith("/") or not text else f"{text}/"
        return cls(folder, folder)


def suffix_of(key: str) -> str:
    """Return the suffix that makes the key an archive; "" for any other key."""
    name = key.rpartition("/")[2]
    return next((s for s in TARS if name.endswith(s) and name != s), "")


def digest_of(keys: Iterable[str]) -> str:
    """Return a digest of the keys, independent of their order."""
    return hashlib.sha256("\0".join(sorted(keys)).encode(errors="surrogatepass")).hexdigest()[:16]


def places(keys: Iterable[str], above: str, *, untar: bool = False) -> tuple[dict[str, str], dict[str, str]]:
    """Return each key's path below the folder, and the reasons for the keys that have none.

    Keys that end in a slash are not files. With `untar` an archive's path is that of its unpacked folder.
    """
    found: dict[str, str] = {}
    refused: dict[str, str] = {}
    for key in keys:
        if key.endswith("/"):
            continue
        below = key[len(above) :]
        path = below[: len(below) - len(suffix_of(key))] if untar else below
        if why := _why_no_path(below) or _why_no_path(path):
            refused[key] = why
        else:
            found[key] = path
    for key, why in _meetings(found).items():
        refused[key] = why
        del found[key]
    return found, refused


def _why_no_path(below: str) -> str:
    """Return why a file cannot have this path, "" if it can."""
    names = below.split("/")
    if ".." in names:
        return "'..' in it leads out of the folder"
    if "" in names or "." in names:
        return "it has an empty name or '.' between slashes, which no file system tells from none"
    if "\0" in below:
        return "no file's name has a zero byte in it"
    try:
        longest = max(len(os.fsencode(name)) for name in names)
    except UnicodeEncodeError:
        return "it is no text"
    if longest > _LONGEST:
        return f"a name in it has {longest} bytes, and no file's may have more than {_LONGEST}"
    return "it is called like our own unfinished files" if is_part(names[-1]) else ""


def _meetings(found: Mapping[str, str]) -> dict[str, str]:
    """Return the keys that would be written to the place of another key, with a text that names the other."""
    first: dict[str, str] = {}
    met: dict[str, str] = {}
    folders: dict[str, str] = {}
    for key, path in found.items():
        if path in first:
            met[key], met[first[path]] = _meets(first[path]), _meets(key)
        first.setdefault(path, key)
        at = path.rfind("/")
        while at > 0 and path[:at] not in folders:
            folders[path[:at]] = key
            at = path.rfind("/", 0, at)
    return {**met, **{key: _meets(folders[path]) for key, path in found.items() if path in folders}}


def _meets(other: str) -> str:
    return f"it would be in the same place as {other}"

"""Cache of the secret scan: files that are unchanged since the last scan are not read again, as in git's index."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster import secret_scan
from cluster.files import write_atomically
from cluster.last_run import remove_older
from cluster.user_folders import cache_folder

_KEPT_S = 90 * 24 * 3600
_SETTLED_NS = 2_000_000_000  # a file that changed so recently may change again with the same times


class Remembered:
    """Cache of the files of a folder that were found harmless: their digests, by path, size, times and inode."""

    def __init__(self, root: Path) -> None:
        rules = Path(secret_scan.__file__).read_bytes()  # newer rules need a new scan
        self._path = cache_folder() / "code" / hashlib.sha256(os.fsencode(root) + b"\0" + rules).hexdigest()[:24]
        self._known = _read(self._path)
        self._seen: dict[str, list[Any]] = {}

    def digest_of(self, name: str, s: os.stat_result) -> str:
        """Return the file's digest, "" if the file has to be read."""
        known = self._known.get(name)
        if known and known[0] == _state(s):
            self._seen[name] = known
            return str(known[1])
        return ""

    def note(self, name: str, s: os.stat_result, digest: str) -> None:
        """Add a file that was read, with its state before that."""
        if time.time_ns() - max(s.st_mtime_ns, s.st_ctime_ns) > _SETTLED_NS:
            self._seen[name] = [_state(s), digest]

    def keep(self) -> None:
        """Write the cache for the next scan. Ignores an OSError."""
        if self._seen == self._known:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_older(self._path.parent, _KEPT_S)
            write_atomically(self._path, json.dumps(self._seen), mode=0o600)


def _state(s: os.stat_result) -> list[int]:
    return [s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino, s.st_dev]


def _read(path: Path) -> Mapping[str, Any]:
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}

"""Cache of ended jobs, so that a search for active jobs reads only the records that have changed.

It is a file in this user's cache folder on the master. A job that is resumed changes its folder, and is read again.
"""

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from cluster.files import write_atomically
from cluster.user_folders import cache_folder

_SETTLED_S = 60.0  # a folder that changed more recently may change again without another time of change


class EndedJobs:
    """Cache of ended jobs by id, each with the state of the job's folder when its record was read."""

    def __init__(self, folder: Path) -> None:
        name = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]
        self._file = cache_folder() / f"ended-jobs-{name}.json"
        self._kept = self._read()
        self._found: dict[str, list[int]] = {}

    @property
    def sequences(self) -> dict[str, int]:
        """Return the sequence numbers of the ended jobs that were found, by id."""
        return {job: one[2] for job, one in self._found.items()}

    def knows(self, job: str, folder: os.stat_result) -> bool:
        """Return True if the job had ended when its folder was as it is now."""
        kept = self._kept.get(job)
        if not kept or kept[:2] != _state_of(folder):
            return False
        self._found[job] = kept
        return True

    def add(self, job: str, folder: os.stat_result, sequence: int) -> None:
        """Record that a job has ended.

        folder: the state of its folder from before its record was read.
        """
        self._found[job] = [*_state_of(folder), sequence]

    def save(self) -> None:
        """Write the cache if it has changed. A cache that cannot be written is left as it is."""
        if self._found == self._kept:
            return
        settled = time.time_ns() - int(_SETTLED_S * 1e9)
        kept = {job: one for job, one in self._found.items() if one[0] < settled}
        if kept != self._kept:
            with contextlib.suppress(OSError):
                write_atomically(self._file, json.dumps(kept), mode=0o600)

    def _read(self) -> dict[str, list[int]]:
        try:
            found: Any = json.loads(self._file.read_text())
            return {job: one for job, one in found.items() if len(one) == 3 and all(type(n) is int for n in one)}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return {}


def _state_of(folder: os.stat_result) -> list[int]:
    return [folder.st_mtime_ns, folder.st_ino]

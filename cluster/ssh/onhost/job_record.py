"""State of a job by its record on the shared folder, for code that finds its processes on a host."""

from __future__ import annotations

import json
import subprocess
from typing import Any, NamedTuple

OVER = {"succeeded", "failed", "stopped"}  # states of a job's record after which nothing of it should run
READ_S = 5.0  # limit on reading a record: a dead mount never answers
# A link or a pipe is no record, whoever made it.
_READ = """\
s=$1/state.json; [ ! -L "$1" ] && [ ! -L "$s" ] && [ -f "$s" ] && head -c 4194304 "$s" 2>/dev/null && exit
[ -d "$(dirname "$1")" ] && [ ! -e "$1" ] && echo removed"""


class Record(NamedTuple):
    """State and attempt in a job's record."""

    state: str  # `over`, `going`, `removed` where its folder is gone from its place, or `unknown`
    attempt: int = 0  # its number; 0 where that cannot be read


def flat(record: dict[str, Any]) -> dict[str, Any]:
    """Return a job's record with the fields of its plan at the top. Records of earlier versions have them there."""
    return {**record.get("plan", {}), **record}


def read_record(folder: str, limit_s: float = READ_S) -> Record:
    """Return the record in a job's folder. A damaged record counts as going, so that nothing is ended because of it."""
    if not folder:
        return Record("unknown")
    try:
        done = subprocess.run(["sh", "-c", _READ, "read", folder], capture_output=True, timeout=limit_s)
    except (OSError, subprocess.TimeoutExpired):
        return Record("unknown")
    if done.stdout == b"removed\n":
        return Record("removed")
    try:
        said = json.loads(done.stdout)
        return Record("over" if said["state"] in OVER else "going", int(said.get("attempt", 1)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Record("going" if done.stdout else "unknown")

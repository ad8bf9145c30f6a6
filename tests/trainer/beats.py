"""Beats that a rank has left."""

from pathlib import Path
from typing import Any

from dlami.heartbeat import MAGIC, RECORD, VERSION, Phase


def told(file: Path) -> dict[str, Any]:
    """The record as somebody else reads it."""
    count, magic, version, phase, pid, step, first, at, since, *longest, again = RECORD.unpack(file.read_bytes())
    assert (count, MAGIC, VERSION) == (again, magic, version)
    return {
        "count": count, "phase": Phase(phase), "pid": pid, "step": step, "first": first, "at": at, "since": since,
        "longest": longest,
    }  # fmt: skip

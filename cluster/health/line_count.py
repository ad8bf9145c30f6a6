"""Output that ends with the number of its lines, so that a part of it is not taken for the whole."""

import re

from cluster.health.verdict import Unreadable
from cluster.terminal import counted

# What the question's shell command appends: awk writes the lines it was given, and their number.
COUNT_LINES = r"""awk '{ print } END { print "-- " NR " lines" }'"""
_LAST = re.compile(r"-- (\d+) lines")


def counted_lines(text: str) -> list[str]:
    """The lines above the last one. Raises Unreadable if their number is not the one that it says."""
    *lines, last = text.splitlines() or [""]
    count = _LAST.fullmatch(last)
    if not count:
        raise Unreadable(f"it has no end: {last[:60]!r}")
    if int(count[1]) != len(lines):
        raise Unreadable(f"{len(lines)} of {counted(int(count[1]), 'line')}")
    return lines

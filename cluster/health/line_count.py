"""Output that ends with the number of its lines, so that a truncated output is detected."""

import re

from cluster.health.verdict import Unreadable
from cluster.terminal import counted

# Suffix of the question's shell command: awk prints its input lines and their number.
COUNT_LINES = r"""awk '{ print } END { print "-- " NR " lines" }'"""
_LAST = re.compile(r"-- (\d+) lines")


def counted_lines(text: str) -> list[str]:
    """Return the lines above the last one. Raises Unreadable if the last line states another number of lines."""
    *lines, last = text.splitlines() or [""]
    count = _LAST.fullmatch(last)
    if not count:
        raise Unreadable(f"it has no end: {last[:60]!r}")
    if int(count[1]) != len(lines):
        raise Unreadable(f"{len(lines)} of {counted(int(count[1]), 'line')}")
    return lines

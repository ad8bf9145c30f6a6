"""Text that says in its last line how many lines it has, so that a part of it cannot pass for the whole."""

import re

from cluster.health.verdict import Unreadable

# What the question's shell command appends: awk writes the lines it was given, and their number.
COUNT = r"""awk '{ print } END { print "-- " NR " lines" }'"""
_LAST = re.compile(r"-- (\d+) lines")


def counted_lines(text: str) -> list[str]:
    """The lines above the last one. Raises Unreadable if they are not as many as that says."""
    *lines, last = text.splitlines() or [""]
    count = _LAST.fullmatch(last)
    if not count:
        raise Unreadable(f"it has no end: {last[:60]!r}")
    if int(count[1]) != len(lines):
        raise Unreadable(f"{len(lines)} of {count[1]} lines")
    return lines

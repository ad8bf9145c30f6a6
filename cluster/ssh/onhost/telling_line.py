"""Search in a program's output for the line that gives the reason of its failure.

Runs on hosts: standard library only.
"""

from __future__ import annotations

import re

# Lines that stand beside the reason and name none: carets, versions, counts, endings, advice, progress.
_EMPTY = re.compile(
    r"\W*$|NVML library version:|terminating, \d+ bad|lost connection|(shared )?connection (to \S+ )?closed"
    r"|\*{3} End of"
    r"|make(\[\d+\])?:|for more (information|details)|usage:|(try|see|run|use) [`'\"\w]|exit (status|code) \d+$|note:"
    r"|\[notice\]|killed by signal|(reading|building) (package|dependency|state)|the above exception"
    r"|during handling|\d+% ",
    re.IGNORECASE,
)
_WARNING = re.compile(r"(\S+:\s)?\W*(warn(ing)?|info|debug|deprecat\w+)\b", re.IGNORECASE)
_TELLING = re.compile(
    r"\b(\w*error|e:|fail(ed|ure|s)?|fatal|cannot|can't|could\s?n[o']t|unable|denied|refused?|no such|no (space|room)"
    r"|not (found|a|permitted|supported|allowed|enough|available)|invalid|illegal|unknown|unrecogni[sz]ed|bad|missing"
    r"|mismatch|expired|timed out|unreachable|read-only|exceeded|already|abort(ed)?|killed|segmentation|don't|doesn't"
    r"|does not|unsupported|corrupt(ed)?|must|disabled|lost|changed)(\b|(?<=:))",
    re.IGNORECASE,
)
_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*)?$")


def telling_line(text: str) -> str:
    """Return the line of an error output that gives the reason. Return an empty string without one.

    It is a traceback's exception, or else the first line that sounds like a failure. Failing that, it is the first and
    the last line.
    """
    after = text.rpartition(_TRACEBACK)[2].splitlines()[1:] if _TRACEBACK in text else []
    raised = next((line.strip() for line in after if _EXCEPTION.match(line)), "")
    if raised:
        return raised
    every = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in every if not _EMPTY.match(line)] or every
    serious = [line for line in lines if not _WARNING.match(line)] or lines
    telling = next((line for line in serious if _TELLING.search(line)), "")
    if telling or not serious:
        return telling
    return serious[0] if len(serious) == 1 else f"{serious[0]} ... {serious[-1]}"

"""Filter for log lines: by a pattern, or only errors. Very long lines are truncated."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cluster.errors import ConfigError

LONGEST = 16 << 10  # bytes of a line that are shown
_ERROR = re.compile(
    r"(?:error|exception)\b|\b(?:fatal|critical|panic|aborted|segmentation fault|out of memory|oom"
    r"|no space left|killed|core dumped|traceback|xid)\b",
    re.IGNORECASE,
)
_RANK = re.compile(r"rank \d+: ")
_OF_A_RANK = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")
_RULER = re.compile(r"-{70,}\s*$")
_VERDICT = re.compile(  # mpirun's messages about the end of a rank
    r"Primary job  terminated normally|mpirun detected that one or more processes exited"
    r"|mpirun noticed that process rank|mpirun has exited due to process rank"
)
_TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True, kw_only=True)
class LineFilter:
    """Filter for log lines. By default every line passes."""

    grep: str = ""  # a regular expression
    errors: bool = False

    def check(self) -> None:
        """Raise ConfigError if `grep` is not a valid regular expression."""
        try:
            re.compile(self.grep)
        except re.error as e:
            raise ConfigError(f"--grep {self.grep!r} is no regular expression: {e}") from None

    def filter(self) -> Callable[[str], bool]:
        """Return a predicate for log lines: True if the line passes. Call it with each line in order."""
        wanted, in_traceback = re.compile(self.grep), set[str]()

        def is_wanted(line: str) -> bool:
            if not wanted.search(line):
                return False
            return not self.errors or _is_of_an_error(line, in_traceback)

        return is_wanted


EVERY_LINE = LineFilter()


def _is_of_an_error(line: str, in_traceback: set[str]) -> bool:
    """Return True if the line reports an error or belongs to a traceback.

    in_traceback: prefixes of the ranks that are inside a traceback. It is updated here. A traceback ends with the first
    line that is not indented.
    """
    found = _RANK.match(line)
    rank, text = (found[0], line[found.end() :]) if found else ("", line)
    if _TRACEBACK in text:
        in_traceback.add(rank)
        return True
    if rank in in_traceback:
        if not text.startswith((" ", "\t")):
            in_traceback.discard(rank)
        return True
    return bool(_ERROR.search(text))


def without_verdicts(lines: Iterable[str]) -> Iterator[str]:
    """Yield a console's lines without mpirun's blocks about how a rank ended. The job reports the cause itself."""
    ruler, is_inside = "", False
    for line in lines:
        if _OF_A_RANK.match(line):
            yield line
        elif is_inside:
            is_inside = not _RULER.match(line)
        elif ruler and _VERDICT.match(line):
            ruler, is_inside = "", True
        else:
            if ruler:
                yield ruler
            ruler = line if _RULER.match(line) else ""
            if not ruler:
                yield line
    if ruler:
        yield ruler


class LineSplitter:
    """Splitter of a byte stream into lines. A long line takes no more memory than its part that is shown."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._begun = bytearray()
        self._left = 0

    def feed(self, data: bytes) -> Iterator[str]:
        """Add bytes and yield the lines they complete, each with its newline."""
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._add(part)
            yield self._take()
        self._add(rest)

    def rest(self) -> Iterator[str]:
        """Yield the unfinished last line, if there is one."""
        if self._begun:
            yield self._take()

    def _add(self, part: bytes) -> None:
        room = max(0, self._longest - len(self._begun))
        self._begun += part[:room]
        self._left += max(0, len(part) - room)

    def _take(self) -> str:
        text = self._begun.decode(errors="replace")
        if self._left:
            text += f" … and {self._left:,} bytes more"
        self._begun, self._left = bytearray(), 0
        return text + "\n"

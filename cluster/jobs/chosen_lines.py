"""Which lines of a log are shown: those that match, those that tell of errors; and of very long ones the beginning."""

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
_VERDICT = re.compile(  # of mpirun on a rank's end
    r"Primary job  terminated normally|mpirun detected that one or more processes exited"
    r"|mpirun noticed that process rank|mpirun has exited due to process rank"
)
_TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What of a log is wanted; all of it without a word."""

    grep: str = ""  # a regular expression
    errors: bool = False

    def check(self) -> None:
        """Raises ConfigError if the expression is none."""
        try:
            re.compile(self.grep)
        except re.error as e:
            raise ConfigError(f"--grep {self.grep!r} is no regular expression: {e}") from None

    def filter(self) -> Callable[[str], bool]:
        """Whether the next line, told in their order, is wanted."""
        wanted, in_traceback = re.compile(self.grep), set[str]()

        def is_wanted(line: str) -> bool:
            if not wanted.search(line):
                return False
            return not self.errors or _is_of_an_error(line, in_traceback)

        return is_wanted


EVERY_LINE = Choice()


def _is_of_an_error(line: str, in_traceback: set[str]) -> bool:
    """Whether it tells of one, or belongs to a traceback of its rank, up to the line that says which error it was."""
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
    """Return the lines of a console without mpirun's blocks on how a rank ended: the job's own verdict follows."""
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


class Lines:
    """Bytes, as they come, as lines; a line of any length takes no more memory than what is shown of it."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._begun = bytearray()
        self._left = 0

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that are whole now, each with its end."""
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._add(part)
            yield self._take()
        self._add(rest)

    def rest(self) -> Iterator[str]:
        """What has begun and will not be ended, if there is anything."""
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

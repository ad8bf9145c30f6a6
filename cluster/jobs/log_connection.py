"""Printing of the master's log over connections that may break, without printing anything twice."""

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.hosts import Host
from cluster.ssh.failure import Reason
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import OnOutput
from cluster.ssh.result import Result

START = "\x1edlami-log-starts "  # first line on stderr: job, attempt and first byte of its console
_STARTED = re.compile(rb"\x1edlami-log-starts (\S+) (\d+) (\d+)\n")
AWAY_S = 120.0  # limit on reconnecting to the master
_PAUSES_S = (1.0, 10.0)


@dataclass
class Printed:
    """Printed part of a log: the position where it began, and how many bytes followed."""

    on_output: OnOutput
    job: str = ""
    attempt: int = 0
    position: int = 0
    size: int = 0  # bytes
    _begun: bytes = b""

    def take(self, host: Host, stream: str, data: bytes) -> None:
        """Print a chunk of output. The master's line with the log's start is parsed, not printed."""
        if stream == "stdout":
            self.size += len(data)
        elif not self.job:
            data = self._without_start(data)
        if data:
            self.on_output(host, stream, data)

    def _without_start(self, data: bytes) -> bytes:
        self._begun += data
        found = _STARTED.search(self._begun)
        if not found and START.encode()[:1] in self._begun and len(self._begun) < 4096:
            return b""  # the rest of the line is still to come
        data, self._begun = self._begun, b""
        if not found:
            return data
        self.job, self.attempt, self.position = found[1].decode(), int(found[2]), int(found[3])
        return data[: found.start()] + data[found.end() :]

    def words(self) -> list[str]:
        """Return the options that make the master continue where the output ended."""
        return ["--from", f"{self.attempt}:{self.position}", "--skip", str(self.size)]


def print_log(
    reach: Executor, master: Host, command: Callable[[str, Sequence[str]], str], on_output: OnOutput
) -> Result:
    """Run the command that prints a log until it ends by itself. Return its last result. Reconnects if needed.

    command: makes the shell command from the job's id and the options for continuing. Both are empty at first.
    """
    printed = Printed(on_output)
    result = reach.run([master], command("", ()), on_output=printed.take)[master]
    answered, pause = time.monotonic(), _PAUSES_S[0]
    was_there = bool(result.failure and result.failure.reason is Reason.BROKE_OFF)
    while result.exit_code is None and (printed.job or was_there) and time.monotonic() - answered < AWAY_S:
        print(f"the connection to the master broke ({result.error}): reaching it again", file=sys.stderr)
        time.sleep(pause)
        before = printed.size
        result = reach.run(
            [master], command(printed.job, printed.words() if printed.job else ()), on_output=printed.take
        )[master]
        pause = min(_PAUSES_S[1], pause * 2)
        if printed.size > before:
            answered, pause = time.monotonic(), _PAUSES_S[0]
    return result

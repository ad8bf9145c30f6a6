"""Exchange with a long-running program on one host: its input, its answers, and when it is started again."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from cluster.hosts import Host
from cluster.ssh import mux
from cluster.ssh.limits import LocalCommand
from cluster.ssh.onhost.frame import Frames
from cluster.ssh.onhost.telling_line import telling_line

AWAITED = "no answer yet"
_AGAIN_S = 2.0  # after a failure, and twice as long after each that follows
_AGAIN_MOST_S = 30.0
_MOST_BYTES = 1 << 20  # of output without an answer
_ROOM = 1 << 18  # in the pipe for a program and its questions
_NOISE_S = 1.0  # from a question until other output counts as garbage
_GREETING_S = 10.0  # the same before the first answer: a shell may print, and Python has to start
_SHOWN = 60  # characters of output that is no answer


class Exchange:
    """Questions to one host's program, and its answers."""

    def __init__(self, host: Host, command: str, stdin: bytes) -> None:
        self.host, self._command, self._stdin = host, command, stdin
        self.channel: mux.Channel | LocalCommand | None = None
        self.trouble = AWAITED
        self.asked_at: float | None = None  # the question that is not answered yet
        self.try_at = 0.0
        self.failures = 0  # since its last answer
        self._pause_s = _AGAIN_S
        self._number = 0
        self._questions = -1
        self._begin()

    def open(self, start: Callable[[str, int], mux.Channel | LocalCommand]) -> None:
        """Start the program. Raises OSError if there is no connection."""
        reads, writes = os.pipe()
        try:
            with contextlib.suppress(OSError):  # above the user's limit: most of it fits all the same
                fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, _ROOM)
            os.set_blocking(writes, False)
            os.write(writes, self._stdin)
            self.channel = start(self._command, reads)
        except OSError:
            os.close(writes)
            raise
        finally:
            os.close(reads)
        self._questions = writes
        self._begin()

    def _begin(self) -> None:
        self._frames, self._noise, self._since_answer, self._said = Frames(), b"", 0, b""
        self._patience_s = _GREETING_S

    def ask(self, more: Sequence[Any]) -> bool:
        """Send the next question, unless the last one is unanswered. Return True if it was sent."""
        if self.channel is None or self.asked_at is not None:
            return False
        self._number += 1
        try:
            os.write(self._questions, json.dumps([self._number, *more]).encode() + b"\n")
        except OSError:  # its input is full, or closed: the end of the program is noticed elsewhere
            return False
        self.asked_at = time.monotonic()
        return True

    def heard(self, data: bytes) -> list[Any]:
        """Return the answers in data from the program's stdout."""
        try:
            answers = self._frames.feed(data)
        except ValueError:
            answers = []
        self._since_answer = 0 if answers else self._since_answer + len(data)
        self._noise = b"" if answers else (self._noise + data)[:_SHOWN]
        self._patience_s = _NOISE_S if answers else self._patience_s
        return answers

    def complained(self, data: bytes) -> None:
        """Record data from the program's stderr."""
        self._said = (self._said + data)[-2000:]

    @property
    def nonsense(self) -> str:
        """Return the beginning of what the program prints instead of an answer.

        Return an empty string if an answer may still be on its way.
        """
        if not self._noise or self._frames.is_cut:  # the rest of an answer may be on its way
            return ""
        if self.asked_at is None or time.monotonic() - self.asked_at < self._patience_s:
            return ""
        return "".join(c if c.isprintable() else "." for c in self._noise.decode(errors="replace")).strip(". ") or "?"

    @property
    def is_flooding(self) -> bool:
        """Return True if the program has printed more than 1 MiB without an answer."""
        return self._since_answer > _MOST_BYTES

    def answered(self) -> float:
        """Record that the question was answered. Return how many seconds that took."""
        now = time.monotonic()
        took_s = now - (now if self.asked_at is None else self.asked_at)
        self.asked_at, self.trouble, self.failures, self._pause_s = None, "", 0, _AGAIN_S
        return took_s

    def why_it_ended(self) -> str:
        """Return why the program ended. Quotes its own error output if there is any."""
        assert self.channel
        if self.channel.refused is not None:
            return f"its sshd has no place for one more session: {self.channel.refused}"
        said = telling_line(self._said.decode(errors="replace"))
        code = self.channel.exit_code
        if code is None:
            return "the connection was lost"
        return f"our program ended there with exit code {code}" + (f": {said[:120]}" if said else "")

    def close(self, trouble: str = "") -> None:
        """Close the connection to the program, which then ends on the host, too."""
        if self.channel:
            os.close(self._questions)
            self.channel.close()
            self.channel = None
        self.asked_at = None
        self.fail(trouble)

    def fail(self, trouble: str) -> None:
        """Record why the program cannot be asked. It is started again after a pause."""
        self.trouble = trouble
        self.failures += 1
        self.try_at = time.monotonic() + self._pause_s
        self._pause_s = min(_AGAIN_MOST_S, 2 * self._pause_s)

"""A program that stays on one host and answers: its input, what it has said, and when it is tried again."""

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
_MOST_BYTES = 1 << 20  # without an answer among them
_ROOM = 1 << 18  # in the pipe for a program and its questions
_NOISE_S = 1.0  # of what is no answer, after a question
_GREETING_S = 10.0  # the same before the first answer: a shell may talk, and then a Python has to start
_SHOWN = 60  # characters of what is no answer


class Exchange:
    """What there is between us and one host's program."""

    def __init__(self, host: Host, command: str, stdin: bytes) -> None:
        self.host, self._command, self._stdin = host, command, stdin
        self.channel: mux.Channel | LocalCommand | None = None
        self.trouble = AWAITED
        self.asked_at: float | None = None  # the question that is not answered yet
        self.try_at = 0.0
        self.failures = 0  # since it was heard
        self._pause_s = _AGAIN_S
        self._number = 0
        self._questions = -1
        self._begin()

    def open(self, start: Callable[[str, int], mux.Channel | LocalCommand]) -> None:
        """Start the program. Raises OSError where there is no connection."""
        reads, writes = os.pipe()
        try:
            with contextlib.suppress(OSError):  # more than a user may have; what fits now is most of it
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
        """Put the next question, unless the last one is not answered; whether it was put."""
        if self.channel is None or self.asked_at is not None:
            return False
        self._number += 1
        try:
            os.write(self._questions, json.dumps([self._number, *more]).encode() + b"\n")
        except OSError:  # its input is full, or closed: how it ended will be heard
            return False
        self.asked_at = time.monotonic()
        return True

    def heard(self, data: bytes) -> list[Any]:
        """The answers in what came on its stdout."""
        try:
            answers = self._frames.feed(data)
        except ValueError:
            answers = []
        self._since_answer = 0 if answers else self._since_answer + len(data)
        self._noise = b"" if answers else (self._noise + data)[:_SHOWN]
        self._patience_s = _NOISE_S if answers else self._patience_s
        return answers

    def complained(self, data: bytes) -> None:
        """What came on its stderr."""
        self._said = (self._said + data)[-2000:]

    @property
    def nonsense(self) -> str:
        """What it says in place of an answer; "" if it says nothing else."""
        if not self._noise or self._frames.is_cut:  # the rest of an answer may be on its way
            return ""
        if self.asked_at is None or time.monotonic() - self.asked_at < self._patience_s:
            return ""
        return "".join(c if c.isprintable() else "." for c in self._noise.decode(errors="replace")).strip(". ") or "?"

    @property
    def is_flooding(self) -> bool:
        """Whether it has said far too much that is no answer."""
        return self._since_answer > _MOST_BYTES

    def answered(self) -> float:
        """Note that the question is answered; how long that took."""
        now = time.monotonic()
        took_s = now - (now if self.asked_at is None else self.asked_at)
        self.asked_at, self.trouble, self.failures, self._pause_s = None, "", 0, _AGAIN_S
        return took_s

    def why_it_ended(self) -> str:
        """In its own words, if it had any."""
        assert self.channel
        if self.channel.refused is not None:
            return f"its sshd has no place for one more session: {self.channel.refused}"
        said = telling_line(self._said.decode(errors="replace"))
        code = self.channel.exit_code
        if code is None:
            return "the connection was lost"
        return f"our program ended there with exit code {code}" + (f": {said[:120]}" if said else "")

    def close(self, trouble: str = "") -> None:
        """Give the program up; it ends there, too."""
        if self.channel:
            os.close(self._questions)
            self.channel.close()
            self.channel = None
        self.asked_at = None
        self.fail(trouble)

    def fail(self, trouble: str) -> None:
        """It cannot be asked now, and is tried again after a pause."""
        self.trouble = trouble
        self.failures += 1
        self.try_at = time.monotonic() + self._pause_s
        self._pause_s = min(_AGAIN_MOST_S, 2 * self._pause_s)

"""A program on a terminal of its own, as a person has it: read as it comes, typed on, interrupted by Ctrl-C, hung up."""

import contextlib
import os
import pty
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.conftest import PATIENCE_S

CTRL_C, ENTER = "\x03", "\r"
_MOST_S = PATIENCE_S  # that anything may take


class Terminal:
    """Its program is ended with the `with` block, if it has not ended by itself."""

    def __init__(self, *words: object, folder: Path, env: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._text, self._grew = "", threading.Condition()
        self._hung_up = False
        command = ["setsid", "--ctty", *map(str, words)]
        self.process = subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        """All that was on it so far."""
        with self._grew:
            return self._text

    def _read(self) -> None:
        """Until nobody has the other end any more."""
        try:
            while not self._hung_up and (part := os.read(self._ours, 1 << 16)):
                with self._grew:
                    self._text += part.decode(errors="replace").replace("\r\n", "\n")
                    self._grew.notify_all()
        except OSError:  # EIO: the last program that had it has ended
            pass
        with self._grew:
            self._grew.notify_all()

    def until(self, said: str) -> str:
        """All of it once this is said."""
        with self._grew:
            there = self._grew.wait_for(lambda: said in self._text or not self._reader.is_alive(), _MOST_S)
            assert there and said in self._text, f"not said: {said}\n{self._text}"
            return self._text

    def enter(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def insisted(self, text: str) -> int:
        """Types it until the program ends, as a person does whose Ctrl-C came before a shell listened; the exit status."""
        deadline = time.monotonic() + _MOST_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self.enter(text)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        return self.ended()

    def hang_up(self) -> None:
        """The window is closed: SIGHUP, and nobody reads any more."""
        self._hung_up = True
        os.close(self._ours)

    def ended(self) -> int:
        """The exit status, once all of its text is there."""
        code = self.process.wait(_MOST_S)
        if not self._hung_up:
            self._reader.join(_MOST_S)
        return code

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if not self._hung_up:
            os.close(self._ours)

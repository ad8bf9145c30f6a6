"""Progress lines that a long-running program prints every few seconds."""

import sys
import time
from typing import TextIO

EVERY_S = 5.0


class ProgressLines:
    """Progress printer: prints 'DONE of TOTAL' about every five seconds. Shorter work prints nothing.

    Args:
        total: as it is printed last, with its noun: '100 files'.
        file: where to print; its buffered content is printed at once.
    """

    def __init__(self, total: str, file: TextIO | None = None) -> None:
        self._total, self._file = total, file or sys.stdout
        self._done, self._printed = 0, time.monotonic()

    def add(self, done: int = 1) -> None:
        """Count what is done since the last call."""
        self._done += done
        if time.monotonic() - self._printed > EVERY_S:
            self._printed = time.monotonic()
            print(f"{self._done} of {self._total}", file=self._file, flush=True)

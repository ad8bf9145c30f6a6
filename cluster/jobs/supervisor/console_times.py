"""Log of a console's size over time, written by the supervisor every few seconds and read by `jobs.logs --since`."""

import contextlib
import math
import os

from cluster.jobs.record import JobPaths, open_log
from cluster.steady_time import steady_now

_EVERY_S = 10.0


class ConsoleTimes:
    """Writer of a console's size log: a line `seconds-since-1970 bytes` whenever the console has grown."""

    def __init__(self, paths: JobPaths) -> None:
        self._paths, self._size, self._noted = paths, -1, -math.inf

    def note(self, attempt: int) -> None:
        """Append the console's current size, if it changed and the last entry is over 10 s old. Raises OSError."""
        size = self._paths.console(attempt).stat().st_size
        if size != self._size and (now := steady_now()) - self._noted > _EVERY_S:
            self._size, self._noted = size, now
            with self._paths.console_times(attempt).open("a") as file:
                file.write(f"{now:.0f} {size}\n")


def position_at(paths: JobPaths, attempt: int, since: float) -> int:
    """Return the byte of the attempt's console where the output since this time begins, or up to ten seconds earlier.

    Returns 0, the beginning, if the log of sizes does not reach that far back.
    """
    found = 0
    with contextlib.suppress(OSError, ValueError), os.fdopen(open_log(paths, paths.console_times(attempt))) as file:
        for line in file:
            at, _, size = line.partition(" ")
            with contextlib.suppress(ValueError):
                if float(at) > since:
                    break
                found = int(size)
    return found

"""When a console had grown to which size, written by the supervisor every few seconds: for `jobs.logs --since`."""

import contextlib
import math
import os

from cluster.jobs.record import JobPaths, open_log
from cluster.jobs.steady_time import steady_now

_EVERY_S = 10.0


class ConsoleTimes:
    """What the supervisor writes, a line `seconds-since-1970 bytes` whenever the console has grown."""

    def __init__(self, paths: JobPaths) -> None:
        self._paths, self._size, self._noted = paths, -1, -math.inf

    def note(self, attempt: int) -> None:
        """Write down how long it is now, if that is worth a line. Raises OSError."""
        size = self._paths.console(attempt).stat().st_size
        if size != self._size and (now := steady_now()) - self._noted > _EVERY_S:
            self._size, self._noted = size, now
            with self._paths.console_times(attempt).open("a") as file:
                file.write(f"{now:.0f} {size}\n")


def position_at(paths: JobPaths, attempt: int, since: float) -> int:
    """Where in the attempt's console that begins which was said since then, or ten seconds before; 0 if all of it."""
    found = 0
    with contextlib.suppress(OSError, ValueError), os.fdopen(open_log(paths, paths.console_times(attempt))) as file:
        for line in file:
            at, _, size = line.partition(" ")
            with contextlib.suppress(ValueError):
                if float(at) > since:
                    break
                found = int(size)
    return found

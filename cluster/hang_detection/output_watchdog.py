"""Watchdog for programs without heartbeats, by their output and their processor time."""

import contextlib
from collections.abc import Callable, Sequence

from cluster.hang_detection.rank_state import RankSeen

WARN_AFTER_S = 600.0  # without a line, and without processor time in one rank
_IDLE = 0.01  # of a core
_WINDOW_S = 60.0  # over which it is judged whether ranks work


class OutputWatchdog:
    """Watchdog that measures how long an attempt's console has not grown, and finds ranks that were idle meanwhile."""

    def __init__(self, size: Callable[[], int], end_after_s: float | None) -> None:
        """Watch one attempt.

        size: returns the console's size. Its OSError means that the size is not known now. end_after_s: seconds without
        output that count as a hang. Without it, no silence counts as a hang.
        """
        self._size_now, self._end_after_s = size, end_after_s
        self._size = -1
        self._since: float | None = None  # the last line, or the first look
        self._cpu_s: dict[int, float] = {}  # of each rank then
        # Since when processor time is counted, and what it was then.
        self._window: tuple[float, dict[int, float]] = (0.0, {})
        self.is_alive = False  # at the last look: something was printed, or every rank had worked

    @property
    def is_over(self) -> bool:
        """Return True if the silence is longer than the operator's limit."""
        return bool(self._end_after_s) and self.silent_s > float(self._end_after_s or 0)

    def look(self, ranks: Sequence[RankSeen], now: float) -> str:
        """Update from the ranks and return a sentence about the silence.

        Return an empty string if there is nothing to report.
        """
        self.is_alive = self._has_worked(ranks, now)
        size = self._size
        with contextlib.suppress(OSError):
            size = self._size_now()
        if size != self._size or self._since is None or not ranks:
            self.is_alive = bool(ranks)
            self._size, self._since = size, now
            self._cpu_s = {r.rank: r.cpu_s for r in ranks}
        self.silent_s = now - self._since
        if self.is_over:
            return f"nothing was printed for {self.silent_s:.0f} s"
        if self.silent_s < WARN_AFTER_S:
            return ""
        idle = [r for r in ranks if r.cpu_s - self._cpu_s.get(r.rank, r.cpu_s) < _IDLE * self.silent_s]
        if not idle:
            return ""
        one = idle[0]
        return (
            f"nothing was printed for {WARN_AFTER_S:.0f} s, and rank {one.rank} on {one.host} has used no "
            "processor time in it: it may hang; --hang-after SECONDS ends such a job"
        )

    def _has_worked(self, ranks: Sequence[RankSeen], now: float) -> bool:
        """Return True if every rank used processor time in the window that has just ended.

        Return False within a window.
        """
        since, before = self._window
        if before and now - since < _WINDOW_S:
            return False
        self._window = (now, {r.rank: r.cpu_s for r in ranks})
        return bool(before) and all(r.cpu_s - before.get(r.rank, r.cpu_s) >= _IDLE * (now - since) for r in ranks)

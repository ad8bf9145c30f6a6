"""A program that does not beat, watched by what it prints and by its processor time."""

import contextlib
from collections.abc import Callable, Sequence

from cluster.watching.seen import RankSeen

WARN_AFTER_S = 600.0  # without a line, and without processor time in one rank
_IDLE = 0.01  # of a core
_WINDOW_S = 60.0  # over which it is judged whether ranks work


class Quiet:
    """How long nothing has come to an attempt's console, and which rank has done nothing meanwhile."""

    def __init__(self, size: Callable[[], int], end_after_s: float | None) -> None:
        """size: of the console; an OSError of it says that it cannot be seen.

        end_after_s: that long without a line is a hang; without it nothing is.
        """
        self._size_now, self._end_after_s = size, end_after_s
        self._size = -1
        self._since: float | None = None  # the last line, or the first look
        self._cpu_s: dict[int, float] = {}  # of each rank then
        # Since when processor time is counted, and what it was then.
        self._window: tuple[float, dict[int, float]] = (0.0, {})
        self.is_alive = False  # by the last look: something was printed, or every rank has worked

    @property
    def is_over(self) -> bool:
        """Whether the silence is a hang, by what the operator said."""
        return bool(self._end_after_s) and self.silent_s > float(self._end_after_s or 0)

    def look(self, ranks: Sequence[RankSeen], now: float) -> str:
        """What there is to say about the silence; nothing as long as it is none."""
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
        """Whether every rank has used processor time, as a whole window tells; within one nothing is said."""
        since, before = self._window
        if before and now - since < _WINDOW_S:
            return False
        self._window = (now, {r.rank: r.cpu_s for r in ranks})
        return bool(before) and all(r.cpu_s - before.get(r.rank, r.cpu_s) >= _IDLE * (now - since) for r in ranks)

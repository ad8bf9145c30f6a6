"""Schedule of observations of a program without heartbeats, and the verdict from them."""

from collections.abc import Callable

from cluster.hang_detection.standstill import Diagnosis, RanksObservation, Standstill

_SILENT_S = 15.0  # of its console, before the first look: a program that prints is not observed
_LOOK_AGAIN_S = 7.0  # while nothing moves
_MOST_S = 60.0  # between two looks at a program that moves silently
_TIMES = 1.5  # by this factor longer after each look at such a program


class StandstillWatch:
    """Observer of a program's ranks while its console is silent.

    It looks often while they stand still, and ever more rarely otherwise.
    """

    def __init__(self, take: Callable[[bool], RanksObservation | None], np: int) -> None:
        """Watch a program.

        Args:
            take: look at all ranks, with native frames if True is passed. Returns None where a host did not answer.
            np: number of ranks. 0 where torchrun decides how many there are.
        """
        self._take, self._standstill = take, Standstill(np)
        self._not_before, self._pause_s = 0.0, _LOOK_AGAIN_S
        self._verdict: Diagnosis | None = None

    def look(self, silent_s: float, now: float) -> Diagnosis | None:
        """Look at the ranks if a look is due. Return the current verdict.

        Args:
            silent_s: seconds since the program's last output.
            now: the time by the monotonic clock.
        """
        if silent_s < _SILENT_S:
            self._standstill.reset()
            self._not_before, self._pause_s, self._verdict = 0.0, _LOOK_AGAIN_S, None
        elif now >= self._not_before:
            look = self._take(self._standstill.is_suspected)
            if look is None or not self._standstill.add(look):
                self._pause_s = min(self._pause_s * _TIMES, _MOST_S)
            else:
                self._pause_s = _LOOK_AGAIN_S
            self._verdict = self._standstill.verdict()
            self._not_before = now + self._pause_s
        return self._verdict

    def standing_s(self, now: float) -> float:
        """Return for how many seconds nothing has moved."""
        return self._standstill.standing_s(now)

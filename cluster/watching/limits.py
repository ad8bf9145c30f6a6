"""How long a rank may be silent in each phase, learnt from the job itself, and which ranks are overdue. Pure.

A step may take ten times the median step of this job, and 30 s at least. The other phases have generous limits at
first; once they were seen, in this attempt or an earlier one, ten times the longest silence in them, within bounds.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Sequence

from cluster.watching.seen import Phase, RankSeen

HANG_AFTER_S = 30.0  # without a step, at least
_TIMES = 10.0  # the median step, or the longest silence in another phase
_FIRST_TIMES = 3.0  # the compilation's silence, which has a step in it, as long as no step was timed
_LEAST_S = {Phase.START: 300.0, Phase.COMPILE: 120.0, Phase.EVALUATE: 300.0, Phase.SAVE: 300.0}
_MOST_S = {Phase.START: 1800.0, Phase.COMPILE: 1800.0, Phase.EVALUATE: 1800.0, Phase.SAVE: 900.0}
# Seconds of standstill of a program without heartbeats, after which its attempt ends.
CANNOT_CONTINUE_S = 60.0  # a rank is stopped or gone, or ranks wait in different calls: nothing they do can free them
MIGHT_CONTINUE_S = 300.0  # a rank sleeps or waits for something of its own
COMPUTES_S = 1800.0  # a rank computes in one line, or all spin in one call: a healthy program may look like this
SUSPECT_S = 120.0  # until such a one is warned of
_SAMPLES = 256
_LEAD = 0.2  # of a limit, at most


class Pace:
    """How fast a job goes."""

    def __init__(self, longest: Sequence[float] = (), least_s: float = HANG_AFTER_S) -> None:
        """longest: silence in each phase, of the job's earlier attempts. least_s: without a step."""
        self.longest = [*longest, *[0.0] * len(Phase)][: len(Phase)]
        self.least_s = least_s
        self._steps: deque[float] = deque(maxlen=_SAMPLES)

    def learn(self, before: RankSeen, after: RankSeen) -> None:
        """From two looks at one rank: time per step where it did nothing else meanwhile, and silences."""
        self.longest = [max(pair) for pair in zip(self.longest, after.longest or self.longest, strict=True)]
        is_stepping = before.phase is after.phase is Phase.STEP and before.since == after.since
        if is_stepping and after.step > before.step:
            self._steps.append((after.beat_at - before.beat_at) / (after.step - before.step))

    @property
    def step_s(self) -> float | None:
        """The median step; None as long as none was timed."""
        return statistics.median(self._steps) if self._steps else None

    def limit_s(self, phase: Phase) -> float:
        """How long a rank may be silent in a phase."""
        if phase is Phase.STEP:
            if self.step_s is not None:
                return max(self.least_s, _TIMES * self.step_s)
            return max(self.least_s, _TIMES * self.longest[phase], _FIRST_TIMES * self.longest[Phase.COMPILE])
        if not self.longest[phase]:
            return _MOST_S[phase]
        return min(max(_TIMES * self.longest[phase], _LEAST_S[phase]), _MOST_S[phase])


def overdue(ranks: Iterable[RankSeen], pace: Pace, lead_s: float = 0.0) -> list[RankSeen]:
    """The ranks that should have gone on by now; none while any rank that they may wait for is within its own limit.

    That is one that has not done more steps. A rank whose host says nothing is waited for until its limit, and never
    overdue itself: whether a host is there is judged elsewhere. Nor is a rank of a program that never beats, unless it
    was stopped: perhaps its first alone does; it is waited for as one that starts. lead_s: so long before their limits.
    """
    beating = [r for r in ranks if r.phase is not None and not r.has_ended]
    late = {r.rank for r in beating if _is_late(r, pace, lead_s)}
    busy = [r for r in beating if r.rank not in late]
    return [
        r
        for r in beating
        if r.rank in late
        and r.is_heard
        and (r.is_stopped or not (r.is_mute or any(q.step <= r.step + 1 for q in busy)))
    ]


def confirmed(before: Iterable[RankSeen], now: Iterable[RankSeen]) -> list[RankSeen]:
    """Of the ranks that are overdue now those that were suspected before, without a beat since, as told anew.

    One look is not enough: that of one host may be older than the others', who have gone on since.
    """
    then = {r.rank: r for r in before}
    return [r for r in now if r.rank in then and r.count == then[r.rank].count and r.heard_at > then[r.rank].heard_at]


def _is_late(rank: RankSeen, pace: Pace, lead_s: float) -> bool:
    assert rank.phase is not None
    limit_s = pace.least_s if rank.is_stopped else pace.limit_s(rank.phase)
    return rank.silent_s > limit_s - min(lead_s, _LEAD * limit_s)

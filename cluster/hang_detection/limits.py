"""Limits on a rank's silence in each phase, learned from the job itself, and the check for overdue ranks.

Pure functions.

A step may take ten times the median step of this job, and at least 30 s. The other phases have generous limits at
first. Once a phase was seen, in this attempt or an earlier one, its limit is ten times its longest silence, within
bounds.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Sequence

from cluster.hang_detection.rank_state import RankPhase, RankSeen

HANG_AFTER_S = 30.0  # without a step, at least
_TIMES = 10.0  # the median step, or the longest silence in another phase
_FIRST_TIMES = 3.0  # the silence of the compilation, which includes a step, until a step was timed
_LEAST_S = {RankPhase.START: 300.0, RankPhase.COMPILE: 120.0, RankPhase.EVALUATE: 300.0, RankPhase.SAVE: 300.0}
_MOST_S = {RankPhase.START: 1800.0, RankPhase.COMPILE: 1800.0, RankPhase.EVALUATE: 1800.0, RankPhase.SAVE: 900.0}
# Seconds of standstill of a program without heartbeats, after which its attempt ends.
CANNOT_CONTINUE_S = 60.0  # a rank is stopped or gone, or ranks wait in different calls: nothing they do can free them
MIGHT_CONTINUE_S = 300.0  # a rank sleeps, or waits for something other than its peers
COMPUTES_S = 1800.0  # a rank computes in one line, or all spin in one call: a healthy program may look like this
SUSPECT_S = 120.0  # until a warning about such a rank
_SAMPLES = 256
_LEAD = 0.2  # of a limit, at most


class JobPace:
    """Speed of a job: its step times, and its longest silence in each phase."""

    def __init__(self, longest: Sequence[float] = (), least_s: float = HANG_AFTER_S) -> None:
        """Begin with what the job's earlier attempts have shown.

        longest: the longest silence in each phase of earlier attempts. least_s: the shortest limit on the time without
        a step.
        """
        self.longest = [*longest, *[0.0] * len(RankPhase)][: len(RankPhase)]
        self.least_s = least_s
        self._steps: deque[float] = deque(maxlen=_SAMPLES)

    def learn(self, before: RankSeen, after: RankSeen) -> None:
        """Learn from two looks at one rank. Its step is timed only if it did nothing but step between the looks."""
        self.longest = [max(pair) for pair in zip(self.longest, after.longest or self.longest, strict=True)]
        is_stepping = before.phase is after.phase is RankPhase.STEP and before.since == after.since
        if is_stepping and after.step > before.step:
            self._steps.append((after.beat_at - before.beat_at) / (after.step - before.step))

    @property
    def step_s(self) -> float | None:
        """Return the median duration of a step. Return None until a step was timed."""
        return statistics.median(self._steps) if self._steps else None

    def limit_s(self, phase: RankPhase) -> float:
        """Return for how many seconds a rank may be silent in a phase."""
        if phase is RankPhase.STEP:
            if self.step_s is not None:
                return max(self.least_s, _TIMES * self.step_s)
            return max(self.least_s, _TIMES * self.longest[phase], _FIRST_TIMES * self.longest[RankPhase.COMPILE])
        if not self.longest[phase]:
            return _MOST_S[phase]
        return min(max(_TIMES * self.longest[phase], _LEAST_S[phase]), _MOST_S[phase])


def overdue(ranks: Iterable[RankSeen], pace: JobPace, lead_s: float = 0.0) -> list[RankSeen]:
    """Return the ranks that should have made progress by now.

    A rank is not overdue while another that it may wait for is within its own limit. That is a rank at most one step
    ahead. A rank whose host is silent is never overdue: other code judges whether its host is there. Until its limit,
    others may still wait for it. A rank that sends no heartbeats while others do is treated as starting, and is not
    overdue. A stopped rank is overdue once its own limit has passed.

    lead_s: report ranks so many seconds before their limits.
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
    """Return the overdue ranks that were suspected before and have sent no heartbeat since.

    Their hosts must have reported again in between. One look is not enough: one host's report may be older than the
    others', whose ranks may have made progress since.
    """
    then = {r.rank: r for r in before}
    return [r for r in now if r.rank in then and r.count == then[r.rank].count and r.heard_at > then[r.rank].heard_at]


def _is_late(rank: RankSeen, pace: JobPace, lead_s: float) -> bool:
    assert rank.phase is not None
    limit_s = pace.least_s if rank.is_stopped else pace.limit_s(rank.phase)
    return rank.silent_s > limit_s - min(lead_s, _LEAD * limit_s)

"""Trainings in time, drawn at random and made without waiting, and what a watch over their ranks makes of them."""

import bisect
import random
from collections.abc import Iterator
from typing import Any

from cluster.hang_detection.limits import JobPace, confirmed, overdue
from cluster.hang_detection.rank_state import RankPhase, RankSeen, rank_seen
from cluster.hang_detection.watch import LEAD_S

LOOK_S = 3.0


def records(beats: list[tuple[float, RankPhase, int]]) -> Iterator[dict[str, Any]]:
    """What a rank's file has after each of its beats."""
    longest, since, before = [0.0] * len(RankPhase), 0.0, beats[0]
    for count, one in enumerate(beats, 1):
        longest[before[1]] = max(longest[before[1]], one[0] - before[0])
        since = since if one[1] is before[1] else one[0]
        before = one
        yield {
            "count": count, "phase": int(one[1]), "step": one[2], "first": 1, "at": one[0], "since": since,
            "longest": tuple(longest),
        }  # fmt: skip


class Training:
    """A training in time: each rank's beats as (time, phase, step), made without waiting."""

    def __init__(self, seed: int, ranks: int, hangs_at: int | None = None) -> None:
        self.random = random.Random(seed)
        self.now = [0.0] * ranks
        self.beats: list[list[tuple[float, RankPhase, int]]] = [[(0.0, RankPhase.START, 0)] for _ in range(ranks)]
        self.records: list[list[dict[str, Any]]] = []
        self._go(ranks, hangs_at)

    def _go(self, ranks: int, hangs_at: int | None) -> None:
        r = self.random
        step_s = 10 ** r.uniform(-2, 1)
        slow = r.randrange(ranks)  # its host may become three times slower
        slow_from = r.randrange(60)
        busy = {r.randrange(80): r.uniform(1, 2.5) for _ in range(8)}  # a busy machine: all take longer
        evaluate_every, save_every = r.choice((0, 10, 25)), r.choice((0, 5, 20))
        evaluation_s, save_s = 10 ** r.uniform(-1, 2.2), 10 ** r.uniform(-2, 1.4)
        self.all(lambda n: r.uniform(2, 60), RankPhase.COMPILE, 0)
        compile_s = r.uniform(0, 120)
        for step in range(1, 81):
            if step == hangs_at:
                return
            factor = max([1.0, *(f for at, f in busy.items() if at <= step < at + 5)])
            took = [
                step_s * r.uniform(0.8, 1.3) * factor * (3 if n == slow and step > slow_from else 1)
                + (compile_s if step == 1 else 0)
                for n in range(ranks)
            ]
            self.together(took, RankPhase.STEP, step)
            if save_every and step % save_every == 0:
                self.rank(0, RankPhase.SAVE, step)
                self.now[0] += save_s * r.uniform(0.5, 3)
                self.rank(0, RankPhase.STEP, step)
            if evaluate_every and step % evaluate_every == 0:
                self.all(lambda n: 0.0, RankPhase.EVALUATE, step)
                for _ in range(r.randrange(1, 4)):
                    self.all(lambda n: evaluation_s * r.uniform(0.5, 1.5), RankPhase.EVALUATE, step)
                self.together([0.1] * ranks, RankPhase.STEP, step)
        self.all(lambda n: 0.0, RankPhase.SAVE, 80)

    def rank(self, n: int, phase: RankPhase, step: int) -> None:
        self.beats[n].append((self.now[n], phase, step))

    def all(self, took: Any, phase: RankPhase, step: int) -> None:
        """Each in its own time."""
        for n in range(len(self.now)):
            self.now[n] += took(n)
            self.rank(n, phase, step)

    def together(self, took: list[float], phase: RankPhase, step: int) -> None:
        """A reduction: done when the last has come."""
        end = max(now + t for now, t in zip(self.now, took, strict=True))
        self.now = [end] * len(self.now)
        for n in range(len(self.now)):
            self.rank(n, phase, step)

    def seen(self, n: int, at: float) -> RankSeen:
        """As its host tells at a time."""
        count = bisect.bisect_right(self.beats[n], at, key=lambda b: b[0])
        self.records = self.records or [list(records(beats)) for beats in self.beats]
        beat = self.records[n][count - 1]
        return rank_seen(f"h{n // 2}", {"rank": n, "beat": beat, "state": "S", "cpu_s": 0.0}, at, at)

    def watched(self, until: float) -> tuple[float, list[RankSeen], JobPace] | None:
        """The first alarm: when, whom it means, and what was learnt until then. Looks are lost now and then."""
        pace, before, at = JobPace(), {}, 0.0
        suspects: list[RankSeen] = []
        lost = [0] * len(self.now)  # looks to come that will not be heard of each
        while at < until:
            at += LOOK_S * self.random.uniform(0.9, 1.5)
            for n in range(len(self.now)):
                lost[n] = lost[n] - 1 if lost[n] else self.random.randrange(1, 4) * (self.random.random() < 0.02)
                if n in before and lost[n]:
                    continue
                one = self.seen(n, at)
                if n in before:
                    pace.learn(before[n], one)
                before[n] = one
            if found := confirmed(suspects, overdue(before.values(), pace)):
                return at, found, pace
            suspects = overdue(before.values(), pace, LEAD_S)
        return None

"""Goodput of a job: its useful time, and the time that each failure cost, attempt by attempt."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.history import AttemptRecord

_TRAINED_TO_THE_END = (
    FailureKind.DONE,
    FailureKind.STOPPED,
    FailureKind.TOLD,
    FailureKind.NOTICE,
    FailureKind.WHOLE,
)  # saved, evaluated, left in good order


@dataclass(frozen=True, kw_only=True)
class TimeSplit:
    """Seconds of an attempt by what they were used for. Together they are its whole duration."""

    useful_s: float = 0.0  # steps, with their checkpoints and evaluations
    again_s: float = 0.0  # steps that an earlier attempt had done but not saved
    detecting_s: float = 0.0  # from the last step until the end was noticed
    clearing_s: float = 0.0  # ending the processes that were left
    waiting_s: float = 0.0  # for a host, the shared folder, a bound on attempts; or without a supervisor
    gate_s: float = 0.0  # checking hosts
    start_s: float = 0.0  # from mpirun to the first step, and what comes before mpirun
    unknown_s: float = 0.0  # of a program that reports no steps, in an attempt that did not end in good order

    @property
    def wall_s(self) -> float:
        """Return the sum of all parts."""
        return sum(dataclasses.astuple(self))

    def __add__(self, other: "TimeSplit") -> "TimeSplit":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return TimeSplit(
            **dict(zip((f.name for f in dataclasses.fields(TimeSplit)), (a + b for a, b in pairs), strict=True))
        )

    def rounded(self) -> "TimeSplit":
        """Return a copy with every part rounded to a tenth of a second."""
        return TimeSplit(**{name: round(value, 1) for name, value in dataclasses.asdict(self).items()})


@dataclass(frozen=True, kw_only=True)
class Account:
    """Account of a job's time, as a total and by attempt."""

    total: TimeSplit
    attempts: tuple[TimeSplit, ...]

    @property
    def ettr(self) -> float | None:
        """Return the effective training time ratio: useful time over all time.

        Return None before any time has passed.
        """
        return self.total.useful_s / self.total.wall_s if self.total.wall_s > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return the account as a JSON object."""
        ettr = None if self.ettr is None else round(self.ettr, 4)
        parts = [dataclasses.asdict(one) for one in (self.total, *self.attempts)]
        return {"ettr": ettr, "wall_s": round(self.total.wall_s, 1), "total": parts[0], "attempts": parts[1:]}


def account(history: Sequence[AttemptRecord], now: float, *, reports_steps: bool = True) -> Account:
    """Return the time used by these attempts. A running attempt counts until `now`.

    reports_steps: True: an attempt without a step never got beyond its start. False: how far it got is unknown.
    """
    spent, best = [], -1
    for i, attempt in enumerate(history):
        unsupervised = 0.0
        if not attempt.is_over and i + 1 < len(history):  # its supervisor ended first: its last known time is a step
            until = attempt.step_at or attempt.started or attempt.began
            unsupervised = max(0.0, history[i + 1].began - until)
            spent.append(_spent(attempt, best, until, reports_steps) + TimeSplit(waiting_s=unsupervised))
        else:
            spent.append(_spent(attempt, best, now, reports_steps))
        best = max(best, -1 if attempt.step is None else attempt.step)
    rounded = tuple(one.rounded() for one in spent)
    return Account(total=sum(rounded, TimeSplit()).rounded(), attempts=rounded)


def _spent(a: AttemptRecord, best: int, now: float, reports_steps: bool) -> TimeSplit:
    """Return the time used by one attempt.

    best: the furthest step of the attempts before it. -1 if they made none.
    """
    end = max(a.began, a.cleared or (now if not a.is_over else a.ended or a.began))

    def at(time: float | None, otherwise: float) -> float:
        return min(max(a.began, otherwise if time is None else time), end)

    noticed = at(a.noticed, at(a.ended, end))
    in_good_order = not a.is_over or a.what in _TRAINED_TO_THE_END
    tells_steps = a.first_step_at is not None
    is_known = tells_steps or (a.is_over and in_good_order)
    is_mute = a.is_over and not is_known and not reports_steps
    began = a.first_step_at if tells_steps or not (is_mute or is_known) else a.started
    first = min(at(began, noticed), noticed)
    last = max(first, at(a.ended, end) if in_good_order else min(at(a.step_at, first), noticed))
    if began is None or is_mute:
        last = first
    unknown = noticed - last if is_mute else 0.0
    again = (last - first) * _share_done_before(a, best)
    waiting = min(max(0.0, a.waited_s), first - a.began)
    gate = min(max(0.0, a.gate_s), first - a.began - waiting)
    return TimeSplit(
        useful_s=last - first - again,
        again_s=again,
        detecting_s=max(0.0, noticed - last - unknown),
        unknown_s=unknown,
        clearing_s=end - max(noticed, last),
        waiting_s=waiting,
        gate_s=gate,
        start_s=first - a.began - waiting - gate,
    )


def _share_done_before(a: AttemptRecord, best: int) -> float:
    """Return the share of the attempt's steps that an earlier attempt had done before."""
    if a.step is None or a.first_step is None or a.step < a.first_step:
        return 0.0
    return max(0, min(a.step, best) - a.first_step + 1) / (a.step - a.first_step + 1)

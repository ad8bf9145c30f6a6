"""Recovery policy after the end of an attempt: another attempt and its conditions, or the job's end and its reason.

Pure functions: no clock, no access to hosts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.history import AttemptRecord
from cluster.recovery.preemption import PreemptionNotice
from cluster.terminal import counted

HOUR_S = 3600.0
LONG_S = 600.0  # a program without heartbeats that ran so long did not fail at its start
LONGEST_PAUSE_S = 300.0
PATIENCE_S = 2 * HOUR_S  # without progress, where the number of attempts is not limited
RESUME_ON_NEW_HOSTS = "'inv jobs.resume' goes on with it on new ones"
_FIRST_PAUSE_S = 5.0
_LAUNCHES = 2  # failed starts in a row, after which the job ends
_FUTILE = 6  # attempts without progress, where their number is not limited
_OF_THE_STEP = (
    FailureKind.RANK_SIGNAL,
    FailureKind.HANG,
    FailureKind.SHARED_FOLDER,
)  # twice at the same step: the step's fault


@dataclass(frozen=True, kw_only=True)
class RecoveryTerms:
    """Limits on recovery, as the operator set them."""

    heal: bool = True
    attempts_per_hour: int = 6  # also the most in a row without progress; 0: no limit while there is progress


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Decision to start another attempt."""

    wait_s: float = 0.0  # before anything else
    without: str = ""  # a host to leave out at first
    leaving: tuple[PreemptionNotice, ...] = ()  # notices of hosts that will go, all left out at first
    suspect: str = ""  # a host to examine first
    needs_shared_folder: bool = False  # wait for it first
    # The first attempt after the queue: all hosts are checked, and another job may have taken them by then.
    is_turn: bool = False


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """Decision to end the job."""

    why: str = ""  # "" where there is nothing to explain


def decide(history: Sequence[AttemptRecord], terms: RecoveryTerms, now: float, since: int = 1) -> Retry | GiveUp:
    """Return what to do after these attempts, of which the last has just ended.

    A job whose attempts make no progress ends after `attempts_per_hour` of them in a row. If that is 0, it ends after
    six of them and two hours. Progress is a step beyond all earlier ones, or a new checkpoint.

    since: the first attempt of this supervisor. Attempts before a person resumed the job do not count.
    """
    last, recent = history[-1], [a for a in history if a.number >= since]
    if last.what in (FailureKind.DONE, FailureKind.STOPPED, FailureKind.SUPERVISOR) or not terms.heal:
        return GiveUp()
    if last.what is FailureKind.NOTICE and not last.host:
        return GiveUp(why=f"none of its hosts stays: {RESUME_ON_NEW_HOSTS}")
    if why := _hopeless(recent) or _futile(recent, terms, now):
        return GiveUp(why=why)
    if last.what is FailureKind.WHOLE:  # nothing has failed
        return Retry()
    begin = now + _pause_s(futile_attempts(recent))
    if terms.attempts_per_hour:
        starts = _starts(recent)[-terms.attempts_per_hour :]
        if len(starts) == terms.attempts_per_hour and starts[0] > begin - HOUR_S:
            begin = min(starts[0], now) + HOUR_S  # a start in the future: the clock was set back
    without = last.host if _hung_before(recent) else ""
    is_out = {without, *(notice.host for notice in last.leaving)}
    return Retry(
        wait_s=max(0.0, begin - now),
        without=without,
        leaving=last.leaving,
        suspect="" if last.host in is_out else last.host,
        needs_shared_folder=last.what is FailureKind.SHARED_FOLDER,
    )


def gains(history: Sequence[AttemptRecord]) -> list[bool]:
    """Return for each attempt whether it made progress: a step beyond all before it, or a new checkpoint."""
    found, best = [], -1
    for a in history:
        step = -1 if a.step is None else a.step
        found.append(a.saved or step > best)
        best = max(best, step)
    return found


def futile_attempts(history: Sequence[AttemptRecord]) -> int:
    """Return how many attempts in a row, the last included, made no progress."""
    return next((n for n, gained in enumerate(reversed(gains(history))) if gained), len(history))


def _futile(recent: Sequence[AttemptRecord], terms: RecoveryTerms, now: float) -> str:
    """Return why the job ends because it makes no progress. Return an empty string if it need not end yet."""
    count, most = futile_attempts(recent), terms.attempts_per_hour
    if recent[-1].what is FailureKind.WHOLE:  # one such attempt ends no job: it only left to get more hosts
        most = most and max(most, 2)
    before = recent[-count - 1] if count < len(recent) else None
    since = (before.ended or before.began) if before else recent[0].began
    if count < (most or _FUTILE) or (not most and now - since < PATIENCE_S):
        return ""
    why = f"{counted(count, 'attempt')} in a row gained no step and left no new checkpoint"
    if all(a.step is None for a in recent):
        why += "; a program shows its progress by 'job.beat(step)', or by checkpoints with new names"
    return why


def _hopeless(recent: Sequence[AttemptRecord]) -> str:
    """Return why another attempt would end as the last one did. Return an empty string if it need not."""
    last, futile = recent[-1], futile_attempts(recent)
    if last.what is FailureKind.PROGRAM:
        return "it is the program's own error, and would come again"
    if not futile:
        return ""
    if last.what is FailureKind.LAUNCH and [a.what for a in recent[-_LAUNCHES:]] == [FailureKind.LAUNCH] * _LAUNCHES:
        return "it could not be started twice, one time after the other"
    if last.what not in _OF_THE_STEP:
        return ""
    before = recent[:-1][-futile:]  # from the last attempt that made progress on
    alike = [a for a in before if a.what is last.what and a.step == last.step]
    if last.step is None:  # before the first step, as far as is known
        alike = [] if _was_long(last) else _early_and_alike(before, last)
    if last.what is FailureKind.HANG:  # the cause may be one host that hangs every time
        alike = [a for a in alike if not last.host or a.host != last.host] or alike[1:]
    return f"it ended so at the same step before, in attempt {alike[-1].number}" if alike else ""


def _early_and_alike(before: Sequence[AttemptRecord], last: AttemptRecord) -> list[AttemptRecord]:
    """Return the attempts right before the last that ended as it did, early and before any step."""
    is_other = (a.what is not last.what or a.step is not None or _was_long(a) for a in reversed(before))
    count = next((n for n, other in enumerate(is_other) if other), len(before))
    return list(before[len(before) - count :])


def _starts(recent: Sequence[AttemptRecord]) -> list[float]:
    """Return when each attempt began, without those that only followed a change to more hosts."""
    after = [None, *(a.what for a in recent)]
    return [a.started or a.began for a, before in zip(recent, after, strict=False) if before is not FailureKind.WHOLE]


def _hung_before(recent: Sequence[AttemptRecord]) -> bool:
    """Return True if the last attempt hung because of a host that had caused a hang before."""
    last = recent[-1]
    return bool(last.what is FailureKind.HANG and last.host) and any(
        a.what is FailureKind.HANG and a.host == last.host for a in recent[:-1]
    )


def _was_long(a: AttemptRecord) -> bool:
    """Return True if a program that reports no steps ran for long. The silent time of a hang does not count."""
    until = a.alive_at if a.what is FailureKind.HANG and a.alive_at else a.ended
    return a.step is None and a.started is not None and (until or a.started) - a.started >= LONG_S


def _pause_s(futile: int) -> float:
    """Return the pause before an attempt: 0, 5, 10, 20 … seconds, longer after more attempts without progress."""
    return 0.0 if futile < 2 else min(LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(futile - 2, 16))

"""What is done once an attempt has ended: the next one, on which terms, or the end and why. No clock, no hosts."""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.healing.departure import Departure
from cluster.healing.ending import Ending
from cluster.healing.history import AttemptRecord
from cluster.terminal import counted

HOUR_S = 3600.0
LONG_S = 600.0  # an attempt that tells no steps and went on for so long has done something
LONGEST_PAUSE_S = 300.0
RESUME_ON_NEW_HOSTS = "'inv jobs.resume' goes on with it on new ones"
_FIRST_PAUSE_S = 5.0
_LAUNCHES = 2  # one after the other that fail, after which there is no third
_OF_THE_STEP = (Ending.RANK_SIGNAL, Ending.HANG, Ending.SHARED_FOLDER)  # twice at the same step: the step's fault


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the operator allows."""

    heal: bool = True
    attempts_per_hour: int = 6  # 0: as many as it takes


@dataclass(frozen=True, kw_only=True)
class Again:
    """There is a next attempt."""

    wait_s: float = 0.0  # before anything else
    without: str = ""  # a host that it does without, at first
    leaving: tuple[Departure, ...] = ()  # what hosts said that go, all of which it does without, at first
    suspect: str = ""  # a host that is to be looked at first
    needs_shared_folder: bool = False  # it is to be waited for
    is_turn: bool = False  # it is the first one after the queue: all hosts are looked at, and may be taken after all


@dataclass(frozen=True, kw_only=True)
class End:
    """There is none."""

    why: str = ""  # "" where there is nothing to explain


def decide(history: Sequence[AttemptRecord], terms: Terms, now: float, since: int = 1) -> Again | End:
    """What follows from these attempts, of which the last has just ended.

    since: the first attempt of this supervisor; what a person has resumed begins with a clean slate.
    """
    last, recent = history[-1], [a for a in history if a.number >= since]
    if last.what in (Ending.DONE, Ending.STOPPED, Ending.SUPERVISOR) or not terms.heal:
        return End()
    if last.what is Ending.NOTICE and not last.host:
        return End(why=f"none of its hosts stays: {RESUME_ON_NEW_HOSTS}")
    if why := _hopeless(recent):
        return End(why=why)
    if last.what is Ending.WHOLE:  # nothing has failed
        return Again()
    gains = _gains(history)[-len(recent) :]
    begin = now + _pause_s(gains)
    if terms.attempts_per_hour:
        starts = _starts(recent)[-terms.attempts_per_hour :]
        if len(starts) == terms.attempts_per_hour and starts[0] > begin - HOUR_S:
            if not any(gains[-len(starts) :]):
                return End(why=f"{counted(len(starts), 'attempt')} within an hour, none of which gained a step")
            begin = starts[0] + HOUR_S
    return Again(
        wait_s=max(0.0, begin - now),
        without=last.host if _hung_before(recent) else "",
        leaving=last.leaving,
        suspect=last.host,
        needs_shared_folder=last.what is Ending.SHARED_FOLDER,
    )


def _hopeless(recent: Sequence[AttemptRecord]) -> str:
    """Why another attempt would end as the last one did; "" if it need not."""
    last, before = recent[-1], recent[:-1]
    if last.what is Ending.PROGRAM:
        return "it is the program's own error, and would come again"
    if last.what is Ending.LAUNCH and [a.what for a in recent[-_LAUNCHES:]] == [Ending.LAUNCH] * _LAUNCHES:
        return "it could not be started twice, one time after the other"
    if last.what not in _OF_THE_STEP:
        return ""
    alike = [a for a in before if a.what is last.what and a.step == last.step]
    if last.step is None:  # before the first step, as far as anybody knows
        alike = [a for a in before[-1:] if a in alike and not _was_long(a) and not _was_long(last)]
    if last.what is Ending.HANG:  # one host that hangs time and again may be what is wrong
        alike = [a for a in alike if not last.host or a.host != last.host] or alike[1:]
    return f"it ended so at the same step before, in attempt {alike[-1].number}" if alike else ""


def _starts(recent: Sequence[AttemptRecord]) -> list[float]:
    """When those attempts began that count: not those that follow on nothing but more hosts."""
    after = [None, *(a.what for a in recent)]
    return [a.started or a.began for a, before in zip(recent, after, strict=False) if before is not Ending.WHOLE]


def _hung_before(recent: Sequence[AttemptRecord]) -> bool:
    """Whether the last attempt hung by a host by which one has hung before."""
    last = recent[-1]
    return bool(last.what is Ending.HANG and last.host) and any(
        a.what is Ending.HANG and a.host == last.host for a in recent[:-1]
    )


def _gains(history: Sequence[AttemptRecord]) -> list[bool]:
    """Of each attempt, whether it went further than all before it."""
    gains, best = [], -1
    for a in history:
        gains.append(_was_long(a) if a.step is None else a.step > best)
        best = max(best, -1 if a.step is None else a.step)
    return gains


def _was_long(a: AttemptRecord) -> bool:
    """Whether it went on for long without telling a step."""
    return a.step is None and a.started is not None and (a.ended or a.started) - a.started >= LONG_S


def _pause_s(gains: Sequence[bool]) -> float:
    """0, 5, 10, 20 … seconds, the longer the more attempts in a row have gained nothing."""
    futile = next((i for i, gained in enumerate(reversed(gains)) if gained), len(gains))
    return 0.0 if futile < 2 else min(LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (futile - 2))

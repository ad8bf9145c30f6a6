"""Policy of the guard: when a cluster ends, when its users are warned and when jobs are saved. No clock, no AWS.

All times are seconds since 1970 by AWS's clock.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field

from cluster.guard.onhost.history import Past

WARN_S = (900.0, 300.0)  # seconds before the end; running jobs are saved with the last warning
NOTICE_S = 1200.0  # shortest notice of an end that new terms or a withdrawn 'keep' move nearer
SLACK_S = 120.0  # smallest change for which a lease is moved
BOOTING = "a first boot"  # kinds of useful work
REPEATS = 2  # after so many attempts without progress, a further one counts only once it gets further
STEPS = "steps of a job"
JOB = "job "  # prefix of a job's sign; its id follows, the value is its progress
REPEATING = "repeats"  # value of a job whose attempts make no progress
NEVER = 1e12  # stands for infinity, which JSON does not have
_LATE_S = 300.0  # AWS executes scheduled actions within two minutes
_BLOCK_LEAD_S = 1800.0
_START_S = 3600.0  # first boots within this time belong to a cluster's start; later ones are replacements'


@dataclass(frozen=True)
class GuardLimits:
    """Limits from the [guard] section of the cluster file; 0 turns a limit off."""

    idle_minutes: float = 0.0
    max_hours: float = 0.0
    budget_usd: float = 0.0
    usd_per_hour: float = 0.0  # price of one instance
    master_usd_per_hour: float = 0.0  # price of the master, if it differs; 0: the same
    block_ends: float = 0.0  # end of a capacity block; EC2 begins to end its instances half an hour earlier

    @property
    def hold_a_lease(self) -> bool:
        """Return True if any limit is set, so that the guard ends the cluster."""
        return bool(self.idle_minutes or self.max_hours or self.budget_usd)


@dataclass(frozen=True)
class GuardState:
    """State that the guard keeps between two checks."""

    began: float  # start of this run of the cluster: at least one node has been there ever since
    useful_at: float  # when useful work was seen last
    what: str  # kind of that work
    looked_at: float
    instances: tuple[str, ...] = ()
    hours: float = 0.0  # hours of all instances that the stack has had
    masters: int = 0  # of the instances those of the master's group
    master_hours: float = 0.0  # hours of the master's group alone
    is_counted: bool = False  # `began` and `hours` include the groups' history
    wishes: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By user: the id of the last 'inv keep' request, and until when it holds."""
    until: float | None = None  # the lease that AWS has accepted; if for one group only, the earlier of both ends
    is_half_set: bool = False  # AWS has accepted the last lease for one group only: it is requested again
    warned_s: float = NEVER  # seconds before the end of the last warning
    saved: bool = False
    signs: dict[str, str] = field(default_factory=dict)

    @property
    def kept_until(self) -> float:
        """Return the latest time up to which any user keeps the cluster. No user can shorten another's request."""
        return max((until for _, until in self.wishes.values()), default=0.0)


@dataclass(frozen=True)
class ClusterObservation:
    """Observation of a cluster at one moment."""

    now: float
    instances: tuple[str, ...]
    signs: dict[str, str]  # a change of a sign is useful work; see `useful`
    wishes: dict[str, tuple[str, float]] = field(default_factory=dict)  # keep requests by user: id and seconds
    masters: int = 0  # of the instances those of the master's group
    past: Past | None = None  # from the groups' history, if that was requested
    until: float | None = None  # scheduled end, although the terms are off


@dataclass(frozen=True)
class GuardDecision:
    """Decision of the policy: the lease to request, and when and why the cluster ends."""

    state: GuardState
    lease: float | None  # lease to request; None: no change
    end: float  # end of the cluster without further work; NEVER if none
    why: str


@dataclass(frozen=True)
class Warning:
    """Actions that are due before an end: a warning, and a save of the running jobs."""

    state: GuardState
    warn_s: float | None  # the warning that is due, in seconds before the end; None: no warning
    save: bool  # make running jobs save and stop now


def begin(look: ClusterObservation) -> GuardState:
    """Return the state of a cluster that is seen for the first time. Existing keep requests count as expired."""
    heard = {who: (wish, 0.0) for who, (wish, _) in look.wishes.items()}
    return GuardState(began=look.now, useful_at=look.now, what="its start", looked_at=look.now, wishes=heard)


def _heard(state: GuardState, look: ClusterObservation) -> dict[str, tuple[str, float]]:
    """Return each user's last keep request. A new request starts now and replaces only the same user's earlier one."""
    new = {
        who: (wish, look.now + seconds)
        for who, (wish, seconds) in look.wishes.items()
        if wish != state.wishes.get(who, ("", 0.0))[0]
    }
    return {**state.wishes, **new}


def wants_history(state: GuardState | None, instances: tuple[str, ...]) -> bool:
    """Return True if the groups' history is needed: it was never counted, or none of the instances is known."""
    return state is None or not state.is_counted or _are_others(state, instances)


def _are_others(state: GuardState, instances: tuple[str, ...]) -> bool:
    return bool(state.instances and instances) and not set(state.instances) & set(instances)


def useful(before: dict[str, str], now: dict[str, str]) -> str:
    """Return the name of a sign of useful work that has changed; "" if none has.

    Keys name the work and the host, as `terminal on ip-10-0-1-12`. A value that ends in `:0` has counted nothing yet,
    so a host that has just booted is no work.
    """
    changed = [what for what, value in now.items() if before.get(what) != value and not value.endswith(":0")]
    return min(changed, default="")


def plan(terms: GuardLimits, state: GuardState, look: ClusterObservation) -> GuardDecision:
    """Return the plan that follows from a check of the cluster."""
    state = _seen(state, look)
    if not terms.hold_a_lease:  # an end that an earlier guard has set still gets warnings
        state = dataclasses.replace(state, until=look.until)
    wanted, why = _end(terms, state, look.now)
    target = _target(wanted, state.until, look.now)
    moves = target is not None and (state.until is None or state.is_half_set or abs(target - state.until) >= SLACK_S)
    return GuardDecision(state=state, lease=target if moves else None, end=wanted, why=why)


def _target(wanted: float, until: float | None, now: float) -> float | None:
    """Return the lease to request, given the current one; None if it stays or AWS is about to execute it."""
    if wanted == NEVER:
        return None
    if until is None:
        return max(wanted, now + NOTICE_S)
    if wanted >= until and wanted > now:
        return wanted
    if until > now:
        return min(until, max(wanted, now + NOTICE_S))
    return None if now - until < _LATE_S else now + SLACK_S  # somebody has removed the scheduled action


def taken(state: GuardState, lease: float) -> GuardState:
    """Return the state after AWS has accepted a lease."""
    return dataclasses.replace(state, until=lease, is_half_set=False)


def half_taken(state: GuardState, lease: float) -> GuardState:
    """Return the state after AWS has accepted a lease for one group only: users are warned of the earlier end."""
    return dataclasses.replace(state, until=min(lease, state.until or lease), is_half_set=True)


def _seen(state: GuardState, look: ClusterObservation) -> GuardState:
    """Return the state after this check.

    A new run begins if none of the instances was there before, unless the groups' history shows that they are
    replacements.
    """
    gap_s = max(0.0, look.now - state.looked_at)
    goes_on = look.past is not None and look.past.began <= state.looked_at
    if _are_others(state, look.instances) and not goes_on:
        state = dataclasses.replace(
            begin(look),
            hours=state.hours,
            master_hours=state.master_hours,
            wishes={who: (wish, 0.0) for who, (wish, _) in state.wishes.items()},
            signs=dict(look.signs),
            looked_at=look.now,
        )
        gap_s = 0.0
    what = useful(state.signs, {k: v for k, v in look.signs.items() if _may_count(k, state, look)})
    state = dataclasses.replace(
        state,
        looked_at=look.now,
        instances=look.instances or state.instances,
        masters=look.masters if look.instances else state.masters,
        hours=state.hours + gap_s / 3600 * max(len(look.instances), len(state.instances)),
        master_hours=state.master_hours + gap_s / 3600 * max(look.masters, state.masters),
        useful_at=look.now if what else state.useful_at,
        what=what or state.what,
        wishes=_heard(state, look),
        signs={**state.signs, **look.signs},  # keep signs that cannot be read now, so that they do not look new later
    )
    return _counted(state, look.past)


def _counted(state: GuardState, past: Past | None) -> GuardState:
    """Return the state with the groups' history included: the time before the first look, and without a guard."""
    if past is None:
        return state
    return dataclasses.replace(
        state,
        is_counted=True,
        began=min(state.began, past.began),
        hours=max(state.hours, past.hours),
        master_hours=max(state.master_hours, past.master_hours),
    )


def _may_count(sign: str, state: GuardState, look: ClusterObservation) -> bool:
    """Return True if a change of this sign counts as useful work.

    First boots count only in a cluster's first hour or while a job recovers. Otherwise nodes that fail again and again
    would keep a forgotten cluster alive. After the guard has told jobs to save and stop, changes of those jobs are its
    own doing; a new job counts. A job that only repeats what earlier attempts did is no useful work.
    """
    jobs = {k: v for k, v in look.signs.items() if k.startswith(JOB)}
    if jobs.get(sign) == REPEATING or (sign.startswith(STEPS) and jobs and set(jobs.values()) == {REPEATING}):
        return False
    if state.saved and sign in state.signs and sign.startswith((JOB, STEPS)):
        return False
    heals = any(v.startswith("healing") for v in jobs.values())
    return not sign.startswith(BOOTING) or heals or look.now - state.began < _START_S


def _end(terms: GuardLimits, state: GuardState, now: float) -> tuple[float, str]:
    """Return when the cluster ends by the terms, and why; NEVER and "" if no term applies."""
    ends = []
    if terms.idle_minutes:
        idle = state.useful_at + terms.idle_minutes * 60
        kept = state.kept_until > idle
        why = "'inv keep' was for so long" if kept else f"no useful work since {clock(state.useful_at)} ({state.what})"
        ends.append((max(idle, state.kept_until), why))
    if terms.max_hours:
        ends.append((state.began + terms.max_hours * 3600, f"guard.max_hours is {terms.max_hours:g}"))
    rate = _usd(terms, len(state.instances), state.masters)
    if terms.budget_usd and rate:
        left = terms.budget_usd - _usd(terms, state.hours, state.master_hours)
        ends.append((now + max(0.0, left) / rate * 3600, f"guard.budget_usd is {terms.budget_usd:g}"))
    return min(ends, default=(NEVER, ""))


def _usd(terms: GuardLimits, amount: float, of_masters: float) -> float:
    """Return the price of `amount` instance hours, `of_masters` of which are the master's.

    For a number of instances instead of hours, this is their price per hour.
    """
    more = (terms.master_usd_per_hour or terms.usd_per_hour) - terms.usd_per_hour
    return amount * terms.usd_per_hour + of_masters * more


def warning(terms: GuardLimits, state: GuardState, now: float) -> Warning:
    """Return what is due before the next end: each warning once, and a save with the last one.

    EC2 itself ends a capacity block. The guard only warns and saves then.
    """
    end = next_end(terms, state, now)
    due = min((w for w in WARN_S if end - now <= w), default=None)
    if due is None:  # the end is far off again or past: the next end gets all warnings
        state = dataclasses.replace(state, warned_s=NEVER, saved=False)
        return Warning(state=state, warn_s=None, save=False)
    is_new, save = due < state.warned_s, due == WARN_S[-1] and not state.saved
    state = dataclasses.replace(state, warned_s=min(state.warned_s, due), saved=state.saved or save)
    return Warning(state=state, warn_s=due if is_new else None, save=save)


def next_end(terms: GuardLimits, state: GuardState, now: float) -> float:
    """Return when the nodes end as things are set: by the lease or, if earlier, with the capacity block.

    NEVER if neither.
    """
    return min(NEVER if state.until is None else state.until, _block_end(terms, now))


def reason(terms: GuardLimits, state: GuardState, end: float, of_lease: str) -> str:
    """Return why the next end comes.

    If the terms are off, an earlier guard has set it, and the master may not move it.
    """
    if end != state.until:
        return "its capacity block ends" if end != NEVER else ""
    left = "its guard was turned off and this end was left: 'inv stack.update' takes it away"
    return of_lease if terms.hold_a_lease else left


def _block_end(terms: GuardLimits, now: float) -> float:
    """Return when EC2 begins to end the instances of a capacity block; NEVER without a block, or once it is over."""
    return terms.block_ends - _BLOCK_LEAD_S if now < terms.block_ends else NEVER


def clock(at: float) -> str:
    """Format a time for people, in hours and minutes UTC."""
    return time.strftime("%H:%M UTC", time.gmtime(at))

"""When a cluster ends: the guard's policy as a table, and 300 drawn schedules in which no running job is ended."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.guard.onhost import renew
from cluster.guard.onhost.api import GroupStates, Refused
from cluster.guard.onhost.history import Past
from cluster.guard.onhost.policy import (
    NEVER,
    ClusterObservation,
    GuardLimits,
    GuardState,
    begin,
    next_end,
    plan,
    reason,
    taken,
    useful,
    wants_history,
    warning,
)
from cluster.guard.onhost.renew import GuardPaths

T = 1_800_000_000.0
MINUTE, HOUR = 60.0, 3600.0
IDLE = GuardLimits(idle_minutes=60)
STATE = GuardState(began=T, useful_at=T, what="its start", looked_at=T, instances=("i-1", "i-2"), until=T + HOUR)


def look(after_s: float, **more: Any) -> ClusterObservation:
    return ClusterObservation(**{"now": T + after_s, "instances": ("i-1", "i-2"), "signs": {}, **more})


@pytest.mark.parametrize(
    ("terms", "state", "seen", "lease"),
    [
        pytest.param(IDLE, replace(STATE, until=None), look(0), T + HOUR, id="none yet: it is asked for"),
        pytest.param(IDLE, STATE, look(MINUTE), None, id="nothing done: it stays"),
        pytest.param(IDLE, STATE, look(30 * MINUTE, signs={"a": "1"}), T + 90 * MINUTE, id="work: put off"),
        pytest.param(IDLE, STATE, look(MINUTE, signs={"a": "1"}), None, id="not moved for a minute"),
        pytest.param(IDLE, STATE, look(MINUTE, signs={"a on b": "x:0"}), None, id="a host that has booted is no work"),
        pytest.param(
            IDLE, replace(STATE, signs={"a": "1"}), look(30 * MINUTE, signs={"a": "1"}), None, id="a hung job: no change"
        ),
        pytest.param(
            IDLE, STATE, look(30 * MINUTE, signs={"job a": "repeats", "steps of a job on b": "x:2"}), None, id="it repeats itself"
        ),
        pytest.param(
            IDLE, STATE, look(30 * MINUTE, signs={"job a": "repeats", "job b": "running 1", "steps of a job on b": "x:2"}),
            T + 90 * MINUTE, id="one of two goes on",
        ),
        pytest.param(IDLE, STATE, look(MINUTE, wishes={"a": ("k", 2 * HOUR)}), T + 2 * HOUR + MINUTE, id="kept"),
        pytest.param(
            IDLE, replace(STATE, wishes={"a": ("k", 0.0)}), look(MINUTE, wishes={"a": ("k", 2 * HOUR)}), None, id="kept once for one wish"
        ),
        pytest.param(IDLE, STATE, look(59 * MINUTE, signs={"a": "1"}), T + 119 * MINUTE, id="in the last minute"),
        pytest.param(IDLE, STATE, look(61 * MINUTE), None, id="AWS is about to do it"),
        pytest.param(IDLE, STATE, look(61 * MINUTE, signs={"a": "1"}), T + 121 * MINUTE, id="it has not done it yet"),
        pytest.param(IDLE, STATE, look(70 * MINUTE), T + 72 * MINUTE, id="somebody has taken it away"),
        pytest.param(
            GuardLimits(idle_minutes=30), replace(STATE, until=T + 8 * HOUR), look(HOUR), T + 80 * MINUTE, id="shorter: no sooner than in 20"
        ),
        pytest.param(
            GuardLimits(max_hours=2), STATE, look(30 * MINUTE, signs={"a": "1"}), T + 2 * HOUR, id="max_hours, whatever is done"
        ),
        pytest.param(
            GuardLimits(idle_minutes=60, max_hours=1.25),
            STATE,
            look(30 * MINUTE, signs={"a": "1"}, wishes={"a": ("k", 9 * HOUR)}),
            T + 1.25 * HOUR,
            id="neither work nor a wish goes beyond max_hours",
        ),
        pytest.param(
            GuardLimits(budget_usd=10, usd_per_hour=2), STATE, look(30 * MINUTE), T + 2.5 * HOUR, id="2 USD gone, 4 an hour"
        ),
        pytest.param(
            GuardLimits(budget_usd=10, usd_per_hour=4, master_usd_per_hour=1),
            replace(STATE, hours=2.0, master_hours=1.0, masters=1, until=T + 5 * HOUR),
            look(0, masters=1),
            T + HOUR,
            id="a master of another price: 5 USD gone, 5 an hour",
        ),
        pytest.param(
            GuardLimits(budget_usd=10, usd_per_hour=2),
            replace(STATE, hours=5.0, until=T + 5 * HOUR),
            look(0),
            T + 20 * MINUTE,
            id="a budget that is spent is said 20 minutes before",
        ),
        pytest.param(GuardLimits(), STATE, look(30 * MINUTE, signs={"a": "1"}), None, id="off"),
    ],
)  # fmt: skip
def test_the_lease_that_follows_from_a_look(
    terms: GuardLimits, state: GuardState, seen: ClusterObservation, lease: float | None
) -> None:
    asked = plan(terms, state, seen).lease
    assert asked == pytest.approx(lease, abs=1) if lease is not None else asked is None


def test_a_wish_takes_the_place_of_ones_own_alone() -> None:
    """Who keeps the cluster for 12 hours has them, whatever shorter wish another has; another run begins without any."""
    ends, state = [], STATE
    for wishes in (
        {"a": ("1", 12 * HOUR)},
        {"a": ("1", 12 * HOUR), "b": ("2", 2 * HOUR)},
        {"a": ("3", 3 * HOUR), "b": ("2", 2 * HOUR)},
        {"b": ("2", 2 * HOUR)},
    ):
        found = plan(IDLE, state, look(0, wishes=wishes))
        state, ends = found.state, [*ends, found.end - T]
    assert [12 * HOUR, 12 * HOUR, 3 * HOUR, 3 * HOUR] == ends
    again = plan(IDLE, state, look(5 * HOUR, instances=("i-8", "i-9"), wishes={"b": ("2", 2 * HOUR)}))
    assert T + 6 * HOUR == again.end


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        ({}, {"job a": "running 1 5"}, "job a"),
        ({"job a": "running 1 5"}, {"job a": "running 1 6"}, "job a"),
        ({"job a": "running 1 5"}, {"job a": "running 1 5"}, ""),
        ({"job a": "running 1 5"}, {}, ""),
        ({"a terminal on b": "boot1:7"}, {"a terminal on b": "boot2:0"}, ""),
        ({"a terminal on b": "boot1:7"}, {"a terminal on b": "boot2:1"}, "a terminal on b"),
    ],
)
def test_useful_is_what_has_changed(before: dict[str, str], now: dict[str, str], what: str) -> None:
    assert what == useful(before, now)


def test_each_warning_comes_once_and_the_last_one_saves() -> None:
    """At 15 and 5 minutes; put off, they come again before the next end."""
    state, said = STATE, []
    for minute in range(30, 61):
        told = warning(IDLE, state, T + minute * MINUTE)
        state = told.state
        said += [(minute, told.warn_s, told.save)] if told.warn_s or told.save else []
    assert [(45, 900, False), (55, 300, True)] == said
    state = warning(IDLE, taken(state, T + 116 * MINUTE), T + 56 * MINUTE).state
    assert (NEVER, False) == (state.warned_s, state.saved)


@pytest.mark.parametrize(
    ("signs", "end"),
    [
        ({"job a-1": "running 1 8 9"}, 60 * MINUTE),  # it was frozen, and goes on to save
        ({"job a-1": "stopping 1 7 9"}, 60 * MINUTE),
        ({"steps of a job on b": "boot:8"}, 60 * MINUTE),
        ({"job a-2": "running 1 1 9"}, 117 * MINUTE),
        ({"a terminal on b": "boot:1"}, 117 * MINUTE),
    ],
)
def test_what_a_job_does_that_was_told_to_save_and_leave_keeps_no_cluster(signs: dict[str, str], end: float) -> None:
    """Somebody who comes meanwhile does, and so does another job of his."""
    before = replace(STATE, signs={"job a-1": "running 1 7 9", "steps of a job on b": "boot:7"})
    state = warning(IDLE, before, T + 56 * MINUTE).state
    assert state.saved
    assert T + end == plan(IDLE, state, look(57 * MINUTE, signs={**before.signs, **signs})).end


def test_a_capacity_block_has_a_warning_and_a_save_and_no_lease() -> None:
    block = GuardLimits(block_ends=T + HOUR)  # its instances are ended from half an hour before
    assert plan(block, replace(STATE, until=None), look(20 * MINUTE)).lease is None
    assert (None, 900, 300) == tuple(
        warning(block, replace(STATE, until=None), T + m * MINUTE).warn_s for m in (14, 16, 26)
    )
    assert warning(block, replace(STATE, until=None), T + 26 * MINUTE).save


def test_a_capacity_block_that_ends_before_the_lease_has_its_warnings_and_the_lease_has_its_own() -> None:
    """Each once, however often the lease is put off meanwhile: a small master goes on after the block."""
    terms = GuardLimits(idle_minutes=60, block_ends=T + HOUR)  # its instances are ended from half an hour before
    state, said = STATE, []
    for minute in range(0, 181):
        now = T + minute * MINUTE
        if minute <= 90:
            state = taken(state, now + HOUR)
        told = warning(terms, state, now)
        state = told.state
        said += [(minute, told.warn_s, told.save)] if told.warn_s or told.save else []
    assert [(15, 900, False), (25, 300, True), (135, 900, False), (145, 300, True)] == said
    assert "its capacity block ends" == reason(terms, STATE, next_end(terms, STATE, T), "idle")
    assert "idle" == reason(terms, STATE, next_end(terms, STATE, T + HOUR), "idle")


def test_an_end_that_a_guard_which_is_off_has_left_is_warned_of_while_it_is_there() -> None:
    """Nobody may move it but the operator: the master's right goes with the guard."""
    said = [warning(GuardLimits(), plan(GuardLimits(), STATE, look(0, until=T + s)).state, T) for s in (800.0, 200.0)]
    assert [(900, False), (300, True)] == [(one.warn_s, one.save) for one in said]
    assert "its guard was turned off" in reason(GuardLimits(), said[0].state, T + 800, "")
    gone = plan(GuardLimits(), said[1].state, look(0))
    assert (None, None) == (gone.lease, gone.state.until)
    assert (None, False) == (warning(GuardLimits(), gone.state, T).warn_s, warning(GuardLimits(), gone.state, T).save)


def test_another_run_begins_where_no_instance_is_of_the_last() -> None:
    """A master that was replaced goes on where its predecessor was; one after a stop begins anew, but for the budget."""
    later = look(5 * HOUR, instances=("i-2", "i-3"))
    assert T == plan(IDLE, STATE, later).state.began
    again = plan(IDLE, replace(STATE, hours=7.0), look(5 * HOUR, instances=("i-8", "i-9"))).state
    assert (T + 5 * HOUR, T + 5 * HOUR, 7.0) == (again.began, again.useful_at, again.hours)


def test_a_single_master_that_was_replaced_goes_on() -> None:
    """Where the groups' history says that its successor belongs to the same run: idle time, hours and budget."""
    terms = GuardLimits(idle_minutes=60, max_hours=3, budget_usd=9, usd_per_hour=2)
    state = replace(STATE, instances=("i-1",), hours=1.0, until=T + HOUR, is_counted=True)
    past = Past(began=T - HOUR, hours=1.5, master_hours=1.5)
    again = plan(terms, state, look(40 * MINUTE, instances=("i-2",), past=past))
    assert (T - HOUR, T, T + HOUR) == (again.state.began, again.state.useful_at, again.end)
    assert 1.0 + 40 / 60 == pytest.approx(again.state.hours), "the more of what was seen and of what is told"
    assert again.lease is None, "its end stays where it was"

    stopped = Past(began=T + 30 * MINUTE, hours=2.5, master_hours=2.5)
    anew = plan(terms, state, look(40 * MINUTE, instances=("i-2",), past=stopped)).state
    assert (T + 30 * MINUTE, T + 40 * MINUTE, 2.5) == (anew.began, anew.useful_at, anew.hours)


def test_a_guard_that_comes_later_counts_from_the_nodes_start() -> None:
    """And asks for the history until it has it, also where nothing is known of the instances that are there."""
    seen = look(5 * HOUR, past=Past(began=T, hours=10.0, master_hours=5.0))
    state = plan(GuardLimits(max_hours=6), begin(seen), seen).state
    assert (T, T + 5 * HOUR, 10.0, 5.0) == (state.began, state.useful_at, state.hours, state.master_hours)
    assert not wants_history(state, ("i-2",)) and wants_history(state, ("i-7",))
    assert wants_history(None, ()) and wants_history(STATE, ("i-1",))


@pytest.mark.parametrize(
    ("after_s", "job", "what"),
    [
        (30 * MINUTE, "", "a first boot on b"),
        (2 * HOUR, "", "its start"),
        (2 * HOUR, "healing 2 5", "a first boot on b"),
    ],
)
def test_first_boots_of_successors_keep_no_forgotten_cluster(after_s: float, job: str, what: str) -> None:
    """A node that goes down every hour would; but one for which a job waits is work."""
    signs = {"a first boot on b": "boot2:1", **({"job a": job} if job else {})}
    state = replace(STATE, signs={"job a": job})
    assert what == plan(IDLE, state, look(after_s, signs=signs)).state.what


def test_hours_are_those_of_all_instances() -> None:
    state = STATE
    for minute in range(0, 91, 10):
        state = plan(IDLE, state, look(minute * MINUTE)).state
    assert 3.0 == pytest.approx(state.hours)


IDLE_MINUTES = 60


@dataclass
class World:
    """A cluster, AWS and a clock that goes wrong, simulated; the guard's own `look` meets them."""

    outages: list[tuple[int, int]]  # minutes
    now: float = T  # AWS's
    wrong_s: float = 0.0  # of the master's clock
    until: float = T + 90 * MINUTE  # as `stack.create` has set it
    has_ended: bool = False
    offset_s: float = 0.0
    has_answered: bool = False
    signs: dict[str, str] = field(default_factory=dict)
    kept: Any = (None, None, None)

    @property
    def is_silent(self) -> bool:
        minute = (self.now - T) / MINUTE
        return any(start <= minute < start + length for start, length in self.outages)

    def pass_a_minute(self) -> None:
        self.now += MINUTE
        self.has_ended = self.has_ended or self.now >= self.until

    # what `Api` does, whose offset is of one process alone
    def groups(self) -> GroupStates:
        self._answer()
        return GroupStates(terms=GuardLimits(idle_minutes=IDLE_MINUTES), instances=("i-1", "i-2"))

    def past(self, now: GroupStates) -> Past:
        self._answer()
        return Past(began=T, hours=0.0, master_hours=0.0)

    def put(self, at: float) -> None:
        self._answer()
        if at <= self.now:
            raise Refused("Given start time is in the past")
        self.until = at

    def _answer(self) -> None:
        if self.is_silent:
            raise Refused("AWS does not answer")
        self.offset_s, self.has_answered = -self.wrong_s, True

    def tick(self) -> renew.GuardReport:
        self.offset_s, self.has_answered = 0.0, False  # a new process
        guard = Guard(self)
        return renew.check_once(guard, GuardPaths(name="x", shared="/nowhere"), lambda: self.now)


class Guard:
    """`World` as the guard sees it: by the master's clock."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    @property
    def offset_s(self) -> float:
        return self._world.offset_s

    @offset_s.setter
    def offset_s(self, value: float) -> None:
        self._world.offset_s = value

    def now(self) -> float:
        return self._world.now + self._world.wrong_s + self._world.offset_s


LENGTHS = st.integers(1, 80) | st.integers(IDLE_MINUTES - 8, IDLE_MINUTES)  # the last minutes before an end are few
PHASES = st.lists(
    st.tuples(st.sampled_from(["work", "work", "idle", "input", "hang"]), LENGTHS), min_size=1, max_size=4
)
OUTAGES = st.lists(st.tuples(st.integers(1, 240), st.integers(1, IDLE_MINUTES - 11)), max_size=3)
JUMPS = st.dictionaries(st.integers(1, 240), st.integers(-7200, 7200), max_size=4)


@pytest.mark.seconds
@settings(max_examples=300, deadline=None)
@given(phases=PHASES, outages=OUTAGES, jumps=JUMPS)
def test_no_running_job_is_ended_and_no_forgotten_cluster_goes_on(
    phases: list[tuple[str, int]], outages: list[tuple[int, int]], jumps: dict[int, int]
) -> None:
    """300 schedules of work, input, hangs, silent AWS and clock jumps, with only idle_minutes on.

    A job counts as running once the guard has put the end off for it: one that begins minutes before an announced end
    while AWS does not answer cannot be helped. A job that was told to save leaves, and what works later is another one.
    Outages follow each other after one answer at least.
    """
    apart = [o for n, o in enumerate(sorted(outages)) if not n or sorted(outages)[n - 1][0] + IDLE_MINUTES <= o[0]]
    world, minute, useful_at, was_heard, was_told, job = World(outages=apart), 0, T, False, False, 1
    done = {"work": 0, "input": 0, "idle": 0, "hang": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renew, "signs", lambda place: dict(world.signs))
        patch.setattr(renew, "wishes", lambda place: {})
        patch.setattr(renew, "_reports", lambda place: [])
        patch.setattr(renew, "_remembered", lambda place, monotonic: _recalled(world, monotonic))
        patch.setattr(renew, "_remember", lambda place, *said: not setattr(world, "kept", said))
        for kind, minutes in [*phases, ("idle", 2 * IDLE_MINUTES)]:
            was_heard = False
            for _ in range(minutes):
                minute += 1
                world.wrong_s += jumps.get(minute, 0)
                done[kind] += 1
                if was_told and kind == "work":
                    was_told, job = False, job + 1
                world.signs = {f"job {job}": f"running 1 {done['work']}", "a terminal on b": f"boot:{done['input']}"}
                world.pass_a_minute()
                if world.has_ended:
                    assert not was_heard, f"a running job was ended in minute {minute}"
                    assert world.now - useful_at <= (IDLE_MINUTES + 30 + 5) * MINUTE
                    return
                # What the guard sees first it takes for the start, which it has not seen.
                if kind in ("work", "input") or world.kept == (None, None, None):
                    useful_at = world.now
                outcome = world.tick()
                was_heard = kind == "work" and (was_heard or not world.is_silent)
                assert not (was_heard and outcome.save), f"a running job was saved in minute {minute}"
                was_told |= outcome.save
                if not world.is_silent:
                    assert world.until - useful_at <= (IDLE_MINUTES + 5) * MINUTE
    raise AssertionError("it goes on for ever")


def _recalled(world: World, monotonic: float) -> Any:
    """As `renew` reads it back from /run."""
    if world.kept == (None, None, None):
        return world.kept
    state, terms, now, then = world.kept
    return state, terms, now + monotonic - then

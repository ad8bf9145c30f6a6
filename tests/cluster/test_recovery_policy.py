"""What is done about an attempt's end: every kind and history in a table, and what holds for every schedule."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.goodput import Account, TimeSplit, account
from cluster.recovery.history import AttemptRecord, History
from cluster.recovery.policy import HOUR_S, LONG_S, LONGEST_PAUSE_S, GiveUp, RecoveryTerms, Retry, decide
from cluster.recovery.preemption import PreemptionNotice
from cluster.typed import from_json

NOW = 1_000_000.0


def ended(
    number: int, what: FailureKind, step: int | None = None, host: str = "", at: float = NOW, lasted: float = 60.0
) -> Any:
    """An attempt that has ended at this time."""
    return AttemptRecord(
        number=number, np=4, hosts=("a", "b"), began=at - lasted - 1, started=at - lasted, ended=at, what=what, step=step,
        host=host,
    )  # fmt: skip


def after(*attempts: Any, **terms: Any) -> Any:
    """What is decided after attempts, given as (what, step, host)."""
    history = [ended(i + 1, *a, at=NOW - 100.0 * (len(attempts) - 1 - i)) for i, a in enumerate(attempts)]
    return decide(history, RecoveryTerms(**terms), NOW)


SEGFAULT, HANG, SHARED = FailureKind.RANK_SIGNAL, FailureKind.HANG, FailureKind.SHARED_FOLDER
AT_THE_SAME_STEP = GiveUp(why="it ended so at the same step before, in attempt 1")


@pytest.mark.parametrize(
    ("attempts", "decision"),
    [
        ([(FailureKind.DONE, 9, "")], GiveUp()),
        ([(FailureKind.STOPPED, 9, "")], GiveUp()),
        ([(FailureKind.SUPERVISOR, 9, "")], GiveUp()),
        ([(FailureKind.HOST, 9, "b")], Retry(suspect="b")),
        ([(FailureKind.HOST, 9, "b"), (FailureKind.HOST, 9, "b")], Retry(suspect="b")),
        ([(FailureKind.NOTICE, 9, "b")], Retry(suspect="b")),
        ([(FailureKind.NOTICE, 9, "")], GiveUp(why="none of its hosts stays: 'inv jobs.resume' goes on with it on new ones")),
        ([(FailureKind.MASTER, 9, "")], Retry()),
        ([(FailureKind.TOLD, 9, "b")], Retry(suspect="b")),
        ([(FailureKind.DAEMON, 9, "b")], Retry(suspect="b")),
        ([(FailureKind.GPU, 9, "b")], Retry(suspect="b")),
        ([(FailureKind.GPU, 9, "b"), (FailureKind.GPU, 9, "b")], Retry(suspect="b")),
        ([(FailureKind.WHOLE, 9, "")], Retry()),
        ([(FailureKind.WHOLE, 9, ""), (FailureKind.WHOLE, 9, "")], Retry()),
        ([(FailureKind.PROGRAM, 9, "b")], GiveUp(why="it is the program's own error, and would come again")),
        ([(FailureKind.LAUNCH, None, "")], Retry()),
        ([(FailureKind.LAUNCH, None, ""), (FailureKind.LAUNCH, None, "")],
         GiveUp(why="it could not be started twice, one time after the other")),
        ([(FailureKind.LAUNCH, None, ""), (FailureKind.HOST, 9, "b"), (FailureKind.LAUNCH, None, "")], Retry()),
        ([(SHARED, 9, "")], Retry(needs_shared_folder=True)),
        ([(SHARED, 9, ""), (SHARED, 9, "")], AT_THE_SAME_STEP),
        ([(SHARED, 9, ""), (SHARED, 12, "")], Retry(needs_shared_folder=True)),
        ([(SEGFAULT, 9, "b")], Retry(suspect="b")),
        ([(SEGFAULT, 9, "b"), (SEGFAULT, 9, "a")], AT_THE_SAME_STEP),
        ([(SEGFAULT, 9, "b"), (SEGFAULT, 9, "b")], AT_THE_SAME_STEP),
        ([(SEGFAULT, 9, "b"), (SEGFAULT, 10, "b")], Retry(suspect="b")),
        ([(SEGFAULT, 9, "b"), (HANG, 9, "b")], Retry(suspect="b")),
        ([(SEGFAULT, 9, "b"), (FailureKind.HOST, 4, "a"), (SEGFAULT, 9, "b")], AT_THE_SAME_STEP),
        ([(SEGFAULT, None, "b"), (SEGFAULT, None, "b")], AT_THE_SAME_STEP),
        ([(SEGFAULT, None, "b"), (SEGFAULT, 3, "b")], Retry(suspect="b")),
        ([(SEGFAULT, None, "b"), (FailureKind.HOST, None, "b"), (SEGFAULT, None, "b")], Retry(suspect="b")),
        ([(HANG, 9, "b")], Retry(suspect="b")),
        ([(HANG, 9, "b"), (HANG, 9, "a")], AT_THE_SAME_STEP),
        ([(HANG, 9, ""), (HANG, 9, "")], AT_THE_SAME_STEP),
        ([(HANG, 9, "b"), (HANG, 9, "b")], Retry(without="b")),
        ([(HANG, 9, "b"), (HANG, 30, "b")], Retry(without="b")),
        ([(HANG, 9, "b"), (HANG, 9, "b"), (HANG, 9, "b")],
         GiveUp(why="it ended so at the same step before, in attempt 2")),
        ([(HANG, None, "b"), (HANG, None, "b")], Retry(without="b")),
        ([(HANG, None, "b"), (HANG, None, "b"), (HANG, None, "b")],
         GiveUp(why="it ended so at the same step before, in attempt 2")),
        ([(SEGFAULT, 9, "b"), (FailureKind.HOST, 50, "a"), (SEGFAULT, 9, "b")], Retry(suspect="b")),
        ([(FailureKind.LAUNCH, None, ""), (FailureKind.LAUNCH, 4, "")], Retry()),
    ],
)  # fmt: skip
def test_what_is_done_about_each_end(attempts: Any, decision: Any) -> None:
    """With the pause left aside, which has a test of its own."""
    said = after(*attempts)
    assert decision == (dataclasses.replace(said, wait_s=0.0) if isinstance(said, Retry) else said)


def test_all_hosts_that_said_that_they_go_are_done_without() -> None:
    """Not only the one that goes first, which the attempt's end names."""
    leaving = tuple(
        PreemptionNotice(at=NOW + n, host=host, kind="spot", text="so it is") for n, host in enumerate("ba")
    )
    last = dataclasses.replace(ended(1, FailureKind.NOTICE, 9, "b"), leaving=leaving)
    assert Retry(leaving=leaving) == decide([last], RecoveryTerms(), NOW)
    record = json.loads(json.dumps(dataclasses.asdict(History(attempts=(last,)))))
    assert (last,) == from_json(History, record).attempts


@pytest.mark.parametrize("what", list(FailureKind))
def test_without_healing_every_end_is_final(what: FailureKind) -> None:
    """--no-heal, and records from before there was healing: one attempt, and nothing more is said."""
    assert GiveUp() == after((what, 9, "b"), heal=False)


def test_attempts_that_gain_nothing_come_later_and_later() -> None:
    """0, 5, 10, 20 … 300 s, and none once a step is gained; the same step again is no gain."""
    terms = RecoveryTerms(attempts_per_hour=0)
    history, pauses = [ended(1, FailureKind.DAEMON, 50, "b")], []
    for number in range(2, 12):
        history.append(ended(number, FailureKind.DAEMON, 50 - number % 3, "b"))
        pauses.append(decide(history, terms, NOW).wait_s)
    assert [0, 5, 10, 20, 40, 80, 160, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S] == pauses
    assert Retry(suspect="b") == decide([*history, ended(12, FailureKind.DAEMON, 51, "b")], terms, NOW)


def test_the_bound_is_waited_for_where_steps_are_gained_and_ends_it_where_none_are() -> None:
    """Six attempts within an hour: the seventh comes an hour after the first, or not at all."""
    gaining = [ended(n, FailureKind.HOST, 10 * n, "b", at=NOW - 600 + 100 * n) for n in range(1, 7)]
    said = decide(gaining, RecoveryTerms(attempts_per_hour=6), NOW)
    assert gaining[0].started + HOUR_S == NOW + said.wait_s
    futile = [dataclasses.replace(a, step=None) for a in gaining]
    said = decide(futile, RecoveryTerms(), NOW)
    assert isinstance(said, GiveUp) and said.why.startswith(
        "6 attempts in a row gained no step and left no new checkpoint"
    )
    assert "job.beat(step)" in said.why
    assert isinstance(decide(futile, RecoveryTerms(attempts_per_hour=0), NOW), Retry)


def test_a_person_s_resume_begins_anew() -> None:
    """What failed under the supervisor before does not count against the one that a person has started."""
    history = [ended(1, SEGFAULT, 9, "b"), ended(2, SEGFAULT, 9, "b")]
    assert AT_THE_SAME_STEP == decide(history, RecoveryTerms(), NOW)
    assert Retry(suspect="b") == decide(history, RecoveryTerms(), NOW, since=2)


@pytest.mark.parametrize("lasted", [(LONG_S, 1.0), (1.0, LONG_S), (LONG_S - 1, LONG_S - 1)])
def test_two_deaths_before_any_step_end_it_where_both_came_early(lasted: tuple[float, float]) -> None:
    """Within ten minutes each."""
    history = [ended(n, SEGFAULT, None, "b", lasted=s) for n, s in enumerate(lasted, 1)]
    assert (LONG_S in lasted) is isinstance(decide(history, RecoveryTerms(), NOW), Retry)


def test_an_account_says_its_sums_to_a_tenth_of_a_second() -> None:
    """And no ratio of no time."""
    record = AttemptRecord(
        number=1, np=1, hosts=(), began=0, started=0, first_step=0, first_step_at=1.04, step=9, step_at=3.0,
        noticed=3.0, ended=3.0, cleared=3.0, what=FailureKind.DONE,
    )  # fmt: skip
    said = account([record], 9999).to_json()
    assert (3.0, 0.6667) == (said["wall_s"], said["ettr"])
    parts = {"useful_s": 2.0, "start_s": 1.0}
    zeros = dict.fromkeys(said["total"], 0.0)
    assert ({**zeros, **parts}, [{**zeros, **parts}]) == (said["total"], said["attempts"])
    assert account([], NOW).to_json() == {"ettr": None, "wall_s": 0.0, "total": zeros, "attempts": []}


def test_a_program_that_tells_no_steps_may_go_on_for_hours() -> None:
    """Two deaths after ten minutes each are no failing start."""
    long = [ended(n, SEGFAULT, None, "b", lasted=LONG_S) for n in (1, 2)]
    assert Retry(wait_s=5.0, suspect="b") == decide(long, RecoveryTerms(), NOW)


def lives(attempt: Any, terms: RecoveryTerms, most: int = 500, now: float = NOW) -> Any:
    """Each attempt of a job goes the same way (what, step, host, lasted, saved): its history, and why it ended."""
    history: list[Any] = []
    while len(history) < most:
        what, step, host, lasted, saved = attempt(len(history))
        now += lasted
        one = ended(len(history) + 1, what, step, host, at=now, lasted=lasted)
        history.append(dataclasses.replace(one, saved=saved))
        said = decide(history, terms, now)
        if isinstance(said, GiveUp):
            return history, said.why
        now += said.wait_s
    return history, ""


@pytest.mark.parametrize(
    "what", [SEGFAULT, HANG, FailureKind.HOST, FailureKind.DAEMON, FailureKind.TOLD, FailureKind.MASTER]
)
@pytest.mark.parametrize("lasted", [LONG_S, 40_000.0])
def test_a_program_that_tells_no_steps_is_not_begun_anew_for_ever(what: FailureKind, lasted: float) -> None:
    """It dies after ten minutes or ten hours, from step 0 each time: six attempts, and then what shows progress."""
    history, why = lives(lambda n: (what, None, "b", lasted, False), RecoveryTerms())
    assert (6, True) == (len(history), "6 attempts in a row gained no step" in why)
    history, why = lives(lambda n: (what, None, "b", lasted, True), RecoveryTerms())
    assert (500, "") == (len(history), why)  # each left a new checkpoint


def test_a_hang_s_own_silence_is_no_life() -> None:
    """With `--hang-after 900` each attempt that hangs at its start takes a quarter of an hour."""
    first, second, third = (
        dataclasses.replace(ended(n, HANG, None, "b", lasted=960.0), alive_at=NOW - 910) for n in (1, 2, 3)
    )
    assert Retry(wait_s=5.0, without="b") == decide([first, second], RecoveryTerms(), NOW)
    assert GiveUp(why="it ended so at the same step before, in attempt 2") == decide(
        [first, second, third], RecoveryTerms(), NOW
    )


def test_the_wait_for_the_bound_is_at_most_its_hour_however_clocks_are_set() -> None:
    """Six attempts that gained, the last after the master's clock was set back by nine hours."""
    gaining = [ended(n, FailureKind.HOST, 10 * n, "b", at=NOW + 9 * HOUR_S + 100 * n) for n in range(1, 7)]
    assert HOUR_S >= decide(gaining, RecoveryTerms(), NOW).wait_s


ROUNDED_S = 1e-3  # what sums of times lose, which end at an hour to the last digit
OVER = (FailureKind.DONE, FailureKind.STOPPED, FailureKind.SUPERVISOR)
ATTEMPT = st.tuples(
    st.sampled_from(FailureKind),
    st.none() | st.integers(0, 40),
    st.sampled_from(["", "a", "b", "c"]),
    st.sampled_from([1.0, 60.0, 599.0, 601.0]) | st.floats(0.0, 30_000.0),
    st.booleans(),
)
LEAVING = tuple(PreemptionNotice(at=NOW, host=host, kind="spot", text="so it is") for host in "bc")


@given(st.lists(ATTEMPT, min_size=1, max_size=60), st.integers(0, 8), st.integers(1, 60))
def test_no_schedule_breaks_the_bounds(schedule: Any, most: int, since: int) -> None:
    """Whatever ends attempts whenever, and whoever resumes: never more starts in an hour than allowed, no error of the
    program and no stop is followed by another attempt, pauses are bounded, whatever ends says why, what makes no
    progress ends in time, what makes progress does not, and no answer contradicts itself."""
    terms, now, history, starts = RecoveryTerms(attempts_per_hour=most), NOW, [], []
    best, futile, progress_at = -1, 0, NOW
    for number, (what, step, host, lasted, saved) in enumerate(schedule, start=1):
        if number == since:
            best, futile, progress_at, starts = -1, 0, now, []
        if not starts or history[-1].what is not FailureKind.WHOLE:
            starts.append(now)
        now += lasted
        leaving = LEAVING if what is FailureKind.NOTICE and host == "b" else ()
        one = ended(number, what, step, host, at=now, lasted=lasted)
        history.append(dataclasses.replace(one, saved=saved, leaving=leaving))
        gained = saved or (step is not None and step > best)
        best = max(best, -1 if step is None else step)
        futile, progress_at = (0, now) if gained else (futile + 1, progress_at)
        said = decide(history, terms, now, since=since if number >= since else 1)
        in_an_hour = [sum(t - HOUR_S + ROUNDED_S < s <= t for s in starts) for t in starts]
        assert most == 0 or max(in_an_hour) <= most
        if isinstance(said, GiveUp):
            assert bool(said.why) is (what not in OVER)
            assert not gained or what in (*OVER, FailureKind.PROGRAM) or (what is FailureKind.NOTICE and not host)
            return
        assert what not in (*OVER, FailureKind.PROGRAM)
        assert (
            futile < (most or 6) or (most == 1 and what is FailureKind.WHOLE) or (not most and now < progress_at + 7200)
        )
        assert 0 <= said.wait_s <= (HOUR_S if most else LONGEST_PAUSE_S) + ROUNDED_S
        out = [said.without, *(notice.host for notice in said.leaving)]
        assert said.without in ("", host) and (not said.suspect or said.suspect not in out)
        assert not (said.without and said.needs_shared_folder)
        now += said.wait_s


TIME = st.none() | st.floats(NOW - 100, NOW + 5000)
RECORD = st.builds(
    AttemptRecord, number=st.just(1), np=st.just(1), hosts=st.just(()), began=st.floats(NOW, NOW + 100),
    waited_s=st.floats(-5, 500), gate_s=st.floats(-5, 500), started=TIME, first_step=st.none() | st.integers(0, 99),
    first_step_at=TIME, step=st.none() | st.integers(0, 99), step_at=TIME, noticed=TIME, ended=TIME, cleared=TIME,
    what=st.none() | st.sampled_from(FailureKind),
)  # fmt: skip


@given(st.lists(RECORD, max_size=5))
def test_every_second_is_accounted_for_once(records: Any) -> None:
    """However clocks jump: no part is negative, and a record that is over accounts for what lies between its times."""
    said = account([dataclasses.replace(r, number=i + 1) for i, r in enumerate(records)], NOW + 6000)
    assert all(part >= -1e-6 for spent in said.attempts for part in dataclasses.astuple(spent))
    for record, spent in zip(records, said.attempts, strict=True):
        if record.cleared and record.what:
            assert spent.wall_s == pytest.approx(max(0.0, record.cleared - record.began), abs=0.5)
    assert said.ettr is None or -1e-6 <= said.ettr <= 1 + 1e-6


def seconds(spent: TimeSplit) -> Any:
    """What there is of it."""
    return {name: value for name, value in dataclasses.asdict(spent).items() if value}


def test_the_account_of_a_host_s_death() -> None:
    """Twenty minutes with one loss, by hand: 100 steps of 5 s, the last twenty lost; each second is in its place."""
    first = AttemptRecord(
        number=1, np=4, hosts=("a", "b"), began=0, started=1, first_step=0, first_step_at=20, step=99, step_at=520,
        noticed=534, ended=537, cleared=540, what=FailureKind.HOST,
    )  # fmt: skip
    second = AttemptRecord(
        number=2, np=4, hosts=("a",), began=540, waited_s=60, gate_s=5, started=606, first_step=80, first_step_at=625,
        step=179, step_at=1125, noticed=1130, ended=1130, cleared=1131, what=FailureKind.DONE,
    )  # fmt: skip
    said = account([first, second], 9999)

    one, two = (seconds(spent) for spent in said.attempts)
    assert {"useful_s": 500, "detecting_s": 14, "clearing_s": 6, "start_s": 20} == one
    assert {"useful_s": 404, "again_s": 101, "clearing_s": 1, "waiting_s": 60, "gate_s": 5, "start_s": 20} == two
    assert said.ettr == pytest.approx(904 / 1131)


def test_what_a_failure_without_steps_had_done_is_not_known() -> None:
    """Its time was no start: the same program's success is useful from there on. A trainer's failed start is one."""
    failed = AttemptRecord(
        number=1, np=1, hosts=(), began=0, started=3, noticed=30, ended=30, cleared=31, what=FailureKind.PROGRAM
    )
    done = dataclasses.replace(failed, number=2, what=FailureKind.DONE)
    first, second = account([failed, done], 99, reports_steps=False).attempts

    assert {"start_s": 3, "unknown_s": 27, "clearing_s": 1} == seconds(first)
    assert {"start_s": 3, "useful_s": 27, "clearing_s": 1} == seconds(second)
    assert {"start_s": 30, "clearing_s": 1} == seconds(account([failed], 99).total)
    running = AttemptRecord(number=1, np=1, hosts=(), began=0, started=3)
    assert {"start_s": 20} == seconds(account([running], 20, reports_steps=False).total)


def test_a_time_without_supervisor_is_waiting() -> None:
    """The master was away between two attempts: what is known ends at the last step, and the rest was lost."""
    first = AttemptRecord(
        number=1, np=1, hosts=(), began=0, started=0, first_step=0, first_step_at=10, step=9, step_at=100
    )
    second = AttemptRecord(number=2, np=1, hosts=(), began=400, started=400)
    said: Account = account([first, second], 430)
    assert {"useful_s": 90, "waiting_s": 300, "start_s": 10 + 30} == seconds(said.total)

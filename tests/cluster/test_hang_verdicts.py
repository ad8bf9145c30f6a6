"""When ranks are overdue, and which one the others wait for: pure, over random schedules of trainings that go well or not."""

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.hang_detection.hang import hang, outlived
from cluster.hang_detection.limits import HANG_AFTER_S, JobPace, confirmed, overdue
from cluster.hang_detection.onhost import ranks as onhost
from cluster.hang_detection.output_watchdog import WARN_AFTER_S, OutputWatchdog
from cluster.hang_detection.rank_state import RankPhase, RankSeen, rank_seen
from cluster.hang_detection.stacks import RankStack, StackFrame, folded, odd_one
from cluster.hang_detection.stopped_processes import Frozen
from cluster.recovery.failure_kinds import FailureKind
from dlami import heartbeat as dlami_beat
from tests.schedules import LOOK_S, Training


@pytest.mark.seconds
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(2, 8))
def test_what_goes_on_is_never_a_hang(seed: int, ranks: int) -> None:
    """Long compilation, evaluations, slow saves of one rank, a host that slows down threefold, a busy machine."""
    training = Training(seed, ranks)
    assert None is training.watched(max(training.now))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(2, 8), st.integers(3, 80))
def test_a_rank_that_stands_still_is_noticed_within_its_limit(seed: int, ranks: int, at_step: int) -> None:
    """In thirty seconds or ten steps from the last one, and the time of a few looks; never before."""
    training = Training(seed, ranks, at_step)
    stood = max(training.now)
    found = training.watched(stood + 4000)
    assert found
    at, late, pace = found
    last_beat = max(b[-1][0] for b in training.beats)
    allowed = max(pace.limit_s(b[-1][1]) for b in training.beats)
    assert last_beat + HANG_AFTER_S < at <= last_beat + allowed + 6 * 1.5 * LOOK_S
    assert {r.rank for r in late} <= set(range(ranks))


def a_rank(n: int, **more: Any) -> RankSeen:
    fields = {
        "rank": n, "host": f"10.0.0.{n // 2 + 1}", "phase": RankPhase.STEP, "step": 7, "state": "S", "silent_s": 40.0,
        "longest": (0.0,) * 5,
    }  # fmt: skip
    return RankSeen(**{**fields, **more})


def paced(step_s: float) -> JobPace:
    pace = JobPace()
    pace.learn(a_rank(0, beat_at=0.0, step=0), a_rank(0, beat_at=10 * step_s, step=10))
    return pace


@pytest.mark.parametrize(
    ("limit", "phase", "pace"),
    [
        (30, RankPhase.STEP, paced(0.1)),
        (120, RankPhase.STEP, paced(12)),
        (30, RankPhase.STEP, JobPace()),
        (300, RankPhase.STEP, JobPace([0, 100])),  # no step timed yet, and compiling took its time
        (8, RankPhase.STEP, JobPace(least_s=8)),
        (1800, RankPhase.COMPILE, JobPace()),
        (900, RankPhase.SAVE, JobPace()),
        (300, RankPhase.SAVE, JobPace([0, 0, 0, 0, 2])),
        (400, RankPhase.EVALUATE, JobPace([0, 0, 0, 40, 0])),
        (1800, RankPhase.EVALUATE, JobPace([0, 0, 0, 400, 0])),
    ],
)
def test_each_phase_has_its_limit(limit: float, phase: Any, pace: Any) -> None:
    """Ten times what was usual, within bounds."""
    assert limit == pytest.approx(pace.limit_s(phase))


def test_the_step_s_time_is_learnt_from_steps_alone() -> None:
    """Not from what was saved or evaluated between two looks, and not from looks without a step."""
    pace = JobPace()
    pace.learn(a_rank(0, beat_at=0, since=0), a_rank(0, beat_at=90, since=88, step=8))
    pace.learn(a_rank(0, beat_at=90, since=88, step=8), a_rank(0, beat_at=91, since=91, step=8, phase=RankPhase.SAVE))
    pace.learn(a_rank(0, beat_at=90, since=88, step=8), a_rank(0, beat_at=90, since=88, step=8))
    assert None is pace.step_s
    pace.learn(a_rank(0, beat_at=90, since=88, step=8), a_rank(0, beat_at=92, since=88, step=12))
    assert 0.5 == pace.step_s


def test_only_what_is_told_anew_confirms_a_suspicion() -> None:
    """An old word of one host beside new ones of others says nothing."""
    suspect = a_rank(0, count=5, heard_at=1.0)
    assert [] == confirmed([suspect], [suspect])
    assert [] == confirmed([suspect], [a_rank(0, count=6, heard_at=2.0)])
    assert [] == confirmed([suspect], [a_rank(1, count=5, heard_at=2.0)])
    assert [0] == [r.rank for r in confirmed([suspect], [a_rank(0, count=5, heard_at=2.0)])]


def mute(n: int, **more: Any) -> RankSeen:
    """A rank of a program that does not beat, while another does."""
    return a_rank(n, **{"phase": RankPhase.START, "step": 0, "is_mute": True, **more})


@pytest.mark.parametrize(
    ("expected", "ranks"),
    [
        ([0, 1], [a_rank(0), a_rank(1)]),
        ([], [a_rank(0), a_rank(1, silent_s=3.0)]),
        ([], [a_rank(0, phase=RankPhase.SAVE), a_rank(1)]),  # it may save for longer, and the others wait for it
        ([1], [a_rank(0, phase=RankPhase.SAVE, step=20), a_rank(1)]),  # one far ahead is not waited for
        (
            [1],
            [a_rank(0, phase=RankPhase.SAVE), a_rank(1, phase=RankPhase.SAVE, state="T")],
        ),  # stopped: it will never save
        ([0], [a_rank(0), a_rank(1, state="")]),  # one that has ended
        ([0], [a_rank(0), a_rank(1, is_heard=False)]),
        ([], [a_rank(0), a_rank(1, is_heard=False, silent_s=20)]),
        ([], [a_rank(0, is_heard=False)]),
        ([], [a_rank(0, phase=None)]),
        ([0], [a_rank(0), mute(1, silent_s=3600.0)]),  # perhaps a program's first rank alone beats
        ([], [a_rank(0, silent_s=3.0), mute(1, silent_s=3600.0)]),
        ([], [a_rank(0), mute(1, silent_s=200.0)]),  # perhaps it starts, and the other waits for it
        ([0, 1], [a_rank(0), mute(1, silent_s=3600.0, state="T")]),
    ],
)
def test_who_is_overdue(expected: Any, ranks: Any) -> None:
    """Nobody, while someone that may be waited for is within its own limit."""
    assert expected == [r.rank for r in overdue(ranks, JobPace())]


WAITS = (StackFrame("quick_execute", "/v/lib/python3.11/site-packages/tensorflow/python/eager/execute.py", 53),
         StackFrame("train", "/job/code/trainer/resnet50/step.py", 90))  # fmt: skip
LOOPS = (
    StackFrame("<lambda>", "/usr/lib/python3.11/random.py", 2),
    StackFrame("crop", "/job/code/trainer/loader.py", 12),
)
ELSEWHERE = (WAITS[0], StackFrame("evaluate", "/job/code/trainer/resnet50/step.py", 130))
HANDLER = (StackFrame("loop", "/shared/loops/sitecustomize.py", 4), *WAITS)  # of a signal, while it waited


def a_stack(n: int, frames: Any = WAITS, **more: Any) -> RankStack:
    return RankStack(rank=n, host=f"10.0.0.{n // 2 + 1}", state="S", frames=frames, **more)


FOUR = [a_rank(n) for n in range(4)]


@pytest.mark.parametrize(
    ("expected", "ranks", "stacks"),
    [
        (2, FOUR, [a_stack(0), a_stack(1), a_stack(2, LOOPS), a_stack(3)]),
        (2, [a_rank(0, step=6), *FOUR[1:]], [a_stack(0), a_stack(1), a_stack(2, HANDLER), a_stack(3)]),
        (1, [*FOUR[:1], a_rank(1, state="T"), *FOUR[2:]], [a_stack(n) for n in range(4)]),
        (3, [*FOUR[:3], a_rank(3, is_heard=False)], [a_stack(0), a_stack(1), a_stack(2, LOOPS)]),
        (0, [a_rank(0, phase=RankPhase.SAVE), *FOUR[1:]], []),
        (0, [a_rank(0, phase=RankPhase.SAVE), a_rank(1)], []),
        (2, [*FOUR[:2], a_rank(2, step=6), *FOUR[3:]], []),
        (None, FOUR, []),
        (None, FOUR, [a_stack(n) for n in range(4)]),
        (None, FOUR, [a_stack(n, LOOPS) for n in range(4)]),
        (1, FOUR, [a_stack(0), a_stack(1, ELSEWHERE), a_stack(2), a_stack(3)]),
        (None, FOUR[:2], [a_stack(0), a_stack(1, ELSEWHERE)]),
        (0, FOUR[:1], [a_stack(0)]),
    ],
)
def test_the_rank_that_waits_for_nobody(expected: Any, ranks: Any, stacks: Any) -> None:
    """By what is surest first: a stopped one, a host without a word, a stack that waits for none, the fewest steps."""
    found = odd_one(ranks, stacks)
    assert expected == (found.rank if found else None)


def test_a_rank_that_never_beats_is_no_rank_that_is_behind() -> None:
    """Of a program's ranks: the one that was expected to beat is named, unless the mute one alone waits for nobody."""
    ranks = [a_rank(0), mute(1)]

    assert 1 == odd_one(ranks, [a_stack(0), a_stack(1, LOOPS)]).rank
    assert 0 == odd_one(ranks, []).rank
    said = hang(ranks, ranks[:1], [], {}).text
    assert said.startswith("rank 0 on 10.0.0.1 hangs: it is stepping; no progress for 40 s after step 7"), said


def test_a_hang_says_who_where_and_since_when() -> None:
    """The line is the program's own, not a library's."""
    stacks = [a_stack(0), a_stack(1), a_stack(2, LOOPS), a_stack(3)]
    said = hang(FOUR, FOUR, stacks, {})
    assert (FailureKind.HANG, 2, "10.0.0.2") == (said.kind, said.rank, said.host)
    assert (
        "rank 2 on 10.0.0.2 hangs: it is stepping in crop (trainer/loader.py:12); no progress for 40 s after step 7; "
        "see stacks.txt" == said.text
    )
    nobody = hang(FOUR, FOUR, [], {})
    assert (None, True) == (nobody.rank, nobody.text.startswith("all 4 ranks stand still and none stands out: no pro"))


@pytest.mark.parametrize(
    ("rank", "ranks"),
    [
        (0, [a_rank(0, phase=RankPhase.SAVE, state="D"), *FOUR[1:]]),
        (0, [a_rank(0, phase=RankPhase.SAVE), *FOUR[1:]]),
        (1, [a_rank(0), a_rank(1, state="D"), *FOUR[2:]]),  # it reads there, whatever it is doing
        (None, FOUR),
        (None, [*FOUR[:2], a_rank(2, phase=RankPhase.SAVE, state="D"), FOUR[3]]),  # of another host
    ],
)
def test_a_dead_shared_folder_is_named_as_that(rank: int | None, ranks: Any) -> None:
    """With the rank that wanted to save, or that the kernel holds, on the host that says so."""
    said = hang(ranks, ranks, [], {"10.0.0.1": "does not answer within 5 s"})
    assert (FailureKind.SHARED_FOLDER, rank, "10.0.0.1") == (said.kind, said.rank, said.host)
    assert "the shared folder does not answer within 5 s on 10.0.0.1: no progress for 40 s after step 7" == said.text


def test_of_many_hosts_without_their_shared_folder_some_are_named() -> None:
    """Three, and how many more."""
    for more, says in ((3, "10.0.0.0, 10.0.0.1, 10.0.0.2: no"), (5, "10.0.0.0, 10.0.0.1, 10.0.0.2 and 2 more: no")):
        assert f"on {says} " in hang(FOUR, FOUR, [], {f"10.0.0.{n}": "hangs" for n in range(more)}).text


@pytest.mark.parametrize(
    ("odd", "stack", "says"),
    [
        ({"state": "T"}, a_stack(1), "it was stopped (SIGSTOP or a debugger) in train (resnet50/step.py:90)"),
        ({"state": "T"}, None, "it was stopped (SIGSTOP or a debugger)"),
        ({"is_heard": False}, None, "its host answers, but no program runs there any more"),
        (
            {"state": "D", "step": 6},
            None,
            "the kernel holds it (state D: a disk or a file server that does not answer)",
        ),
        ({"step": 6}, a_stack(1, (), error="no py-spy"), "it is stepping (no py-spy)"),
        ({"step": 6, "phase": RankPhase.SAVE}, None, "it is saving"),
        ({"step": 6, "phase": None}, None, "it runs"),
    ],
)
def test_what_the_rank_that_hangs_is_doing_is_said(odd: Any, stack: RankStack | None, says: str) -> None:
    """What its host and the kernel know, before the phase of its last beat."""
    ranks = [a_rank(0), a_rank(1, **odd), *FOUR[2:]]
    said = hang(ranks, ranks, [stack] if stack else [], {})
    assert f"rank 1 on 10.0.0.1 hangs: {says}; no progress for " == said.text[: said.text.index(" for ") + 5]


def test_mpirun_that_outlives_its_ranks_is_told_with_the_daemon_that_holds_it() -> None:
    """Where one is stopped; else only for how long."""
    nothing, stopped = outlived(31.4, {}), outlived(31.4, {"10.0.0.2": "orted"})
    assert (FailureKind.DAEMON, "") == (nothing.kind, nothing.host)
    assert "all ranks have ended, and mpirun has not for 31 s" == nothing.text
    assert (FailureKind.DAEMON, "10.0.0.2") == (stopped.kind, stopped.host)
    assert f"{nothing.text}: its orted on 10.0.0.2 is stopped (SIGSTOP or a debugger)" == stopped.text


def test_stacks_are_told_once_for_all_that_are_alike() -> None:
    """The majority first; what hinders the look, and the other threads of one that does not wait, too."""
    odd = a_stack(2, LOOPS, others=(("loader", (LOOPS[1],)),))
    text = folded([a_stack(0), a_stack(1), odd, a_stack(3), dataclasses.replace(a_stack(4, ()), error="no py-spy")])
    assert (
        "ranks 0-1,3 on 10.0.0.[1-2] (3)\n  quick_execute (eager/execute.py:53)\n  train (resnet50/step.py:90)\n"
        "rank 2 on 10.0.0.2 (1)\n  <lambda> (python3.11/random.py:2)\n  crop (trainer/loader.py:12)\n"
        "  thread loader: crop (trainer/loader.py:12)\nrank 4 on 10.0.0.3 (1)\n  no stack: no py-spy" == text
    )


def test_what_is_stopped_of_mpirun_ends_an_attempt_only_where_nobody_goes_on() -> None:
    """For so long, told by its name and host; a step in between, or a word that it goes on, begins the time anew."""
    orted, limit_s = {"10.0.0.2": "orted"}, 30.0

    def after(*looks: tuple[float, dict[str, str], object], silent_s: float = 0.0) -> Any:
        frozen = Frozen()
        return [frozen.look(stopped, silent_s, progress, limit_s, at) for at, stopped, progress in looks][-1]

    found = after((0, orted, 5), (15, orted, 5), (31, orted, 5))
    assert (FailureKind.DAEMON, "10.0.0.2") == (found.kind, found.host)
    assert (
        "mpirun's orted on 10.0.0.2 is stopped (SIGSTOP or a debugger), and no rank has gone on for 31 s" == found.text
    )
    assert after((0, orted, 5), (30, orted, 5)) is None
    assert after((0, orted, 5), (15, orted, 6), (31, orted, 6)) is None, "ranks go on"
    assert after((0, orted, 5), (15, {}, 5), (31, orted, 5), (50, orted, 5)) is None, "it was woken"
    assert after((0, orted, None), (31, orted, None)) is None, "it cannot be told"
    assert after((0, {}, 5), (60, {}, 5), (61, orted, 5)) is None, "it has just been stopped"
    assert after((0, {}, ()), (31, {}, ()), silent_s=30.0) is None
    silent = after((0, {}, ()), (31, {}, ()), silent_s=31.0)
    assert (FailureKind.SHARED_FOLDER, "the shared folder does not answer on the master") == (
        silent.kind, silent.text.partition(",")[0],
    )  # fmt: skip
    assert "mpirun is stopped" in after((0, {"": "mpirun"}, ()), (31, {"": "mpirun"}, ())).text


def test_a_program_that_does_not_beat_is_only_warned_of_unless_asked(tmp_path: Path) -> None:
    """Silence with processor time in all ranks is work; with --hang-after it is a hang after so many seconds."""
    console = tmp_path / "console.log"
    console.write_text("one line")
    works, idle = a_rank(0, phase=None), a_rank(1, phase=None)

    def after(quiet: OutputWatchdog, seconds: float, idle_cpu_s: float) -> str:
        quiet.look([works, idle], 0.0)
        busy = dataclasses.replace(works, cpu_s=seconds / 2)
        return quiet.look([busy, dataclasses.replace(idle, cpu_s=idle_cpu_s)], seconds)

    assert "" == after(OutputWatchdog(lambda: console.stat().st_size, None), WARN_AFTER_S - 1, 0)
    assert "" == after(OutputWatchdog(lambda: console.stat().st_size, None), WARN_AFTER_S + 1, WARN_AFTER_S / 2)
    warned = OutputWatchdog(lambda: console.stat().st_size, None)
    assert "rank 1 on 10.0.0.1 has used no processor time" in after(warned, WARN_AFTER_S + 1, 0)
    assert not warned.is_over
    asked = OutputWatchdog(lambda: console.stat().st_size, 60.0)
    assert "nothing was printed for 61 s" == after(asked, 61, 30)
    assert asked.is_over
    console.write_text("one line, and one more")
    assert "" == asked.look([works, idle], 200)
    assert not asked.is_over


def test_both_sides_read_a_beat_alike() -> None:
    """The trainers write what the hosts' program reads, of this very user, job and attempt; half a record is none."""
    assert (onhost.RECORD.format, onhost.MAGIC, onhost.VERSION) == (
        dlami_beat.RECORD.format, dlami_beat.MAGIC, dlami_beat.VERSION,
    )  # fmt: skip
    assert [p.name for p in dlami_beat.Phase] == [p.name for p in RankPhase]
    job = f"watching-{os.getpid()}"
    for rank in (0, 11):
        said = {"DLAMI_JOB": job, "DLAMI_ATTEMPT": "2", "OMPI_COMM_WORLD_RANK": str(rank)}
        file = dlami_beat.beat_file(said)
        assert file
        beat = dlami_beat.Beat()
        beat.begin(file)
        beat.stepped(5 + rank)
    try:
        found = onhost.beats(job, "2")
        told = {r: (b["step"], b["first"], b["pid"]) for r, b in found.items()}
        assert {0: (5, 5, os.getpid()), 11: (16, 16, os.getpid())} == told
        seen = rank_seen("h", {"rank": 0, "beat": found[0], "state": "S", "cpu_s": 1}, time.monotonic(), 0)
        assert (RankPhase.STEP, 5, 5, 2) == (seen.phase, seen.step, seen.first, seen.count)
        assert 0 <= seen.silent_s < 100
        assert {} == onhost.beats(job, "1")
        file.write_bytes(file.read_bytes()[:-8] + b"\0" * 8)  # in the middle of being written
        assert [0] == list(onhost.beats(job, "2"))
    finally:
        for one in Path("/dev/shm").glob(f"dlami-beat-*-{job}-*"):
            one.unlink()

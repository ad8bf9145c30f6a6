"""What a watch makes of what hosts say and of their silence, one look after the other: no thread, no process."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.hang_detection import watch as watching
from cluster.hang_detection.rank_state import MISSING, RankPhase
from cluster.hang_detection.stack_dumps import StackAnswers
from cluster.hang_detection.standstill import RanksObservation
from cluster.hang_detection.watch import RankWatch
from cluster.hosts import Host
from cluster.jobs.record import JobPaths
from cluster.recovery.failure_kinds import FailureKind
from tests.cluster.jobs_here import a_job

A, B = Host(rank=0, address="10.0.0.1", slots=1), Host(rank=1, address="10.0.0.2", slots=1)
NOW = 5000.0  # by our own clock
HOST_NOW = 100.0  # by the hosts'


class Clock:
    """Ours, which stands until a test moves it."""

    def __init__(self) -> None:
        self.now = NOW

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1e9 + self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(watching, "time", made)
    monkeypatch.setattr(watching, "steady_now", made.time)
    yield made


class Scene:
    """A watch over two ranks on two hosts, what it says, and the stacks that it would find."""

    def __init__(self, clock: Clock, folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        self.clock, self.said, self.paths = clock, list[str](), JobPaths(folder)
        self.paths.logs(1).mkdir(parents=True, exist_ok=True)
        self.paths.console(1).touch()
        self.trouble: dict[str, str] = {}
        self.taken = 0
        direct = SimpleNamespace(do=lambda act, *name: act())
        job = a_job("true", "x", **{"np": 2, "hosts": (A, B), **changes})
        self.watch = RankWatch(job, self.paths, direct, self.said.append)
        self.watch._began = clock.now
        monkeypatch.setattr(watching, "take_stacks", self.take)

    def take(self, job: Any, paths: Any, **_: bool) -> StackAnswers:
        self.taken += 1
        look = RanksObservation(at=self.clock.now, ranks={})
        return StackAnswers(stacks=(), folder_trouble=self.trouble, unanswered="", look=look)

    def hears(self, host: Host, rank: int | None = None, *, notice: Any = None, stopped: str = "", **beat: Any) -> None:
        """A host speaks, of one rank; without `phase` that does not beat."""
        one = {"rank": rank, "beat": None, "state": beat.pop("state", "S"), "cpu_s": beat.pop("cpu_s", 1.0)}
        if beat:
            plain = {"step": 0, "first": 0, "count": 1, "at": HOST_NOW, "since": HOST_NOW, "longest": [0.0] * 5}
            one["beat"] = {**plain, **beat, "phase": int(beat["phase"])}
        ranks = [] if rank is None else [one]
        self.watch._heard(host, {"ranks": ranks, "now": HOST_NOW, "notice": notice, "stopped": stopped})


@pytest.fixture
def scene(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(clock, tmp_path, monkeypatch)


def test_how_far_ranks_are_is_what_they_told(scene: Scene) -> None:
    """The furthest's steps; None as long as no rank has beaten."""
    watch = scene.watch
    assert (None, None, None, None) == (watch.step(), watch.first_step(), watch.first_step_at(), watch.alive_at())
    scene.hears(A, 0)
    assert (None, None) == (watch.step(), watch.first_step_at())
    scene.hears(A, 0, phase=RankPhase.START)
    assert (0, None, None) == (watch.step(), watch.first_step(), watch.first_step_at())
    scene.hears(A, 0, phase=RankPhase.STEP, step=41, first=41, since=90.0)
    assert (41, 41, 1e9 + NOW - 10) == (watch.step(), watch.first_step(), watch.first_step_at())
    scene.clock.now += 5
    scene.hears(B, 1, phase=RankPhase.STEP, step=43, first=40, since=95.0)
    assert (43, 40, 1e9 + NOW - 10) == (watch.step(), watch.first_step(), watch.first_step_at()), "once"


def test_a_first_step_that_was_over_before_anybody_looked_is_as_old_as_the_beat(scene: Scene) -> None:
    """It evaluates or saves by then."""
    scene.hears(A, 0, phase=RankPhase.SAVE, step=8, first=1, at=96.0, since=92.0)
    assert 1e9 + NOW - 4 == scene.watch.first_step_at()


def test_what_a_host_said_of_itself_holds_until_it_takes_that_back(scene: Scene) -> None:
    """Its notice, and what is stopped of mpirun there, which is warned of once."""
    notice = {"kind": "spot", "at": 1.0, "text": "x"}
    scene.hears(A, notice=notice, stopped="orted")
    scene.hears(B, stopped="mpirun")
    scene.hears(B, stopped="mpirun")
    assert ({A.address: notice}, {A.address: "orted", B.address: "mpirun"}) == (
        scene.watch.notices(), scene.watch.stopped(),
    )  # fmt: skip
    scene.hears(A)
    assert ({}, {B.address: "mpirun"}) == (scene.watch.notices(), scene.watch.stopped())
    assert ["warning: mpirun's orted on 10.0.0.1 is stopped", "warning: mpirun on 10.0.0.2 is stopped"] == [
        one.partition(" (")[0] for one in scene.said
    ]


def test_progress_can_be_told_once_all_hosts_were_heard(scene: Scene) -> None:
    """It is another after a beat, and while a rank that starts works; with ranks that do not beat it is not told."""
    watch = scene.watch
    assert watch.progress() is None
    scene.hears(A)
    assert watch.progress() is None
    scene.hears(B)
    assert watch.progress() == watch.progress() is not None
    scene.hears(A, 0)
    assert watch.progress() is None
    scene.hears(A, 0, phase=RankPhase.STEP, count=1)
    one = watch.progress()
    scene.hears(A, 0, phase=RankPhase.STEP, count=1, cpu_s=9.0)
    assert one == watch.progress() is not None
    scene.hears(A, 0, phase=RankPhase.STEP, count=2)
    assert one != watch.progress()
    scene.hears(B, 1, phase=RankPhase.COMPILE, count=7, cpu_s=3.2)
    two = watch.progress()
    scene.hears(B, 1, phase=RankPhase.COMPILE, count=7, cpu_s=3.9)
    assert two == watch.progress()
    scene.hears(B, 1, phase=RankPhase.COMPILE, count=7, cpu_s=4.0)
    assert two != watch.progress()


def test_ranks_that_do_not_beat_make_progress_where_a_silence_has_a_limit(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the processor time that they use."""
    scene = Scene(clock, tmp_path, monkeypatch, hang_after=60.0)
    scene.hears(A, 0, cpu_s=1.0)
    scene.hears(B)
    one = scene.watch.progress()
    scene.hears(A, 0, cpu_s=2.0)
    assert None not in (one, scene.watch.progress())
    assert one != scene.watch.progress()
    assert 60.0 == scene.watch.limit_s()


def test_a_host_s_old_word_is_carried_on_and_ranks_that_nobody_told_of_are_starting(scene: Scene) -> None:
    """Fifteen seconds old it is still a word; older, nothing is known of its ranks but their silence."""
    scene.hears(A, 0, phase=RankPhase.STEP, at=HOST_NOW - 2)
    scene.clock.now += 15.0
    known, other = scene.watch._seen()
    assert (2.0, True, RankPhase.STEP) == (known.silent_s, known.is_heard, known.phase)
    assert (1, B.address, RankPhase.START, MISSING, 15.0, False) == (
        other.rank, other.host, other.phase, other.state, other.silent_s, other.is_mute,
    )  # fmt: skip
    scene.clock.now += 0.5
    known, _ = scene.watch._seen()
    assert (17.5, False) == (known.silent_s, known.is_heard)


@pytest.mark.parametrize(
    ("hang_after", "silent_s", "looks", "hangs"),
    [
        (None, 24.0, 0, False),
        (None, 24.1, 1, False),
        (None, 31.0, 1, True),
        (0.0, 999.0, 0, False),
        (60.0, 50, 0, False),
    ],
)
def test_stacks_are_taken_shortly_before_a_limit(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    hang_after: float | None, silent_s: float, looks: int, hangs: bool,
) -> None:  # fmt: skip
    """And what was late is a hang once its host has told of it anew."""
    scene = Scene(clock, tmp_path, monkeypatch, hang_after=hang_after, np=1, hosts=(A,))
    beat = {"phase": RankPhase.STEP, "step": 7, "at": HOST_NOW - silent_s}
    scene.hears(A, 0, **beat)

    def waits(seconds: float) -> bool:
        clock.now += 1
        scene.hears(A, 0, **beat)
        return False

    monkeypatch.setattr(scene.watch._end, "wait", waits)
    scene.watch._judge()
    found = scene.watch.trouble()
    assert (looks, hangs) == (scene.taken, found is not None)
    assert (looks == 1) is (scene.paths.logs(1) / "stacks.txt").exists()
    if found:
        assert (FailureKind.HANG, 0, A.address) == (found.kind, found.rank, found.host)
        assert "31 s after step 7" in found.text


def test_mpirun_that_outlives_its_ranks_is_in_trouble_after_the_step_s_limit(scene: Scene) -> None:
    """Counted from the look at which none was left; a rank that is there again begins it anew."""
    for host, rank in ((A, 0), (B, 1)):
        scene.hears(host, rank, phase=RankPhase.STEP, step=7, state="")
    scene.watch._judge()
    scene.clock.now += 10
    scene.hears(A, 0, phase=RankPhase.STEP, step=7)
    scene.watch._judge()
    for _ in range(4):
        for host, rank in ((A, 0), (B, 1)):
            scene.hears(host, rank, phase=RankPhase.STEP, step=7, state="", stopped="orted" if host is B else "")
        scene.watch._judge()
        assert scene.watch.trouble() is None
        scene.clock.now += 10
    for host, rank in ((A, 0), (B, 1)):
        scene.hears(host, rank, phase=RankPhase.STEP, step=7, state="", stopped="orted" if host is B else "")
    scene.watch._judge()
    found = scene.watch.trouble()
    assert found
    assert (FailureKind.DAEMON, B.address) == (found.kind, found.host)
    assert "mpirun has not for 40 s: its orted on 10.0.0.2 is stopped" in found.text


def test_a_silent_shared_folder_is_looked_for_where_no_rank_begins(scene: Scene) -> None:
    """After the limit of a step, then once a minute; without trouble there nothing is said."""
    scene.clock.now += 29.9
    scene.watch._judge()
    assert 0 == scene.taken
    scene.clock.now += 0.1
    scene.watch._judge()
    scene.clock.now += 59.9
    scene.watch._judge()
    assert (1, None) == (scene.taken, scene.watch.trouble())
    scene.trouble = {B.address: "does not answer within 10 s"}
    scene.clock.now += 0.1
    scene.watch._judge()
    found = scene.watch.trouble()
    assert found
    assert (FailureKind.SHARED_FOLDER, B.address) == (found.kind, found.host)
    assert "no progress for 90 s after step 0" in found.text


def test_a_silence_that_the_operator_calls_a_hang_is_one(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the stacks that were taken then."""
    scene = Scene(clock, tmp_path, monkeypatch, hang_after=60.0)
    for seconds, hangs in ((60.0, False), (0.5, False), (9.0, True)):
        scene.hears(A, 0)
        scene.watch._judge()
        assert hangs is (scene.watch.trouble() is not None)
        clock.now += seconds
    found = scene.watch.trouble()
    assert found
    assert FailureKind.HANG is found.kind
    assert "no progress for 60 s" in found.text


def test_the_watch_leaves_what_phases_took_and_outlives_a_fault_of_its_own(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """The training does not end because its watch does."""
    scene.hears(A, 0, phase=RankPhase.STEP, step=1, at=90.0, since=80.0)
    scene.hears(A, 0, phase=RankPhase.STEP, step=5, at=98.0, since=80.0, longest=[1.0, 2.0, 3.0, 0.0, 0.0])
    looks = iter([False, False, True])
    monkeypatch.setattr(scene.watch._end, "wait", lambda seconds: next(looks))
    monkeypatch.setattr(scene.watch, "_judge", lambda: 1 / 0)
    scene.watch._judge_until_closed()
    assert 2 == capfd.readouterr().err.count("watching: ZeroDivisionError: division by zero\n")
    kept = json.loads((scene.paths.logs(1) / "pace.json").read_text())
    assert {"longest": [1.0, 2.0, 3.0, 0.0, 0.0], "step_s": 2.0} == kept


def test_a_watch_that_is_closed_is_no_thread_any_more(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the one that judges, nor the one that hears."""
    monkeypatch.setattr(scene.watch._looks, "_listen", lambda: None)
    monkeypatch.setattr(watching, "time", time)
    scene.watch.start().close()
    assert not scene.watch._thread.is_alive()
    assert (scene.paths.logs(1) / "pace.json").exists()

"""An attempt with an mpirun, ranks and hosts that are played: when it is ended, and what its end means. No process."""

import dataclasses
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.hosts import Host
from cluster.jobs.record import JobPaths
from cluster.jobs.state import JobState
from cluster.jobs.supervisor import attempt as attempts
from cluster.jobs.supervisor.attempt import Attempt, Outcome
from cluster.jobs.supervisor.launcher import NotStarted
from cluster.recovery.cause import Cause
from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.history import AttemptRecord
from cluster.recovery.preemption import PreemptionNotice
from tests.cluster.jobs_here import a_job

A, B = (Host(rank=n, address=f"10.0.0.{n}", slots=1) for n in range(2))
HUNG = Cause(kind=FailureKind.HANG, text="ranks stand still")


class Stage:
    """What an attempt sees, as it is played: each look at mpirun is one step of it."""

    def __init__(self, paths: JobPaths) -> None:
        self.paths = paths
        self.looks: list[Callable[[], Any]] = []  # what happens before each look; the exit code ends mpirun
        self.exit_code = 0
        self.ended_by: list[str] = []
        self.signals = SimpleNamespace(ask_to_end=False, are_of_jobs_stop=True, are_of_a_shutdown=False, limit="")
        self.lost: str | None = None
        self.silent: set[str] = set()
        self.trouble: Cause | None = None
        self.notices: dict[str, Any] = {}
        self.grows = False
        self.stopped: dict[str, str] = {}
        self.mpirun_is_stopped = False
        self.silence = ""
        self.steps: tuple[int | None, int | None, float | None] = (None, None, None)
        self.last_steps: tuple[int | None, int | None, float | None] | None = None
        self.said: list[Any] = []
        self.stops = 0
        self.starts = True
        self.full: list[str] = []
        self.trouble_here = ""
        self.without: list[str] = []
        self.folder_is_silent = False
        self.closed: set[str] = set()

    def saves(self, step: int) -> None:
        self.paths.checkpoints.mkdir(exist_ok=True)
        (self.paths.checkpoints / f"step-{step}").touch()

    def says(self, text: str) -> None:
        with self.paths.console(1).open("a") as file:
            file.write(text + "\n")

    def attempt(self, **changes: Any) -> Attempt:
        job = a_job("true", "j", **{"hosts": (A, B), "np": 2, "heal": True, **changes})
        stage = self

        class Folder:
            is_silent = stage.folder_is_silent
            silent_s = 0.0

            def do(self, work: Any) -> Any:
                return work()

        def stop() -> None:
            self.stops += 1

        return Attempt(
            job,
            self.paths,
            self.signals,
            AttemptRecord(number=1, np=2, hosts=(A.address, B.address), began=1.0),
            on_look=lambda record, warnings: self.said.append((record, warnings)),
            on_stop=stop,
            on_notice=self.said.append,
            say=self.said.append,
            growing=SimpleNamespace(is_due=lambda first: self.grows),
            folder=Folder(),
        )

    def outcome(self, **changes: Any) -> tuple[Outcome, AttemptRecord]:
        made = self.attempt(**changes)
        outcome = made.run_to_end()
        assert {"presence", "ranks"} == self.closed
        cause, record = outcome.cause, made.record
        assert (cause.kind, cause.text, cause.host, cause.rank) == (record.what, record.text, record.host, record.rank)
        return outcome, record


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    made = Stage(JobPaths(tmp_path / "jobs" / "j"))
    made.paths.logs(1).mkdir(parents=True)

    class Mpirun:
        def __init__(self, *_: Any) -> None:
            if not made.starts:
                raise NotStarted("mpirun could not be started: no such file")
            self.began = 2.0

        @property
        def is_stopped(self) -> bool:
            return made.mpirun_is_stopped

        def ended(self, within_s: float) -> int | None:
            return made.looks.pop(0)() if made.looks else made.exit_code

        def stop(self, presence: Any) -> int:
            made.ended_by.append("asked")
            return made.exit_code

        def end(self, patience_s: float = 10) -> int:
            made.ended_by.append("ended")
            return -signal.SIGTERM

    class Presence:
        def __init__(self, addresses: Any) -> None:
            self.addresses = addresses

        def start(self) -> "Presence":
            return self

        def close(self) -> None:
            made.closed.add("presence")

        def lost(self) -> str | None:
            return made.lost

        def is_silent(self, address: str) -> bool:
            return address in made.silent

        def gone(self) -> tuple[str, ...]:
            return tuple(a for a in self.addresses if a in made.silent)

    class Ranks:
        def __init__(self, *_: Any) -> None: ...

        def start(self) -> None: ...

        def close(self) -> None:
            made.closed.add("ranks")

        def ask_once_more(self) -> None:
            made.steps = made.last_steps or made.steps

        step = staticmethod(lambda: made.steps[1])
        first_step = staticmethod(lambda: made.steps[0])
        first_step_at = staticmethod(lambda: made.steps[2])
        trouble = staticmethod(lambda: made.trouble)
        stopped = staticmethod(lambda: made.stopped)
        notices = staticmethod(lambda: made.notices)
        silence = staticmethod(lambda: made.silence)
        alive_at = staticmethod(lambda: 9.0)
        limit_s = staticmethod(lambda: 100.0)
        progress = staticmethod(lambda: 0)

    monkeypatch.setattr(attempts, "Mpirun", Mpirun)
    monkeypatch.setattr(attempts, "Presence", Presence)
    monkeypatch.setattr(attempts, "RankWatch", Ranks)
    monkeypatch.setattr(attempts, "trouble_here", lambda *_: made.trouble_here)
    monkeypatch.setattr(attempts, "hosts_without", lambda *_: made.without)
    monkeypatch.setattr(attempts, "hosts_without_room", lambda _: made.full)
    yield made


def test_an_attempt_that_is_done_has_its_steps_and_times(stage: Stage) -> None:
    """Each look says how far it is; the last word is read after mpirun's end."""
    now = time.time()

    def trains() -> None:
        stage.steps = (3, 5, 7.0)

    def goes_on() -> None:
        stage.steps = (3, 6, 7.0)

    def is_done() -> int:
        stage.steps = (3, 9, 7.0)
        return 0

    stage.looks = [lambda: None, trains, goes_on, is_done]
    outcome, record = stage.outcome()
    assert Outcome(state=JobState.SUCCEEDED, cause=Cause(kind=FailureKind.DONE, text=""), exit_code=0) == outcome
    assert [(None, None), (3, 5), (3, 6)] == [(r.first_step, r.step) for r, _ in stage.said]
    assert {9.0} == {r.alive_at for r, _ in stage.said}
    assert [()] * 3 == [w for _, w in stage.said]
    assert (2.0, 3, 7.0) == (record.started, record.first_step, record.first_step_at)
    assert record.ended
    assert record.noticed
    assert now <= record.noticed <= record.ended
    assert [] == stage.ended_by


def test_the_last_steps_are_read_after_the_end(stage: Stage) -> None:
    """Of ranks that do not beat, by their metrics; nobody had looked since."""
    rows = [{"kind": "train", "step": n, "time": 5.0 + n} for n in (1, 2)]
    stage.paths.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, record = stage.outcome()
    assert (2, 6.0, 3, 7.0) == (record.first_step, record.first_step_at, record.step, record.step_at)


def test_the_last_heartbeats_are_asked_for_after_the_end(stage: Stage) -> None:
    """A host reports every three seconds: what came after would be missing from the job's last word."""
    stage.steps, stage.last_steps = (3, 588, 7.0), (3, 600, 7.0)
    _, record = stage.outcome()
    assert (3, 600) == (record.first_step, record.step)


def test_what_holds_up_an_attempt_is_warned_of(stage: Stage) -> None:
    """Ranks that are stopped, by their host, mpirun where it is none of those, and silence."""

    def stops() -> None:
        stage.mpirun_is_stopped, stage.stopped, stage.silence = True, {B.address: "rank 1"}, "rank 0 says nothing"

    def as_a_rank() -> None:
        stage.stopped = {A.address: attempts.MPIRUN}

    stage.looks = [stops, as_a_rank]
    stage.outcome()
    (_, first), (_, second) = stage.said
    assert 3 == len(first)
    assert "rank 0 says nothing" == first[-1]
    assert 2 == len(second)
    assert first[:2] == tuple(
        attempts.stopped_processes.warning(name, address)
        for address, name in (("", attempts.MPIRUN), (B.address, "rank 1"))
    )


@pytest.mark.parametrize(
    ("seen", "how", "kind", "text"),
    [
        ({"lost": B.address}, "ended", FailureKind.HOST, "it answered nothing for 12 s"),
        ({"trouble": HUNG}, "ended", FailureKind.HANG, "ranks stand still"),
        ({"lost": B.address, "trouble": HUNG}, "ended", FailureKind.HOST, "it answered nothing for 12 s"),
        (
            {"grows": True},
            "asked",
            FailureKind.WHOLE,
            "more of its hosts can be had again; it was asked to save, and has left",
        ),
    ],
)
def test_an_attempt_that_has_no_use_is_ended(stage: Stage, seen: Any, how: str, kind: FailureKind, text: str) -> None:
    """At once where a host is lost or ranks hang, which cannot save; in good order where it grows."""

    def happens() -> None:
        vars(stage).update(seen)

    stage.looks = [lambda: None, happens]
    outcome, record = stage.outcome()
    assert ([how], kind) == (stage.ended_by, outcome.cause.kind)
    assert text in outcome.cause.text
    assert record.noticed
    assert record.ended
    assert (JobState.SUCCEEDED if kind is FailureKind.DONE else JobState.FAILED) is outcome.state
    assert (B.address if kind is FailureKind.HOST else "") == outcome.cause.host
    assert 1 == len(stage.said)


@pytest.mark.parametrize(
    ("says", "saves", "code", "did"),
    [
        ("Asked to stop: saved after step 4", False, 0, "it has saved and left"),
        ("", True, 0, "it has saved and left"),
        ("", False, 0, "it was asked to save, and has left"),
        ("", False, 3, "it was asked to save, and then: mpirun ended with 3: see the log"),
    ],
)
def test_an_attempt_that_leaves_to_grow_says_what_it_saved(
    stage: Stage, says: str, saves: bool, code: int, did: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what its ranks say, or by a checkpoint that is newer than the request."""
    stamps = iter([5, 6 if saves else 5])
    monkeypatch.setattr(attempts, "newest_stamp", lambda _: next(stamps))

    def grows() -> None:
        stage.grows = True
        stage.says(says)

    stage.looks, stage.exit_code = [grows], code
    outcome, _ = stage.outcome(program=False)
    assert f"more of its hosts can be had again; {did}" == outcome.cause.text
    assert (FailureKind.WHOLE, code) == (outcome.cause.kind, outcome.exit_code)


@pytest.mark.parametrize(
    ("grows", "stops", "leaves", "says", "state"),
    [
        (1, 0, 0, "Finished 9 steps in 5 s", "succeeded"),
        (0, 1, 0, "Finished 9 steps in 5 s", "succeeded"),
        (0, 0, 1, "Finished 9 steps in 5 s", "succeeded"),
        (0, 1, 0, "Asked to stop: saved after step 4", "stopped"),
        (0, 0, 1, "Asked to stop: saved after step 4", "stopped"),
    ],
)
def test_who_had_finished_when_asked_to_leave_has_succeeded(
    stage: Stage, grows: int, stops: int, leaves: int, says: str, state: str
) -> None:
    """Whatever it was asked for; else it is stopped."""

    def asked() -> None:
        stage.grows, stage.signals.ask_to_end = bool(grows), bool(stops)
        stage.notices = {B.address: {"kind": "spot", "at": time.time(), "text": "it goes"}} if leaves else {}
        stage.says(says)

    stage.looks = [asked]
    outcome, record = stage.outcome()
    assert (state, stops, ["asked"]) == (outcome.state, stage.stops, stage.ended_by)
    assert record.noticed
    if state == "stopped":
        kind, text = (
            (FailureKind.STOPPED, "")
            if stops
            else (FailureKind.NOTICE, f"host {B.address} will go: it goes; saved after step 4")
        )
        assert (kind, text, 0) == (outcome.cause.kind, outcome.cause.text, outcome.exit_code)
        assert (B.address if leaves else "") == outcome.cause.host
        assert bool(leaves) is bool(record.leaving)


def test_where_all_hosts_go_no_host_is_named(stage: Stage) -> None:
    """A notice of later is only told, and ends nothing; who has said so by the end counts."""
    notice = {"kind": "spot", "at": time.time() + 1000, "text": "later"}

    def later() -> None:
        stage.notices = {B.address: notice}

    def soon() -> None:
        stage.notices = {h.address: {**notice, "at": time.time()} for h in (A, B)}

    stage.looks = [later, soon]
    outcome, record = stage.outcome()
    assert (FailureKind.NOTICE, "") == (outcome.cause.kind, outcome.cause.host)
    assert outcome.cause.text.startswith("all hosts will go: later; ")
    assert 2 == len(record.leaving)
    told = [one for one in stage.said if isinstance(one, PreemptionNotice)]
    assert {A.address, B.address} == {one.host for one in told}


def test_an_attempt_whose_supervisor_cannot_go_on_is_ended(stage: Stage) -> None:
    """Whatever is raised while it looks is raised again, once mpirun has ended."""
    made = stage.attempt()

    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    made._on_look = fails
    stage.looks = [lambda: None]
    with pytest.raises(ZeroDivisionError):
        made.run_to_end()
    assert (["ended"], {"presence", "ranks"}) == (stage.ended_by, stage.closed)


@pytest.mark.parametrize(
    ("seen", "job", "kind", "text", "host"),
    [
        ({}, {}, FailureKind.LAUNCH, "mpirun could not be started: no such file", ""),
        (
            {"trouble_here": "it is full"},
            {},
            FailureKind.SHARED_FOLDER,
            "{folder} cannot be written: it is full; mpirun could not be started: no such file",
            "",
        ),
        (
            {"trouble_here": "it is full"},
            {"heal": False},
            FailureKind.LAUNCH,
            "mpirun could not be started: no such file",
            "",
        ),
        (
            {"without": [B.address]},
            {},
            FailureKind.SHARED_FOLDER,
            "the shared folder is not there on 10.0.0.1; mpirun could not be started: no such file",
            B.address,
        ),
        (
            {"without": [B.address]},
            {"is_shared": False},
            FailureKind.LAUNCH,
            "mpirun could not be started: no such file",
            "",
        ),
    ],
)
def test_why_an_attempt_did_not_start(
    stage: Stage, seen: Any, job: Any, kind: FailureKind, text: str, host: str
) -> None:
    """The shared folder's trouble is behind it where there is any, for a job that heals."""
    vars(stage).update(seen)
    stage.starts = False
    outcome, _ = stage.outcome(**job)
    assert (JobState.FAILED, kind, host) == (outcome.state, outcome.cause.kind, outcome.cause.host)
    assert text.format(folder=stage.paths.folder) == outcome.cause.text


def test_hosts_that_are_gone_are_behind_an_end_of_mpirun(stage: Stage) -> None:
    """Whatever it says; a host that it misses and that answers has lost its daemon alone."""
    stage.silent, stage.exit_code = {B.address}, 1
    outcome, _ = stage.outcome()
    assert (FailureKind.HOST, B.address, 1) == (outcome.cause.kind, outcome.cause.host, outcome.exit_code)
    assert "it does not answer; mpirun says: " in outcome.cause.text
    stage.exit_code = 0
    outcome, _ = stage.outcome()
    assert "it does not answer; mpirun ended with 0 all the same" in outcome.cause.text
    assert JobState.FAILED is outcome.state


@pytest.mark.parametrize(
    ("said", "silent", "first", "full", "kind"),
    [
        (Cause(kind=FailureKind.HOST, text="x", host=B.address), {B.address}, None, [], FailureKind.HOST),
        (Cause(kind=FailureKind.HOST, text="x", host=B.address), set(), None, [], FailureKind.DAEMON),
        (Cause(kind=FailureKind.LAUNCH, text="x"), set(), None, [], FailureKind.LAUNCH),
        (Cause(kind=FailureKind.LAUNCH, text="x"), set(), 5.0, [], FailureKind.DAEMON),
        (Cause(kind=FailureKind.LAUNCH, text="x"), {B.address}, 5.0, [], FailureKind.HOST),
        (Cause(kind=FailureKind.PROGRAM, text="x"), set(), 5.0, [A.address], FailureKind.PROGRAM),
    ],
)
def test_what_mpirun_says_is_held_against_what_hosts_say(
    stage: Stage,
    said: Cause,
    silent: set[str],
    first: Any,
    full: Any,
    kind: FailureKind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attempt that had trained has not failed to start."""
    monkeypatch.setattr(attempts, "read_cause", lambda *_, **__: said)
    stage.silent, stage.full, stage.exit_code = silent, full, 1
    stage.steps, stage.looks = (1, 1, first) if first else (None, None, None), [lambda: None]
    outcome, _ = stage.outcome()
    assert kind is outcome.cause.kind


def test_a_host_without_room_is_named(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first, where nothing could be launched and mpirun names none."""
    monkeypatch.setattr(attempts, "read_cause", lambda *_, **__: Cause(kind=FailureKind.LAUNCH, text="x"))
    stage.full, stage.exit_code = [B.address, A.address], 1
    outcome, _ = stage.outcome()
    assert attempts.no_store(B.address) == outcome.cause


def test_ranks_that_left_because_they_were_told_have_not_succeeded(stage: Stage) -> None:
    """Though mpirun ends with 0; with another exit code that is the cause."""
    stage.says("[1,0]<stdout>:Asked to stop: saved after step 4")
    outcome, _ = stage.outcome()
    assert (JobState.FAILED, FailureKind.TOLD) == (outcome.state, outcome.cause.kind)
    stage.exit_code = 3
    outcome, _ = stage.outcome()
    assert "mpirun ended with 3: see the log" == outcome.cause.text


def test_a_host_is_told_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where mpirun has its own name for it; one that is of no host of the job stays as it is."""

    def found(name: str) -> str:
        if name == "nobody":
            raise OSError
        return {"b": B.address, "other": "10.9.9.9"}[name]

    monkeypatch.setattr(attempts.socket, "gethostbyname", found)
    lost = Cause(kind=FailureKind.HOST, text="b was lost", host="b")
    assert dataclasses.replace(lost, host=B.address, text="10.0.0.1 was lost") == attempts._by_address(
        lost, {B.address}
    )
    for host in ("", B.address, "nobody", "other"):
        one = dataclasses.replace(lost, host=host)
        assert one == attempts._by_address(one, {B.address})

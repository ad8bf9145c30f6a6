"""A supervisor's way through a job's attempts, with attempts and hosts that are played. No mpirun, no hosts."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.files import write_json
from cluster.folder_thread import FolderThread, Unanswered
from cluster.hosts import Host
from cluster.jobs import turns
from cluster.jobs.claim import HostsTaken
from cluster.jobs.cleanup import CleanupResult
from cluster.jobs.process import ProcessId, this_process
from cluster.jobs.record import Job, JobPaths, JobStatus, load, read_job, write_job
from cluster.jobs.record_lease import read_lease, take_lease
from cluster.jobs.records import read_attempts
from cluster.jobs.state import JobState
from cluster.jobs.supervisor import admission, queueing, recovery, reporter, supervise
from cluster.jobs.supervisor.attempt import Outcome
from cluster.jobs.supervisor.interruptible_wait import Patience, StopAsked
from cluster.jobs.supervisor.lease_holder import LeaseHolder
from cluster.jobs.supervisor.recovery import NotHealed, Prepared
from cluster.recovery.cause import Cause
from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.history import AttemptRecord
from cluster.recovery.host_failures import read_memory
from cluster.recovery.placement import Placement
from cluster.recovery.policy import Retry
from tests.cluster.jobs_here import a_job

A, B, C = (Host(rank=n, address=f"10.0.0.{n}", slots=1) for n in range(3))
DONE = Outcome(state=JobState.SUCCEEDED, cause=Cause(kind=FailureKind.DONE, text=""), exit_code=0)
LOST_B = Outcome(state=JobState.FAILED, cause=Cause(kind=FailureKind.HOST, text="10.0.0.1 was lost", host=B.address))
DAEMON = Outcome(state=JobState.FAILED, cause=Cause(kind=FailureKind.DAEMON, text="its daemon ended"), exit_code=1)
DOWN = Outcome(state=JobState.FAILED, cause=Cause(kind=FailureKind.MASTER, text="its master was shut down"))
Play = Callable[[Any], Outcome]


class Stage:
    """Hosts, attempts and signals as they are played, and what becomes of them."""

    def __init__(self, paths: JobPaths) -> None:
        self.paths, self.folder = paths, FolderThread()
        self.plays: list[Play] = []
        self.prepared: list[Callable[[Job, int], Job]] = []
        self.runs: dict[str, int] = {}  # the attempt that runs on a host
        self.held: set[str] = set()  # hosts that are taken for the job
        self.claimed: dict[str, Host] = {}  # for an attempt that may not come
        self.silent: set[str] = set()
        self.slept = 0
        self.stays = ""  # a process that cannot be ended
        self.told: list[tuple[str, int, str]] = []
        self.attempts: list[Job] = []
        self.signals = SimpleNamespace(ask_to_end=False, are_of_jobs_stop=True, are_of_a_shutdown=False, limit="")

    def begin(self, job: Job, state: JobState = JobState.STARTING, **status: Any) -> None:
        """Put the job on record as it was announced."""
        write_job(self.paths, job)
        announced = JobStatus(**{"state": state, "attempt": job.attempt, "supervisor": this_process(), **status})
        write_json(self.paths.status, dataclasses.asdict(announced))
        self.held |= {h.address for h in job.hosts}

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        assert self.slept < 100, "it waits for ever"

    def run_to_end(self, attempt: int = 1) -> JobStatus | None:
        return supervise._Supervisor(self.paths, attempt, self.folder).run_to_end()

    def attempts_on_record(self) -> list[AttemptRecord]:
        self.folder.do(lambda: None)
        return list(read_attempts(self.paths))

    def status_on_record(self) -> JobStatus:
        self.folder.do(lambda: None)
        return load(self.paths.status, JobStatus)

    def sweep(
        self, hosts: Any, job_id: str, grace_s: int = 2, attempt: int | None = None, *, keeps_hosts: bool = False
    ) -> CleanupResult:
        for address in [h.address for h in hosts]:
            assert address not in self.silent, "a host that does not answer is waited for"
            if attempt in (None, self.runs.get(address)):
                self.runs.pop(address, None)
            if not keeps_hosts:
                self.held.discard(address)
        return CleanupResult(processes=(self.stays,) if self.stays else ())


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    paths = JobPaths(tmp_path / "jobs" / "j")
    paths.logs(1).mkdir(parents=True)
    made = Stage(paths)

    class Played:
        def __init__(self, job: Job, paths: JobPaths, signals: Any, record: AttemptRecord, **on: Any) -> None:
            self.job, self.signals, self.record, self.on = job, signals, record, on

        def run_to_end(self) -> Outcome:
            made.attempts.append(self.job)
            made.runs |= {h.address: self.job.attempt for h in self.job.hosts}
            made.held |= {h.address for h in self.job.hosts}
            outcome = made.plays.pop(0)(self)
            cause = outcome.cause
            self.record = dataclasses.replace(
                self.record, what=cause.kind, text=cause.text, host=cause.host, ended=time.time()
            )
            return outcome

    class Healed:
        def __init__(self, job: Job, *_: Any, say: Any = None) -> None:
            self.job, self.say = job, say
            self.may_have_taken = {h.address: h for h in job.all_hosts}

        def prepare(self, again: Any, attempt: int) -> Prepared:
            self.may_have_taken |= made.claimed
            job = made.prepared.pop(0)(self.job, attempt).planned(attempt=attempt)
            self.may_have_taken |= {h.address: h for h in job.hosts}
            return Prepared(job=job, choice="as they are", waited_s=1000.26, gate_s=300.44)

    class Told:
        def __init__(self, *_: Any) -> None: ...

        def tell(self, event: Any, text: str, attempt: int, host: str = "") -> None:
            made.told.append((event.value, attempt, text))

        def close(self) -> None: ...

    monkeypatch.setattr(supervise, "Attempt", Played)
    monkeypatch.setattr(supervise, "Recovery", Healed)
    monkeypatch.setattr(supervise, "Signals", lambda: made.signals)
    monkeypatch.setattr(supervise, "sweep", made.sweep)
    monkeypatch.setattr(supervise, "silent_hosts", lambda addresses: made.silent & set(addresses))
    monkeypatch.setattr(admission, "silent_hosts", lambda addresses, wait_s: made.silent & set(addresses))
    monkeypatch.setattr(queueing, "Recovery", Healed)
    monkeypatch.setattr(queueing, "give_back", lambda job: made.sweep(job.hosts, job.id))
    monkeypatch.setattr(Patience, "sleep", made.sleep)
    monkeypatch.setattr(reporter, "Notifier", Told)
    yield made
    made.folder.close()


def ends(outcome: Outcome) -> Play:
    return lambda attempt: outcome


def raises(error: BaseException) -> Any:
    def play(*_: Any) -> Any:
        raise error

    return play


def on(*hosts: Host) -> Callable[[Job, int], Job]:
    """The next attempt is on these."""
    return lambda job, attempt: job.planned(hosts=hosts, np=len(hosts))


def a_healing(**changes: Any) -> Job:
    return a_job(
        "true", "j", **{"hosts": (A, B), "whole_hosts": (A, B), "np": 2, "whole_np": 2, "heal": True, **changes}
    )


def test_an_attempt_that_is_done_ends_its_job(stage: Stage) -> None:
    """Nothing of it runs or is held afterwards; its record says when it was cleared, and who was told."""
    stage.begin(a_healing())
    stage.plays = [ends(DONE)]
    status = stage.run_to_end()
    assert status
    assert (JobState.SUCCEEDED, 0, "", ()) == (status.state, status.exit_code, status.cause, status.left)
    assert status == stage.status_on_record()
    (record,) = stage.attempts_on_record()
    assert (1, 2, (A.address, B.address), FailureKind.DONE) == (record.number, record.np, record.hosts, record.what)
    assert record.cleared
    assert ({}, set()) == (stage.runs, stage.held)
    assert [("ended", 1, "succeeded")] == stage.told
    lease = read_lease(stage.paths)
    assert lease
    assert (1, this_process()) == (lease.attempt, lease.holder)


def test_a_job_goes_on_without_a_host_that_is_lost(stage: Stage) -> None:
    """The next attempt has the lease and a record of its own; the silent host is named, not waited for."""
    stage.begin(a_healing())

    def second(attempt: Any) -> Outcome:
        assert 2 == read_lease(stage.paths).attempt
        running = stage.status_on_record()
        assert (JobState.RUNNING, 2, this_process()) == (running.state, running.attempt, running.supervisor)
        assert [1, 2] == [a.number for a in stage.attempts_on_record()]
        assert {A.address, B.address, C.address} == stage.held, "what is held stays so between two attempts"
        for _ in range(2):
            attempt.on["on_look"](dataclasses.replace(attempt.record, first_step=7, first_step_at=5.0), ())
        assert 5.0 == stage.attempts_on_record()[-1].first_step_at
        return DONE

    def first(attempt: Any) -> Outcome:
        attempt.on["on_look"](dataclasses.replace(attempt.record, first_step=1, first_step_at=5.0), ())
        stage.silent |= {B.address}
        return LOST_B

    stage.plays, stage.prepared = [first, second], [on(A, C)]
    status = stage.run_to_end()
    assert status
    assert (JobState.SUCCEEDED, 2) == (status.state, status.attempt)
    assert (f"{B.address}: not looked at, it does not answer",) == status.left
    one, two = stage.attempts_on_record()
    assert "2 ranks on 10.0.0.[0,2], as they are" == one.then
    assert (one.cleared, 1000.3, 300.4) == (two.began, two.waited_s, two.gate_s)
    assert [("failed", 1), ("healed", 2), ("ended", 2)] == [t[:2] for t in stage.told]
    assert "attempt 2 trains, from step 7 on" == stage.told[1][2]
    assert {B.address} == set(stage.runs) == stage.held
    assert [(B.address, "host", 1)] == [
        (e.host, e.what, e.attempt) for e in read_memory(stage.paths.folder.parent.parent).entries
    ]


def test_hosts_of_earlier_attempts_are_cleared_where_they_answer(stage: Stage) -> None:
    """One that is silent meanwhile is named too; hosts of the attempt itself are not asked before."""
    stage.begin(a_healing())

    def second(attempt: Any) -> Outcome:
        stage.runs[B.address] = 1
        return DAEMON

    def third(attempt: Any) -> Outcome:
        stage.silent = {B.address}
        return DONE

    stage.plays, stage.prepared = [ends(DAEMON), second, third], [on(A), on(A)]
    assert (status := stage.run_to_end())
    assert (f"{B.address}: not looked at, it does not answer",) == status.left
    assert {} == stage.runs


@pytest.mark.parametrize(
    ("kept", "now", "is_kept"),
    [
        ({}, {"started": 3.0}, True),
        ({"started": 3.0}, {"started": 3.0, "step": 1}, False),
        ({"started": 3.0}, {"started": 3.0, "step": 9, "step_at": 10.0}, False),
        ({"started": 3.0}, {"started": 3.0, "step": 9, "step_at": 10.1}, True),
        ({"started": 3.0, "step_at": 50.0}, {"started": 3.0, "step": 9, "step_at": 60.0}, False),
        ({"started": 3.0, "step_at": 50.0}, {"started": 3.0, "step": 9, "step_at": 61.0}, True),
        ({"started": 3.0, "alive_at": 50.0}, {"started": 3.0, "step": 9, "alive_at": 60.0}, False),
        ({"started": 3.0, "alive_at": 50.0}, {"started": 3.0, "step": 9, "alive_at": 61.0}, True),
        ({"first_step_at": 3.0}, {"first_step_at": 3.0, "step": 9}, False),
        ({}, {"first_step_at": 3.0, "step": 9}, True),
    ],
)
def test_how_far_an_attempt_is_is_kept_once_it_would_be_missed(
    kept: dict[str, Any], now: dict[str, Any], is_kept: bool, stage: Stage
) -> None:
    """Its start, its first step, and what is more than ten seconds on; warnings go into the record, and leave it."""
    stage.begin(a_healing(attempt=2))
    write_json(stage.paths.attempts, {"attempts": [dataclasses.asdict(supervise._begin(a_healing()))]})

    def look(attempt: Any) -> Outcome:
        supervisor.record = dataclasses.replace(attempt.record, **kept)
        supervisor.holder.keep(supervisor.record)
        record = dataclasses.replace(attempt.record, **now)
        stage.paths.lease.unlink()
        supervisor.holder._renewed = -1e9
        attempt.on["on_look"](record, ("slow",))
        found = stage.attempts_on_record()
        assert [1, 2] == [a.number for a in found]
        assert is_kept is (found[-1] == record)
        assert stage.paths.lease.exists(), "it is renewed in time"
        assert ("slow",) == stage.status_on_record().warnings
        attempt.on["on_look"](record, ())
        assert () == stage.status_on_record().warnings
        return DONE

    stage.plays = [look]
    supervisor = supervise._Supervisor(stage.paths, 2, stage.folder)
    assert supervisor.run_to_end()
    assert [("ended", 2, "succeeded")] == stage.told, "a supervisor's first attempt has not healed"


@pytest.mark.parametrize("is_back", [False, True])
def test_why_there_is_no_next_attempt_is_in_the_record(stage: Stage, is_back: bool) -> None:
    """And no host is held for it: none that was taken meanwhile, nor the lost one where it has come back."""
    stage.begin(a_healing())
    stage.claimed = {C.address: C}

    def first(attempt: Any) -> Outcome:
        stage.silent = {B.address}
        return LOST_B

    def none_left(job: Job, attempt: int) -> Job:
        stage.held |= {C.address}
        stage.silent -= {B.address} if is_back else set()
        raise NotHealed("no host is left")

    stage.plays, stage.prepared = [first], [none_left]
    assert (status := stage.run_to_end())
    assert (JobState.FAILED, "10.0.0.1 was lost; not tried again: no host is left") == (status.state, status.cause)
    assert (() if is_back else (f"{B.address}: not looked at, it does not answer",)) == status.left
    assert (set() if is_back else {B.address}) == stage.held


def test_what_may_be_another_s_attempt_is_not_ended(stage: Stage) -> None:
    """Where the folder does not tell whether this is still who may: of its own attempt alone."""
    stage.begin(a_healing())
    supervisor = supervise._Supervisor(stage.paths, 1, stage.folder)
    assert supervisor._began()
    for check, left in ((raises(Unanswered()), {B.address: 2}), (lambda: None, {})):
        stage.runs = {A.address: 1, B.address: 2}
        supervisor.holder.check = check  # type: ignore[method-assign]
        assert () == supervisor._swept(set(), keeps_hosts=True)
        assert left == stage.runs


@pytest.mark.parametrize("heal", [True, False])
def test_a_job_that_must_not_heal_ends_with_its_attempt(stage: Stage, heal: bool) -> None:
    """The program's own error ends it in any case, with why; a healed job's ends are remembered of its hosts."""
    stage.begin(a_healing(heal=heal))
    stage.plays = [
        ends(Outcome(state=JobState.FAILED, cause=Cause(kind=FailureKind.PROGRAM, text="exit 1"), exit_code=1))
    ]
    assert (status := stage.run_to_end())
    why = "; not tried again: it is the program's own error, and would come again" if heal else ""
    assert (JobState.FAILED, "exit 1" + why) == (status.state, status.cause)
    assert set() == stage.held


def test_a_job_that_is_stopped_while_it_heals_says_both(stage: Stage) -> None:
    """It is stopped, with what had ended the attempt before; its hosts are free, what stays there is named."""
    stage.begin(a_healing())
    stage.plays, stage.prepared = [ends(DAEMON)], [raises(StopAsked())]
    stage.stays = "10.0.0.0: process 7"
    assert (status := stage.run_to_end())
    assert (JobState.STOPPED, 1, FailureKind.STOPPED) == (status.state, status.exit_code, status.ended_by)
    assert "stopped before its next attempt; the last: its daemon ended" == status.cause
    assert ("10.0.0.0: process 7",) == status.left
    assert set() == stage.held


@pytest.mark.parametrize(("while_healing", "per_hour"), [(False, 6), (False, 1), (True, 6)])
def test_a_job_whose_master_is_shut_down_goes_on_later(stage: Stage, while_healing: bool, per_hour: int) -> None:
    """It heals, and keeps its hosts; nobody is told that it has ended."""
    stage.begin(a_healing(attempts_per_hour=per_hour))
    stage.signals.are_of_jobs_stop = False

    def goes(*_: Any) -> Any:
        stage.signals.are_of_a_shutdown = True
        if while_healing:
            raise StopAsked
        return DOWN

    stage.plays, stage.prepared = [ends(DAEMON) if while_healing else goes], [goes]
    assert (status := stage.run_to_end())
    assert JobState.HEALING is status.state
    why = "its daemon ended" if while_healing else "its master was shut down"
    assert why in status.cause
    assert status.cause.endswith("; it goes on when the master is back")
    assert "not tried again" not in status.cause
    assert {A.address, B.address} == stage.held
    assert [] == [t for t in stage.told if t[0] == "ended"]


@pytest.mark.parametrize(("heal", "shutdown", "said"), [(1, 1, "running"), (1, 0, "stopping"), (0, 1, "stopping")])
def test_a_stop_is_in_the_record_but_for_a_shutdown_after_which_it_goes_on(
    stage: Stage, heal: int, shutdown: int, said: str
) -> None:
    """As long as ranks save."""
    stage.begin(a_healing(heal=bool(heal)))

    def asked(attempt: Any) -> Outcome:
        stage.signals.are_of_a_shutdown = bool(shutdown)
        attempt.on["on_stop"]()
        assert said == stage.status_on_record().state
        return DONE

    stage.plays = [asked]
    assert stage.run_to_end()


def test_a_supervisor_that_fails_says_so(stage: Stage) -> None:
    """In the job's record, before it ends itself; nothing of the job stays."""
    stage.begin(a_healing())
    stage.plays = [raises(KeyError("x"))]
    with pytest.raises(KeyError):
        stage.run_to_end()
    status = stage.status_on_record()
    assert (JobState.FAILED, FailureKind.SUPERVISOR) == (status.state, status.ended_by)
    assert "the supervisor failed: KeyError: 'x'" == status.cause
    assert ({}, set()) == (stage.runs, stage.held)


def test_a_supervisor_whose_lease_another_has_leaves_the_job_alone(stage: Stage, capsys: Any) -> None:
    """It says who has it, ends nothing and writes nothing."""
    stage.begin(a_healing())

    def loses(attempt: Any) -> Outcome:
        stage.folder.do(lambda: take_lease(stage.paths, 2, ProcessId(host="other", pid=7, started=1, boot="b")))
        return DAEMON

    stage.plays = [loses]
    assert stage.run_to_end() is None
    assert "attempt 2 of process 7 on other is" in capsys.readouterr().out
    assert JobState.RUNNING is load(stage.paths.status, JobStatus).state
    assert {A.address, B.address} == set(stage.runs)


@pytest.mark.parametrize(
    ("attempt", "state"), [(2, JobState.STARTING), (1, JobState.RUNNING), (1, JobState.STOPPED), (1, JobState.FAILED)]
)
def test_an_attempt_that_was_taken_back_does_not_begin(
    stage: Stage, attempt: int, state: JobState, capsys: Any
) -> None:
    """One of another number, or a job that is not announced any more."""
    stage.begin(a_healing(), state, attempt=attempt)
    assert stage.run_to_end() is None
    assert f"attempt 1 is not to begin any more: it is {state}" in capsys.readouterr().out
    assert [] == stage.attempts == stage.attempts_on_record()


@pytest.mark.parametrize("is_known_over", [False, True])
def test_a_job_is_taken_up_as_its_lost_supervisor_left_it(stage: Stage, is_known_over: bool) -> None:
    """Its last attempt ended with its master, unless it is known how; the next one is its own."""
    stage.begin(a_healing(attempt=3), JobState.HEALING, ended="2026-11-24T00:00:00+00:00", supervisor=None)
    take_lease(stage.paths, 3, this_process())
    record = dataclasses.replace(supervise._begin(a_healing(attempt=3)), step=4)
    if is_known_over:
        record = dataclasses.replace(record, what=FailureKind.DAEMON, text="its daemon ended", ended=5.0)
    write_json(stage.paths.attempts, {"attempts": [dataclasses.asdict(record)]})

    def prepared(job: Job, attempt: int) -> Job:
        assert this_process() == stage.status_on_record().supervisor
        return job

    stage.plays, stage.prepared = [ends(DONE)], [prepared]
    assert (status := stage.run_to_end(3))
    assert (JobState.SUCCEEDED, 4) == (status.state, status.attempt)
    three, four = stage.attempts_on_record()
    assert (3, 4, 4) == (three.number, three.step, four.number)
    if is_known_over:
        assert (FailureKind.DAEMON, "its daemon ended", 5.0) == (three.what, three.text, three.ended)
    else:
        assert (FailureKind.MASTER, supervise._MASTER_AWAY, 1795478400.0) == (three.what, three.text, three.ended)
        assert three.noticed


def a_waiting(**changes: Any) -> Job:
    return a_healing(**{"hosts": (), "whole_hosts": (), "wanted": (A, B, C), "ticket": 1, **changes})


def test_a_job_whose_turn_comes_has_hosts_and_an_attempt(stage: Stage) -> None:
    """Those that it could have had besides stay nobody's spares; who waits is told that it starts."""
    stage.begin(a_waiting(), JobState.QUEUED, supervisor=None)
    take_lease(stage.paths, 1, this_process())
    now = time.time()

    def offered(job: Job, attempt: int) -> Job:
        assert this_process() == stage.status_on_record().supervisor
        assert ((A, B), (C,), 1) == (job.hosts, job.plan.spares, attempt)
        assert (A, B) == read_job(stage.paths).hosts, "they are its own by its record before anything is done there"
        return job.planned(hosts=(A, C))

    stage.plays, stage.prepared = [ends(DONE)], [offered]
    assert (status := stage.run_to_end())
    assert JobState.SUCCEEDED is status.state
    assert [("started", 1, "out of the queue: 2 ranks on 10.0.0.[0,2], as they are"), ("ended", 1, "succeeded")] == (
        stage.told
    )
    job = read_job(stage.paths)
    assert ((A, C), (A, B), ()) == (job.hosts, job.plan.whole_hosts, job.plan.spares)
    (record,) = stage.attempts_on_record()
    assert (1000.3, 300.4, (A.address, C.address)) == (record.waited_s, record.gate_s, record.hosts)
    assert record.began < now - 1000, "it began with its turn"
    assert set() == stage.held


def test_hosts_that_another_has_after_all_are_waited_for_in_the_queue(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record says why, hosts are given back, also those that a lost supervisor had taken; others are tried first."""
    mine: list[list[str]] = []
    monkeypatch.setattr(turns, "EVERY_S", 0.0)
    stage.begin(a_waiting(hosts=(A, B), whole_hosts=(A, B)), JobState.QUEUED)

    def taken(job: Job, attempt: int) -> Job:
        assert set() == stage.held
        mine.append([h.address for h in job.hosts])
        stage.held |= {job.hosts[0].address}
        raise HostsTaken("hosts taken by k", {job.hosts[0].address: "is taken by k"})

    def again(job: Job, attempt: int) -> Job:
        assert set() == stage.held
        assert "waits: hosts taken by k" == stage.status_on_record().cause
        return job

    stage.plays, stage.prepared = [ends(DONE)], [taken, taken, again]
    assert (status := stage.run_to_end())
    assert JobState.SUCCEEDED is status.state
    assert [[A.address, B.address], [B.address, C.address]] == mine


@pytest.mark.parametrize(
    ("why", "state", "kind", "text"),
    [
        (NotHealed("all are unfit"), "failed", FailureKind.LAUNCH, "its turn in the queue had come, but all are unfit"),
        (StopAsked(), "stopped", FailureKind.STOPPED, "stopped while it waited in the queue"),
    ],
)
def test_a_job_that_never_begins_holds_nothing(
    stage: Stage, why: Exception, state: str, kind: FailureKind, text: str
) -> None:
    """What it may have taken is given back; its record says why."""
    stage.begin(a_waiting(), JobState.QUEUED)
    stage.held |= {A.address, C.address}
    stage.prepared = [raises(why)]
    assert (status := stage.run_to_end())
    assert (state, kind, text) == (status.state, status.ended_by, status.cause)
    assert ([], set()) == (stage.attempts, stage.held)


def test_a_job_keeps_its_place_while_its_master_is_away(stage: Stage) -> None:
    """A shutdown leaves it in the queue."""
    stage.begin(a_waiting(), JobState.QUEUED)
    stage.signals.are_of_a_shutdown = True
    stage.prepared = [raises(StopAsked())]
    assert (status := stage.run_to_end())
    assert JobState.QUEUED is status.state is stage.status_on_record().state


@pytest.mark.parametrize(("hosts", "used"), [((), ()), ((A,), (A, B, C))])
def test_what_a_supervisor_that_is_gone_had_taken_may_be_in_use(
    stage: Stage, hosts: tuple[Host, ...], used: tuple[Host, ...]
) -> None:
    """Any host that the job may have; none where it had none yet."""
    found = queueing.Queueing(a_waiting(hosts=hosts), stage.paths, *([None] * 4))
    assert used == found.may_have_used


def test_a_host_that_hung_is_used_again_where_no_other_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, after a look at it, and that is said; nothing is waited for that nobody brings."""
    asked, said = list[Any](), list[str]()

    def next_hosts(*_: object, **of: Any) -> Placement:
        asked.append((of["without"], of["suspects"]))
        return Placement(hosts=() if of["without"] else (A, B), np=2, seats=(A, B), missing={})

    monkeypatch.setattr(recovery, "next_hosts", next_hosts)
    monkeypatch.setattr(recovery, "planned_on_master", lambda job, paths, hosts, np, attempt: job)
    monkeypatch.setattr(recovery.Recovery, "_claim", lambda _, job, *__: job)
    monkeypatch.setattr(recovery.Recovery, "_announce", lambda *_: None)
    patience = SimpleNamespace(wait_for=lambda do, **_: do(), sleep=lambda s: pytest.fail("it waits"))
    parts: Any = (patience, SimpleNamespace(news=0), SimpleNamespace(say=said.append), SimpleNamespace(is_silent=False))
    recovery.Recovery(a_healing(), JobPaths(tmp_path / "jobs" / "j"), *parts).prepare(Retry(without=B.address), 2)
    assert [({B.address: "hung time and again"}, set()), ({}, {B.address})] == asked
    assert [f"{B.address} hung time and again, but no other host can be had: it is looked at and used"] == said


def test_what_healing_waits_for_is_in_the_record(tmp_path: Path) -> None:
    """The newest of it, beside what ended the last attempt: a second host may die meanwhile."""
    paths = JobPaths(tmp_path / "jobs" / "j")
    paths.logs(1).mkdir(parents=True)
    folder = FolderThread()
    told = reporter.Telling(
        a_healing(), paths, LeaseHolder(paths, 1, folder), folder, JobStatus(state=JobState.RUNNING)
    )
    record = AttemptRecord(number=1, np=2, hosts=("a", "b"), began=1.0)
    told.heals(Cause(kind=FailureKind.HOST, text="host a was lost"), (), record)
    for text in ("too few hosts: a", "too few hosts: a, b"):
        told.waits_to_heal(text)
    folder.close()
    assert "host a was lost; the next attempt waits: too few hosts: a, b" == load(paths.status, JobStatus).cause
    assert JobState.HEALING is load(paths.status, JobStatus).state

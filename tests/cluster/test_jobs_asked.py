"""What the master does with one verb about its jobs, how one is stopped, and what its next attempt is. No hosts."""

import dataclasses
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.errors import ClusterError, ConfigError, NothingToDo
from cluster.files import write_json
from cluster.folder_thread import FolderThread, Unanswered
from cluster.hosts import Host
from cluster.jobs import __main__ as verbs
from cluster.jobs import cost, plan, status
from cluster.jobs.claim import HostsTaken
from cluster.jobs.cleanup import CleanupResult
from cluster.jobs.client import on_master
from cluster.jobs.cost import Bill, Paid
from cluster.jobs.master import stop
from cluster.jobs.plan import HostsUnfit
from cluster.jobs.process import ProcessId, this_process
from cluster.jobs.record import JobPaths, JobStatus, read_job, write_job
from cluster.jobs.record_lease import take_lease
from cluster.jobs.state import JobState
from cluster.jobs.supervisor import launcher, recovery
from cluster.jobs.supervisor.launcher import Mpirun
from cluster.jobs.supervisor.recovery import NotHealed, Recovery
from cluster.recovery.placement import Ineligible, Placement
from cluster.recovery.policy import Retry
from cluster.ssh.failure import Failure, Reason
from cluster.ssh.onhost.frame import Frames
from cluster.ssh.result import Result
from tests.cluster.jobs_here import a_job

A, B, C = (Host(rank=n, address=f"10.0.0.{n}", slots=1) for n in range(3))
ELSEWHERE = ProcessId(host="elsewhere", pid=7, started=1, boot="b")


@pytest.fixture
def paths(tmp_path: Path) -> JobPaths:
    """A job on record that has failed."""
    made = JobPaths(tmp_path / "jobs" / "j")
    made.logs(1).mkdir(parents=True)
    write_job(made, a_job("true", "j", hosts=(A, B)))
    put(made, JobState.FAILED)
    return made


def put(paths: JobPaths, state: JobState, **said: Any) -> JobStatus:
    made = JobStatus(**{"state": state, "supervisor": this_process(), **said})
    write_json(paths.status, dataclasses.asdict(made))
    return made


def answered(paths: JobPaths, capfdbinary: Any, *words: str) -> tuple[int, Any, str]:
    """A verb's exit code, its answer and its complaint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO())
        code = verbs.main(["--shared", str(paths.folder.parent.parent), *words])
    said = capfdbinary.readouterr()
    answers = Frames().feed(said.out)
    return code, answers[-1] if answers else None, said.err.decode()


def test_each_verb_about_jobs_has_an_answer(paths: JobPaths, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One job, all of them, its curves, its page's facts; a bill where there is one."""
    code, said, _ = answered(paths, capfdbinary, "show", "j")
    assert (0, "j", "failed") == (code, said["job"]["id"], said["status"]["state"])
    code, said, _ = answered(paths, capfdbinary, "list")
    assert (0, ["j"], [], [], []) == (
        code,
        [one["job"]["id"] for one in said["jobs"]],
        said["damaged"],
        said["holders"],
        said["unsure_ids"],
    )
    code, said, _ = answered(paths, capfdbinary, "curves", "j")
    assert (0, "j", None) == (code, said["view"]["job"]["id"], said["measured"]["ranks"])
    code, said, _ = answered(paths, capfdbinary, "facts", "j", "j")
    assert (0, 2) == (code, len(said))
    assert (0, [], "") == answered(paths, capfdbinary, "heal", "--dry-run")
    for bill, expected in (
        (None, None),
        (
            Bill((Paid(begins=0.0, ends=None, usd_per_hour=2.0),)),
            {"instances": [{"begins": 0.0, "ends": None, "usd_per_hour": 2.0}]},
        ),
    ):
        monkeypatch.setattr(cost, "remembered", lambda stack, bill=bill: bill)
        assert (0, expected, "") == answered(paths, capfdbinary, "bill", "us-east-1/x")


def test_all_jobs_are_told_with_those_that_nobody_is_sure_of(paths: JobPaths, capfdbinary: Any) -> None:
    """A lost job whose supervisor is elsewhere may only not reach the folder; a damaged record is named."""
    put(paths, JobState.RUNNING, supervisor=ELSEWHERE)
    (paths.folder.parent / "k").mkdir()
    (paths.folder.parent / "k" / "state.json").write_text("{")
    _, said, _ = answered(paths, capfdbinary, "list")
    assert (["j"], ["k"], 1) == (said["unsure_ids"], said["damaged_ids"], len(said["damaged"]))
    assert {"j", "k"} == {one["job"] for one in said["holders"]}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["show", "none"], 2, "none"),
        (["submit"], 2, "the job that was sent cannot be read: "),
        (["stop", "j"], 3, "j has ended (failed), and nothing of it is left on any host"),
        (["logs", "j", "--rank", "5"], 2, "j has 1 rank, counted from 0: there is no rank 5"),
    ],
)
def test_what_the_master_does_not_do_has_a_code_of_its_own(
    paths: JobPaths, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, says: str
) -> None:
    """2 what was asked wrongly, 3 nothing to do; and why."""
    monkeypatch.setattr(stop, "sweep", lambda *_: CleanupResult())
    monkeypatch.setattr(sys, "stdin", io.StringIO("{}"))
    found, said, complaint = answered(paths, capfdbinary, *words)
    assert (code, None) == (found, said)
    assert says in complaint


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ClusterError("lost"), 1, "lost\n"),
        (OSError(2, "No such file", "/x"), 1, "/x: No such file\n"),
        (OSError("odd"), 1, "{folder}: odd\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_a_sentence(
    paths: JobPaths, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, says: str
) -> None:
    """And an exit code."""

    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(verbs, "_answer", fails)
    assert (code, None, says.format(folder=paths.folder.parent)) == answered(paths, capfdbinary, "list")


@pytest.mark.parametrize(
    ("state", "follow", "code"), [("failed", 1, 1), ("failed", 0, 0), ("succeeded", 1, 0), ("stopped", 1, 0)]
)
def test_who_follows_a_job_hears_how_it_ended(
    paths: JobPaths, capfdbinary: Any, state: str, follow: int, code: int
) -> None:
    """By the exit code as well; who only looks does not."""
    put(paths, JobState(state))
    paths.console(1).write_text("one\n")
    assert code == verbs.main(
        ["--shared", str(paths.folder.parent.parent), "logs", "j", *(["--follow"] if follow else [])]
    )
    said = capfdbinary.readouterr()
    assert b"one\n" in said.out
    assert bool(follow) is (b"j" in said.err)


@pytest.mark.parametrize(("verb", "also"), [("show", ""), ("stop", "; of no job there is a supervisor of yours here")])
def test_a_folder_that_does_not_answer_is_named(
    paths: JobPaths, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch, verb: str, also: str
) -> None:
    """A job is stopped all the same, if its supervisor is here."""

    def silent(*_: Any) -> Any:
        raise Unanswered

    monkeypatch.setattr(FolderThread, "do", silent)
    code, _, said = answered(paths, capfdbinary, verb, "j")
    assert 1 == code
    assert f"the shared folder, {paths.folder.parent.parent}, does not answer on the master (" in said
    assert f"){also}" in said
    assert said.endswith(": look at its file server\n")


@pytest.mark.parametrize(
    ("state", "left", "after"),
    [
        (JobState.STARTING, (), ("stopped", "stopped before it began", ())),
        (JobState.FAILED, ("10.0.0.1: process 7",), ("stopped", "", ("10.0.0.1: process 7",))),
        (JobState.RUNNING, (), ("stopped", "", ())),
    ],
)
def test_a_job_without_a_supervisor_is_stopped_from_here(
    paths: JobPaths, monkeypatch: pytest.MonkeyPatch, state: JobState, left: tuple[str, ...], after: Any
) -> None:
    """What is left of it is in its record; one that has not begun does not, and a lost one is over."""
    held = {A.address, B.address}

    def sweep(hosts: Any, *_: Any) -> CleanupResult:
        held.difference_update(h.address for h in hosts)
        return CleanupResult(processes=left)

    monkeypatch.setattr(stop, "sweep", sweep)
    monkeypatch.setattr(stop, "give_back", lambda job: sweep(job.hosts))
    put(paths, state, supervisor=ELSEWHERE if state is JobState.RUNNING else this_process(), ended="", cause="x")
    found = stop.stop(paths)
    assert after == (found.state, found.cause, found.left)
    assert found == status.read_status(paths)
    assert found.ended
    assert set() == held


@pytest.mark.parametrize(
    ("supervisor", "says"),
    [
        (None, "j is run by a supervisor on another machine, which is not this master: stop it from there"),
        (ELSEWHERE, "j is run by a supervisor on elsewhere, which is not this master: stop it from there"),
        (this_process(), "is not the supervisor of j, whatever its record says"),
    ],
)
def test_only_a_job_s_own_supervisor_here_is_told_to_stop(
    paths: JobPaths, supervisor: ProcessId | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record alone is not believed."""
    monkeypatch.setattr(stop, "_signal_stop", lambda _: pytest.fail("another process was told"))
    take_lease(paths, 1, supervisor or ELSEWHERE)
    put(paths, JobState.RUNNING, supervisor=supervisor)
    with pytest.raises(ClusterError, match=says):
        stop.stop(paths)
    assert JobState.RUNNING is status.read_status(paths).state


@pytest.mark.parametrize(
    ("there", "which", "dies", "says", "stopped"),
    [
        ([], "j", 1, "of no job there is a supervisor of yours here: nothing was stopped", []),
        (["j1", "j2"], "j", 1, "of j1, j2 there is a supervisor of yours here: nothing was stopped", []),
        (["j1", "j2"], "j2", 1, "j2 was stopped all the same, which its record says as soon as it can be read", ["j2"]),
        (["j", "j2"], "j", 1, "j was stopped all the same, which its record says as soon as it can be read", ["j"]),
        (["j1"], "last", 0, "j1 was told to stop, and has not yet", ["j1"]),
        (["j1"], "x", 1, "of j1 there is a supervisor of yours here: nothing was stopped", []),
    ],
)
def test_a_job_is_stopped_unseen_where_it_is_the_only_one_that_is_meant(
    there: list[str], which: str, dies: int, says: str, stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its whole name, or a part of it that no other has."""
    processes = {name: SimpleNamespace(is_alive=True, pid=n, name=name) for n, name in enumerate(there)}
    told: list[str] = []

    def signalled(process: Any) -> None:
        told.append(process.name)
        process.is_alive = not dies

    monkeypatch.setattr(stop, "_own_supervisors", lambda folder: processes)
    monkeypatch.setattr(stop, "_signal_stop", signalled)
    monkeypatch.setattr(stop, "_WAIT_S", 0.0)
    assert (says, stopped) == (stop.stop_unseen(Path("/x"), which), told)


@pytest.mark.parametrize("module", ["cluster.jobs.supervisor.supervise", "cluster.jobs.supervise"])
def test_supervisors_of_this_and_of_the_version_before_are_found(module: str, tmp_path: Path) -> None:
    """By the module that started them; a job whose record cannot be read is stopped by its supervisor."""
    words = ["-c", "import time; print(flush=True); time.sleep(600)", module, str(tmp_path / "j")]
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE) as child:
        reaper = threading.Thread(target=child.wait)
        try:
            assert child.stdout and child.stdout.readline(), "it is there"
            reaper.start()
            assert stop.stop_unseen(tmp_path, "j").startswith("j was stopped")
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("said", "kind", "says"),
    [
        ({"exit_code": 3, "stderr": b"nothing to do"}, NothingToDo, "^nothing to do$"),
        ({"exit_code": 2, "stderr": b"no such job"}, ConfigError, "^no such job$"),
        ({"exit_code": 1, "stderr": b"it is lost"}, ClusterError, "^it is lost$"),
        ({"exit_code": 1, "stderr": b"Traceback"}, ClusterError, "could not do it: Traceback$"),
        ({"exit_code": 1}, ClusterError, "could not do it: exited 1$"),
        (
            {"exit_code": 127, "stderr": b"no python"},
            ClusterError,
            r"^the master \(10.0.0.0\) could not do it: no python$",
        ),
        (
            {"exit_code": None, "failure": Failure(reason=Reason.REFUSED)},
            on_master.ConnectionBroken,
            "could not do it: ",
        ),
    ],
)
def test_what_the_master_complains_of_is_raised_as_what_it_is(said: Any, kind: Any, says: str) -> None:
    """Its own sentence; who says it, where it is none."""
    error = on_master.error_of(Result(host=A, seconds=1.0, **said))
    assert kind is type(error)
    with pytest.raises(kind, match=says):
        raise error


@pytest.mark.parametrize(
    ("silent", "without", "is_shared", "why"),
    [
        ([B], [], True, {B.address: "exited 255"}),
        ([], [B], True, {B.address: "/s is empty"}),
        ([A], [B], True, {A.address: "exited 255", B.address: "/s is empty"}),
        ([], [B], False, None),
        ([C], [], True, None),  # the master, which runs this
        ([], [], True, None),
    ],
)
def test_an_attempt_is_planned_on_hosts_that_are_fit(
    silent: list[Host], without: list[Host], is_shared: bool, why: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that do not answer or do not see the folder are named with why."""

    def survey(reach: Any, cluster: Any, hosts: Any) -> Any:
        facts = {h: SimpleNamespace(shared="is empty" if h in without else "yes") for h in hosts if h not in silent}
        return {h: Result(host=h, exit_code=255 if h in silent else 0, seconds=1.0) for h in hosts}, facts

    started_by = dataclasses.replace(C, rank=0, slots=0)
    silent = [started_by if h is C else h for h in silent]
    made = SimpleNamespace(hosts=(A, B), np=2, profile=SimpleNamespace(name="tcp"))
    monkeypatch.setattr(plan, "survey", survey)
    monkeypatch.setattr(plan, "plan_launch", lambda *_, **__: made)
    monkeypatch.setattr(plan, "command_line", lambda launch, command, **said: [str(said["workdir"]), *command])
    job = a_job("", "j", command=("python", "t.py"), starter=C.address, is_shared=is_shared)
    if why is None:
        planned = plan.planned_on_master(job, JobPaths(Path("/s/jobs/j")), (A, B), 2, 5)
        assert (5, 2, (A, B), "tcp") == (planned.attempt, planned.np, planned.hosts, planned.plan.profile)
        assert ("/s/jobs/j/code", "python", "t.py") == planned.plan.mpirun
    else:
        with pytest.raises(HostsUnfit) as unfit:
            plan.planned_on_master(job, JobPaths(Path("/s/jobs/j")), (A, B), 2, 5)
        assert why == unfit.value.why


@pytest.mark.parametrize(("stuck", "lasts_s"), [(True, 2.2), (False, 30.0)])
def test_a_rank_that_is_stopped_is_not_waited_for(stuck: bool, lasts_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that may save have thirty seconds; it is ended after them, more and more firmly."""
    clock, sent = [0.0], list[int]()
    made = object.__new__(Mpirun)
    made._job = a_job("", "j")
    process: Any = SimpleNamespace(pid=os.getpid(), send_signal=sent.append)

    def wait(within_s: float) -> int:
        if sent[-1] == signal.SIGKILL:
            return -9
        clock[0] += within_s
        raise launcher.subprocess.TimeoutExpired("mpirun", within_s)

    process.wait = wait
    made._process = process
    monkeypatch.setattr(launcher.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(launcher, "stopped_processes", lambda *_: ("10.0.0.1: process 7",) if stuck else ())
    presence: Any = SimpleNamespace(lost=lambda: None)
    assert -9 == made.stop(presence)
    assert [signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL] == sent
    assert lasts_s + 10 == pytest.approx(clock[0], abs=0.3)


def healed(paths: JobPaths, monkeypatch: pytest.MonkeyPatch, looks: list[Any], **changes: Any) -> Any:
    """A time between two attempts in which each look at the hosts finds the next of these."""
    clock, said, asked = [1000.0], list[str](), list[dict[str, Any]]()
    held = {A.address, B.address, C.address}

    class Patience:
        def sleep(self, seconds: float) -> None:
            clock[0] += seconds

        def wait_for(self, work: Any, to_its_end: bool = False) -> Any:
            return work()

    def next_hosts(shared: Path, job: Any, **given: Any) -> Placement:
        asked.append(given)
        clock[0] += 1.0
        found = looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def let_go(hosts: Any, job_id: str) -> None:
        held.difference_update(h.address for h in hosts)

    telling: Any = SimpleNamespace(say=said.append, notice=said.append, waits_to_heal=lambda _: None)
    monkeypatch.setattr(recovery.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(recovery, "next_hosts", next_hosts)
    monkeypatch.setattr(
        recovery,
        "planned_on_master",
        lambda job, paths, hosts, np, attempt: job.planned(hosts=hosts, np=np, attempt=attempt),
    )
    monkeypatch.setattr(recovery, "claim_hosts", lambda job, *_, **__: job)
    monkeypatch.setattr(recovery, "release", let_go)
    monkeypatch.setattr(recovery, "trouble_here", lambda *_: "")
    job = a_job("", "j", **{"hosts": (A, B), "whole_hosts": (A, B), "np": 2, "whole_np": 2, **changes})
    replacing: Any = SimpleNamespace(news=0)
    folder: Any = SimpleNamespace(is_silent=False)
    made = Recovery(job, paths, Patience(), replacing, telling, folder)
    return SimpleNamespace(healing=made, clock=clock, said=said, asked=asked, held=held)


SAME = Placement(hosts=(A, B), np=2, seats=(A, B))
TOO_FEW = Placement(seats=(A, B), missing={B.address: Ineligible(why="is silent")})


def test_the_next_attempt_has_its_pause_and_its_wait_told_apart(
    paths: JobPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look in vain is part of the wait; the one that succeeds is not. What is waited for is said once."""
    found = healed(paths, monkeypatch, [TOO_FEW, TOO_FEW, SAME])
    prepared = found.healing.prepare(Retry(wait_s=4.0, suspect=B.address), 2)
    assert (16.0, 1.0, "on the same hosts") == (prepared.waited_s, prepared.gate_s, prepared.choice)
    assert ["waits: too few hosts: 10.0.0.1 is silent"] == found.said
    assert [{B.address}] * 3 == [asked["suspects"] for asked in found.asked]
    assert (2, (A, B)) == (read_job(paths).attempt, read_job(paths).hosts)
    assert paths.rank_logs(2).is_dir()
    assert "10.0.0.0 slots=1\n10.0.0.1 slots=1\n" == paths.hostfile.read_text()


def test_what_is_waited_for_too_long_is_why_there_is_no_next_attempt(
    paths: JobPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After half an hour, beside the pause that was due."""
    found = healed(paths, monkeypatch, [TOO_FEW] * 1000)
    with pytest.raises(NotHealed, match=r"^for 30 minutes it waited: too few hosts: 10.0.0.1 is silent$"):
        found.healing.prepare(Retry(wait_s=100.0), 2)
    assert 1900 < found.clock[0] - 1000 < 1910


def test_hosts_that_others_replace_are_let_go(paths: JobPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as they answer: one that is silent holds nothing that could be taken back."""
    for is_silent, held in ((False, {A.address, C.address}), (True, {A.address, B.address, C.address})):
        chosen = Placement(
            hosts=(A, C), np=2, seats=(A, C), replaced={B.address: Ineligible(why="it is sick", is_silent=is_silent)}
        )
        found = healed(paths, monkeypatch, [chosen])
        found.healing.prepare(Retry(), 2)
        assert held == found.held


def test_a_host_that_another_job_has_is_done_without_at_once(paths: JobPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is the same one again, which is waited for; after the queue the job's own host is the queue's care."""
    taken = HostsTaken("taken by k", {B.address: "is taken by k"})
    found = healed(paths, monkeypatch, [taken, taken, SAME])
    prepared = found.healing.prepare(Retry(without=C.address), 2)
    assert [{C.address: "hung time and again"}, {C.address: "hung time and again", B.address: "is taken by k"}, {}] == [
        asked["without"] for asked in found.asked
    ]
    assert (6.0, 2.0, ["waits: taken by k"]) == (prepared.waited_s, prepared.gate_s, found.said)
    found = healed(paths, monkeypatch, [taken])
    with pytest.raises(HostsTaken):
        found.healing.prepare(Retry(is_turn=True), 2)


@pytest.mark.parametrize(("unchecked", "suspects"), [(False, {A.address, B.address}), (True, set[str]())])
def test_after_the_queue_all_hosts_are_looked_at(
    paths: JobPaths, monkeypatch: pytest.MonkeyPatch, unchecked: bool, suspects: set[str]
) -> None:
    """Unless the operator wants no look."""
    found = healed(paths, monkeypatch, [SAME], unchecked=unchecked)
    found.healing.prepare(Retry(is_turn=True), 2)
    assert [suspects] == [asked["suspects"] for asked in found.asked]


def test_a_shared_folder_that_cannot_be_written_is_waited_for(paths: JobPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said what is wrong with it; a look that failed by it is no wait."""
    found = healed(paths, monkeypatch, [OSError(28, "No space left"), SAME])
    troubles = iter(["it is full", "it is full", ""])
    monkeypatch.setattr(recovery, "trouble_here", lambda *_: next(troubles))
    prepared = found.healing.prepare(Retry(), 2)
    assert (10.0, 2.0) == (prepared.waited_s, prepared.gate_s)
    assert [f"waits: {paths.folder} cannot be written: it is full"] == found.said


@pytest.mark.parametrize(
    ("ends_by", "says"),
    [
        ([signal.SIGUSR1], ""),
        ([signal.SIGKILL], ""),
        ([], "j did not stop: its supervisor, process 77 on the master, hangs in the kernel"),
    ],
)
def test_a_supervisor_that_does_not_stop_its_job_is_ended(
    paths: JobPaths, monkeypatch: pytest.MonkeyPatch, ends_by: list[int], says: str
) -> None:
    """It is asked and woken first; one that cannot be ended is named."""
    supervisor: Any = SimpleNamespace(is_of_this_boot=True, pid=77, is_alive=True, is_stopped=False)
    sent: list[int] = []

    def kill(pid: int, number: int) -> None:
        sent.append(number)
        supervisor.is_alive = supervisor.is_alive and number not in ends_by

    monkeypatch.setattr(stop.os, "kill", kill)
    monkeypatch.setattr(stop, "_is_supervisor", lambda *_: True)
    monkeypatch.setattr(stop, "_WAIT_S", 0.0)
    monkeypatch.setattr(stop, "_DIES_S", 0.0)
    monkeypatch.setattr(
        stop, "read_status", lambda _: JobStatus(state=JobState.RUNNING if supervisor.is_alive else JobState.STOPPED)
    )
    asked: Any = SimpleNamespace(supervisor=supervisor)
    if says:
        with pytest.raises(ClusterError, match=says):
            stop._ask_supervisor(paths, asked)
    else:
        stop._ask_supervisor(paths, asked)
    by_force = [] if signal.SIGUSR1 in ends_by else [signal.SIGKILL]
    assert [signal.SIGUSR1, signal.SIGCONT, *by_force] == sent

"""An attempt with fewer hosts than its job leaves in good order once all can be had: a real mpirun, and no lab."""

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.errors import ClusterError
from cluster.folder_thread import FolderThread
from cluster.hang_detection.watch import RankWatch
from cluster.hosts import Host
from cluster.jobs.record import JobPaths
from cluster.jobs.state import JobState
from cluster.jobs.supervisor import scale_up
from cluster.jobs.supervisor.attempt import Attempt
from cluster.jobs.supervisor.scale_up import Growing
from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.history import AttemptRecord
from cluster.recovery.placement import Ineligible, Placement
from cluster.recovery.replacement import Replacement
from tests.cluster.flat_jobs import changed
from tests.cluster.jobs_here import HERE, a_job, wait_until

OTHER = Host(rank=1, address="10.255.255.1", slots=1)
SETTLED = 3600.0  # seconds for which it has trained


def small(**changes: Any) -> Any:
    return a_job("", "growing", **{"heal": True, "whole_np": 2, "whole_hosts": (HERE, OTHER), **changes})


WHOLE, SAME = Placement(hosts=(HERE, OTHER), np=2), Placement(hosts=(HERE,), np=1)


def test_it_is_due_once_more_hosts_can_be_had_and_the_attempt_has_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before a first step, nor right after it; a look that fails is no reason for anything."""
    answers: list[Any] = [ClusterError("no answer"), None, SAME, WHOLE]

    def could_be_had(*_: object, **asked: Any) -> Placement | None:
        assert ((HERE, OTHER), 2) == (asked["seats"], asked["np"])
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return cast(Placement | None, answer)

    monkeypatch.setattr(scale_up, "could_be_had", could_be_had)
    one = Growing(small(grow_after=0.1), JobPaths(tmp_path / "jobs/x"), Replacement("", print), print).start()
    wait_until(lambda: one.is_due(time.time() - SETTLED), "it is due")
    assert not one.is_due(None)
    assert not one.is_due(time.time() + 60)
    assert [] == answers
    one.close()


def test_a_program_that_has_saved_nothing_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would begin anew: that is said once, and its first checkpoint makes it due."""
    looks, said = list[int](), list[str]()
    monkeypatch.setattr(scale_up, "could_be_had", lambda *_, **__: looks.append(1) or WHOLE)
    paths = JobPaths(tmp_path / "jobs/x")
    one = Growing(small(program=True, grow_after=0.1), paths, Replacement("", print), said.append).start()
    wait_until(lambda: len(looks) > 2, "it has been looked")
    assert not one.is_due(time.time() - SETTLED)
    assert ["it has no checkpoint and would begin anew" in line for line in said] == [True]
    paths.checkpoints.mkdir(parents=True)
    (paths.checkpoints / "step-4").touch()
    wait_until(lambda: one.is_due(time.time() - SETTLED), "it has saved")
    one.close()


def test_one_of_two_hosts_that_came_back_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for the other; why one that answers is not used is said once."""
    away = Ineligible(why="does not answer", is_silent=True)
    left_out = Ineligible(why="failed 2 times in 7 days: lost", failed_before=True)
    looks = [Placement(hosts=(HERE,), np=1, missing={"b": left_out, "c": away})] * 2
    looks += [Placement(hosts=(HERE, OTHER), np=2, missing={"c": away})]
    monkeypatch.setattr(scale_up, "could_be_had", lambda *_, **__: looks.pop(0))
    said = list[str]()
    one = Growing(small(whole_np=3, grow_after=0.1), JobPaths(tmp_path), Replacement("", print), said.append).start()
    wait_until(lambda: one.is_due(time.time() - SETTLED), "it is due")
    expected = "b answers and is not used: failed 2 times in 7 days: lost; 'inv hosts.forgive b' takes it back"
    assert [expected] == said
    one.close()


needs_mpirun = pytest.mark.skipif(not shutil.which("mpirun"), reason="needs Open MPI")
SAVES = "mkdir -p $TMP/jobs/$ID/checkpoints; touch $TMP/jobs/$ID/checkpoints/last; exit 0"


@pytest.mark.slow
@needs_mpirun
@pytest.mark.parametrize(
    ("leaves", "changes", "expected", "says"),
    [
        ("echo Asked to stop: saved after step 4; exit 0", {}, FailureKind.WHOLE, "it has saved and left"),
        ("echo Finished in 9; exit 0", {}, FailureKind.DONE, ""),  # it was at its last step just then
        ("echo got SIGUSR1: saved, bye; exit 0", {"program": True}, FailureKind.WHOLE, "asked to save, and has left"),
        ("echo Finished in 9; exit 0", {"program": True}, FailureKind.WHOLE, "asked to save, and has left"),  # nobody knows
        (SAVES, {"program": True}, FailureKind.WHOLE, "it has saved and left"),
        ("exit 1", {"program": True}, FailureKind.WHOLE, "asked to save, and then: rank 0 on localhost exited 1"),
        ("kill -9 $$", {"program": True}, FailureKind.WHOLE, "asked to save, and then: rank 0 on localhost ended by signal 9"),
    ],
)  # fmt: skip
def test_ranks_are_asked_to_save_and_leave(
    leaves: Any, changes: Any, expected: Any, says: Any, tmp_path: Path, job_id: str
) -> None:
    """As for a stop, by SIGUSR1; however they leave, the job goes on, unless it is known to have finished."""
    attempt = asked(tmp_path, job_id, leaves, growing=True, **changes)
    outcome = attempt.run_to_end()

    assert expected is outcome.cause.kind is attempt.record.what, outcome.cause.text
    assert says in outcome.cause.text
    assert (expected is FailureKind.DONE) is (outcome.state is JobState.SUCCEEDED)


@pytest.mark.slow
@needs_mpirun
@pytest.mark.parametrize(
    ("leaves", "expected", "says"),
    [
        (
            "echo Asked to stop: saved after step 4; exit 0",
            FailureKind.NOTICE,
            "all hosts will go: bye; saved after step 4",
        ),
        (SAVES, FailureKind.NOTICE, "all hosts will go: bye; saved"),
        ("echo got SIGUSR1; exit 0", FailureKind.NOTICE, "all hosts will go: bye; asked to save"),
        ("kill -9 $$", FailureKind.NOTICE, "all hosts will go: bye; asked to save"),
        ("echo Finished in 9; exit 0", FailureKind.DONE, ""),
    ],
)
def test_a_notice_says_saved_only_of_what_was(
    leaves: Any, expected: Any, says: Any, tmp_path: Path, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the ranks' word or a checkpoint that is newer; what has finished has not left for it."""
    said = {"localhost": {"kind": "spot", "at": time.time(), "text": "bye"}}
    monkeypatch.setattr(RankWatch, "notices", lambda _: said if (tmp_path / "on").exists() else {})
    outcome = asked(tmp_path, job_id, leaves, growing=False).run_to_end()

    assert (expected, says) == (outcome.cause.kind, outcome.cause.text)
    assert (expected is FailureKind.DONE) is (outcome.state is JobState.SUCCEEDED)


@pytest.mark.slow
@needs_mpirun
def test_what_had_finished_when_it_was_stopped_has_succeeded(tmp_path: Path, job_id: str) -> None:
    """Its beats were at the last step; one step before, it was stopped."""
    for step, expected in ((8, JobState.STOPPED), (9, JobState.SUCCEEDED)):
        (tmp_path / "on").unlink(missing_ok=True)
        attempt = asked(tmp_path, job_id, "exit 0", growing=False, is_stopped=True, steps=9)
        attempt.record = dataclasses.replace(attempt.record, step=step)
        assert expected is attempt.run_to_end().state


def asked(
    tmp_path: Path, job_id: str, leaves: str, *, growing: bool, is_stopped: bool = False, **changes: Any
) -> Attempt:
    """An attempt of one rank that listens to SIGUSR1, and is asked to leave once it does."""
    script = f"TMP={tmp_path} ID={job_id}; trap '{leaves}' USR1; touch {tmp_path}/on; sleep 1000 & wait"
    mpirun = (str(shutil.which("mpirun")), "-np", "1", "--allow-run-as-root", "--tag-output", "sh", "-c", script)
    paths = JobPaths(tmp_path / "jobs" / job_id)
    paths.rank_logs(1).mkdir(parents=True, exist_ok=True)
    job = changed(small(), id=job_id, mpirun=mpirun, **changes)

    class WhenItListens:
        are_of_jobs_stop, are_of_a_shutdown, limit = is_stopped, False, ""

        def is_due(self, first_step_at: float | None) -> bool:
            return growing and (tmp_path / "on").exists()

        @property
        def ask_to_end(self) -> bool:
            return is_stopped and (tmp_path / "on").exists()

    when = cast(Any, WhenItListens())
    return Attempt(
        job, paths, when, AttemptRecord(number=1, np=1, hosts=("localhost",), began=time.time()),
        on_look=lambda *_: None, on_stop=lambda: None, on_notice=lambda _: None,
        say=print, growing=when, folder=FolderThread(),
    )  # fmt: skip


@pytest.fixture
def job_id(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"growing-{abs(hash(str(tmp_path))) % 10**8}"

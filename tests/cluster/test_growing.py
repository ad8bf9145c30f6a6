"""An attempt with fewer hosts than its job leaves in good order once all can be had: a real mpirun, and no lab."""

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.errors import ClusterError
from cluster.healing.ending import Ending
from cluster.healing.history import AttemptRecord
from cluster.healing.replacing import Replacing
from cluster.hosts import Host
from cluster.jobs import growing
from cluster.jobs.attempt import Attempt
from cluster.jobs.folder_thread import FolderThread
from cluster.jobs.growing import Growing
from cluster.jobs.record import JobPaths
from tests.cluster.jobs_here import HERE, a_job, wait_until

OTHER = Host(rank=1, address="10.255.255.1", slots=1)
SETTLED = 3600.0  # seconds for which it has trained


def small(**changes: Any) -> Any:
    return a_job("", "growing", **{"heal": True, "whole_np": 2, "whole_hosts": (HERE, OTHER), **changes})


def test_it_is_due_once_all_hosts_can_be_had_and_the_attempt_has_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before a first step, nor right after it; a look that fails is no reason for anything."""
    answers: list[Any] = [ClusterError("no answer"), False, True]

    def can_be_whole(*_: object, **asked: Any) -> bool:
        assert ((HERE, OTHER), 2) == (asked["seats"], asked["np"])
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    monkeypatch.setattr(growing, "can_be_whole", can_be_whole)
    one = Growing(small(grow_after=0.1), JobPaths(tmp_path / "jobs/x"), Replacing("", print)).start()
    wait_until(lambda: one.is_due(time.time() - SETTLED), "it is due")
    assert not one.is_due(None)
    assert not one.is_due(time.time() + 60)
    assert [] == answers
    one.close()


@pytest.mark.parametrize("changes", [{"np": 2}, {"heal": False}])
def test_a_job_that_is_whole_or_does_not_heal_is_left_alone(
    changes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is looked at."""
    monkeypatch.setattr(growing, "can_be_whole", lambda *_, **__: pytest.fail("it was looked"))
    one = Growing(small(**changes, grow_after=0.1), JobPaths(tmp_path), Replacing("", print)).start()
    assert not one.is_due(time.time() - SETTLED)
    assert not one._thread.is_alive()


class NobodyAsks:
    """No signal has come."""

    ask_to_end = are_of_jobs_stop = are_of_a_shutdown = False


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs Open MPI")
@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ("echo 'Asked to stop: saved after step 4; the same command resumes'", Ending.WHOLE),
        ("echo 'Finished in 9'", Ending.DONE),  # it was at its last step just then
    ],
)
def test_ranks_are_asked_to_save_and_leave(leaves: Any, expected: Any, tmp_path: Path, job_id: str) -> None:
    """As for a stop, by SIGUSR1."""
    script = f"trap '{leaves.replace(chr(39), chr(34))}; exit 0' USR1; touch {tmp_path}/on; sleep 1000 & wait"
    mpirun = (str(shutil.which("mpirun")), "-np", "1", "--allow-run-as-root", "--tag-output", "sh", "-c", script)
    paths = JobPaths(tmp_path / "jobs" / job_id)
    paths.rank_logs(1).mkdir(parents=True)
    job = dataclasses.replace(small(), id=job_id, mpirun=mpirun)
    record = AttemptRecord(number=1, np=1, hosts=("localhost",), began=time.time())

    class WhenItListens:
        def is_due(self, first_step_at: float | None) -> bool:
            return (tmp_path / "on").exists()

    attempt = Attempt(
        job, paths, cast(Any, NobodyAsks()), record,
        on_look=lambda *_: None, on_stop=lambda: None, on_notice=lambda _: None,
        say=print, growing=cast(Any, WhenItListens()), folder=FolderThread(),
    )  # fmt: skip
    outcome = attempt.see_through()

    assert (expected, 0) == (outcome.cause.kind, outcome.exit_code), outcome.cause.text
    assert expected is attempt.record.what


@pytest.fixture
def job_id(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"growing-{abs(hash(str(tmp_path))) % 10**8}"

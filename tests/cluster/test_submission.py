"""A job that is submitted over a connection that breaks is started once."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.client import client, on_master
from cluster.jobs.client.client import ConnectionBroken, JobsClient
from cluster.jobs.record import JobStatus, JobView
from cluster.jobs.state import JobState
from cluster.ssh.limits import Limits
from cluster.ssh.result import Result
from tests.cluster.flat_jobs import changed
from tests.cluster.jobs_here import a_job

MASTER = Host(rank=0, address="10.0.0.1", slots=1)
CLUSTER = Cluster(name="c", hosts=(MASTER,), folder=Path(), shared="/efs", project="/p")
JOB = a_job("true", "mine", hosts=(MASTER,))


class Master:
    """A master that is reached by a connection which breaks after a submission, done or not."""

    def __init__(self, breaks: int, is_done: bool, refuses: str = "") -> None:
        self.breaks, self.is_done, self.refuses = breaks, is_done, refuses
        self.submitted = 0
        self.limit_s: float | None = None

    def run(self, hosts: Any, command: str, limits: Limits, **_: Any) -> dict[Host, Result]:
        """One verb."""
        self.limit_s = limits.total_s
        verb = next(word for word in ("submit", "show") if f" {word}" in command)
        return {MASTER: self.submit() if verb == "submit" else self.show()}

    def submit(self) -> Result:
        """Start it, or break."""
        self.submitted += 1
        if self.breaks:
            self.breaks -= 1
            return Result(host=MASTER, exit_code=None, seconds=0.0)
        if self.refuses:
            self.is_done = True  # the first one was still on its way
            return Result(host=MASTER, exit_code=2, stderr=self.refuses.encode(), seconds=0.0)
        return Result(host=MASTER, exit_code=0, stdout=b'{"folder": "/efs/jobs/mine"}', seconds=0.0)

    def show(self) -> Result:
        """The job on record, if it is."""
        if not self.is_done:
            return Result(host=MASTER, exit_code=2, stderr=b"no job 'mine'", seconds=0.0)
        view = JobView(
            job=JOB, status=JobStatus(state=JobState.RUNNING), folder="/efs/jobs/mine", owner="me", age_s=0.0
        )
        return Result(host=MASTER, exit_code=0, stdout=json.dumps(dataclasses.asdict(view)).encode(), seconds=0.0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pauses; an answer is what was printed."""
    monkeypatch.setattr(client, "_SUBMIT_AGAIN_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(on_master, "answer_of", lambda result: json.loads(result.stdout))


@pytest.mark.parametrize(
    ("master", "submitted"),
    [
        (Master(0, False), 1),
        (Master(1, True), 1),
        (Master(1, False), 2),
        (Master(3, False), 4),
        (Master(1, False, refuses="mine is running already"), 2),
    ],
)
def test_it_is_sent_again_unless_the_master_has_it(master: Master, submitted: int) -> None:
    """Also where the first one was on its way while it was asked for."""
    assert "/efs/jobs/mine" == JobsClient(master, CLUSTER).submit(JOB)
    assert submitted == master.submitted


def test_a_submission_that_copies_checkpoints_may_take_hours() -> None:
    """They are of any size, and a file server of any speed; cut off, it would begin again from the first byte."""
    master = Master(0, False)
    JobsClient(master, CLUSTER).submit(JOB)
    usual_s = master.limit_s
    JobsClient(master, CLUSTER).submit(changed(JOB, begins_from="older"))
    assert usual_s is not None and master.limit_s is not None
    assert usual_s < 600 < 3600 <= master.limit_s


def test_a_refusal_is_a_refusal() -> None:
    """It is not asked twice."""
    master = Master(0, False, refuses="hosts taken by other")
    with pytest.raises(ConfigError, match="hosts taken by other"):
        JobsClient(master, CLUSTER).submit(JOB)
    assert 1 == master.submitted


def test_a_master_that_stays_away_is_said() -> None:
    """After a few tries."""
    with pytest.raises(ConnectionBroken, match=r"the master \(10\.0\.0\.1\)"):
        JobsClient(Master(9, False), CLUSTER).submit(JOB)

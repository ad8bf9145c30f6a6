"""What stands between a plan and its job: on this machine, where a process of another's job runs."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest
from invoke.exceptions import Exit

from cluster.errors import ConfigError
from cluster.inventory import ROOT, Cluster
from cluster.jobs.claim import NAME_VARIABLE
from cluster.jobs.client.client import JobListing
from cluster.jobs.onhost import claim as onhost
from cluster.jobs.program import Program
from cluster.jobs.record import Job
from cluster.jobs.spec import JobSpec
from dlami.tasks.start_options import StartOptions
from dlami.tasks.starting import start
from tests.cluster.jobs_here import HERE, a_job

TRAINER = Program(trainer="trainer.resnet50", words=("--synthetic",))
PROGRAM = Program(words=("true",))
each = pytest.mark.parametrize("what", [TRAINER, PROGRAM], ids=["trainer", "program"])


class Master:
    """Knows of no job, and takes each."""

    def __init__(self) -> None:
        self.plans, self.submitted = 0, list[Job]()

    def plan(self, spec: JobSpec, **_: Any) -> Job:
        self.plans += 1
        return dataclasses.replace(a_job("true", "mine"), spec=spec)

    def list(self, **_: Any) -> JobListing:
        return JobListing(jobs=(), damaged=(), damaged_ids=(), left_out={})

    def submit(self, job: Job) -> str:
        self.submitted.append(job)
        return f"/jobs/{job.id}"

    def logs(self, which: str, *, follow: bool) -> int:
        assert ("mine", True) == (which, follow)
        return 7


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A job whose record is in another's folder has this machine."""
    name = f"dlami-starting-{os.getpid()}"
    monkeypatch.setenv(NAME_VARIABLE, name)
    script = (
        "import sys; from cluster.jobs.onhost import claim; claim.take(claim.Claim('theirs', 1, '', 0.0), sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", script, name], cwd=ROOT, check=True)
    yield "theirs"
    for holder in onhost.holders(name):
        os.kill(holder.pid, signal.SIGKILL)


def started(cluster: Cluster, master: Master, what: Program, **options: Any) -> str:
    asked = JobSpec(name="x", program=what, hosts=(HERE,))
    return start(cluster, cast(Any, master), asked, None, StartOptions(**options))


@each
def test_hosts_that_another_job_has_claimed_are_refused(here: Cluster, others: str, what: Any) -> None:
    """Before anything is planned, sent, built or submitted; with whose they are."""
    master = Master()
    with pytest.raises(
        ConfigError, match=rf"hosts taken by {others} \(user .*\): localhost; wait for them with --queue"
    ):
        started(here, master, what)

    assert (0, []) == (master.plans, master.submitted)


@each
def test_who_waits_in_the_queue_is_not_refused_and_has_no_hosts_yet(here: Cluster, others: str, what: Any) -> None:
    """It takes those that are free in its turn; detached, its id is what comes of it."""
    master = Master()

    assert "mine" == started(here, master, what, queue=True, detach=True, unchecked=True)
    assert [((), (HERE,), True)] == [(job.hosts, job.wanted, job.waits_for_hosts) for job in master.submitted]


@each
def test_a_dry_run_shows_the_command_line_and_submits_nothing(
    here: Cluster, others: str, what: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does it look who has the hosts."""
    master = Master()

    assert "" == started(here, master, what, dry_run=True)
    assert ("sh \\\n  -c true\n", []) == (capsys.readouterr().out, master.submitted)


def test_who_is_not_detached_ends_as_the_job_does(here: Cluster) -> None:
    """Its log is followed, and the exit code is the job's."""
    with pytest.raises(Exit) as ended:
        started(here, Master(), TRAINER, queue=True)

    assert 7 == ended.value.code

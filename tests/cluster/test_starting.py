"""What stands between a plan and its job: on this machine, where a process of another's job runs."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from invoke.exceptions import Exit

from cluster.commandline.starting import StartOptions, start
from cluster.errors import ConfigError
from cluster.inventory import Cluster
from cluster.jobs.client import Listing
from cluster.jobs.program import Program, Trainer
from cluster.jobs.record import Job
from cluster.jobs.training import Training
from tests.cluster.jobs_here import HERE, a_job
from tests.processes import begun, wait_until_it_is

TRAINER = Trainer(module="trainer.resnet50", arguments=("--synthetic",))
PROGRAM = Program(words=("true",))
each = pytest.mark.parametrize("what", [TRAINER, PROGRAM], ids=["trainer", "program"])


class Master:
    """Knows of no job, and takes each."""

    def __init__(self) -> None:
        self.plans, self.submitted = 0, list[Job]()

    def plan(self, *_: Any, **__: Any) -> Job:
        self.plans += 1
        return a_job("true", "mine")

    def list(self) -> Listing:
        return Listing(jobs=(), damaged=(), damaged_ids=(), left_out={})

    def submit(self, job: Job) -> str:
        self.submitted.append(job)
        return f"/jobs/{job.id}"

    def logs(self, which: str, *, follow: bool) -> int:
        assert ("mine", True) == (which, follow)
        return 7


@pytest.fixture
def others(tmp_path: Path) -> Iterator[str]:
    """A job whose record is on another's folder, and runs here; the first of all names."""
    record = tmp_path / "others" / f"0-{os.getpid()}" / "state.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"state": "running"}')
    tags = {"DLAMI_JOB": record.parent.name, "DLAMI_JOB_FOLDER": str(record.parent)}
    environment = {k: v for k, v in os.environ.items() if k != "DLAMI_RUN"} | tags
    with begun(["sleep", "4000"], env=environment) as rank:
        wait_until_it_is("sleep", rank.pid)
        yield record.parent.name


def started(cluster: Cluster, master: Master, what: Trainer | Program, **options: Any) -> str:
    asked = Training(name="x", what=what, hosts=(HERE,))
    return start(cluster, cast(Any, master), asked, None, StartOptions(**options))


@each
def test_hosts_on_which_another_s_processes_run_are_refused(here: Cluster, others: str, what: Any) -> None:
    """Before anything is sent, built or submitted; with whose they are."""
    master = Master()
    with pytest.raises(ConfigError, match=rf"hosts taken by {others}: its processes run on localhost; wait for it"):
        started(here, master, what)

    assert (1, []) == (master.plans, master.submitted)


@each
def test_who_waits_in_the_queue_is_not_refused_and_has_no_hosts_yet(here: Cluster, others: str, what: Any) -> None:
    """It takes those that are free in its turn; detached, its id is what comes of it."""
    master = Master()

    assert "mine" == started(here, master, what, queue=True, detach=True, unchecked=True)
    assert [((), (HERE,), True)] == [(job.hosts, job.wanted, job.unchecked) for job in master.submitted]


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

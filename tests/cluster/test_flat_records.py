"""Records as versions before `spec` and `plan` wrote them: listed, followed, stopped and resumed all the same."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.client import job_table, show
from cluster.jobs.client.resume import next_attempt
from cluster.jobs.flat_record import as_flat
from cluster.jobs.master import follow
from cluster.jobs.master.stop import stop
from cluster.jobs.occupancy import queue
from cluster.jobs.process import this_process
from cluster.jobs.program import Program
from cluster.jobs.record import JobPaths, JobStatus, read_job, write_job
from cluster.jobs.record_lease import take_lease
from cluster.jobs.records import find, read_all, view, view_all
from cluster.jobs.state import JobState
from cluster.jobs.status import write_status
from cluster.packages.interpreter import EnvironmentKind, EnvironmentRequest

RECORDED = Path(__file__).parent / "flat_records"
TRAINER, QUEUED = RECORDED / "flat-trainer.json", RECORDED / "flat-program-queued.json"
HOSTS = tuple(Host(rank=r, address=f"10.0.1.{10 + r}", slots=8) for r in range(2))
CLUSTER = Cluster(name="c", hosts=HOSTS, folder=Path("/c"), shared="/shared", project="/opt/dlami-cluster")


def recorded(tmp_path: Path, file: Path, state: JobState) -> JobPaths:
    """A job's folder with this record."""
    raw = json.loads(file.read_text())
    paths = JobPaths(tmp_path / "jobs" / raw["id"])
    paths.logs(raw["attempt"]).mkdir(parents=True)
    paths.job.write_text(file.read_text())
    paths.console(raw["attempt"]).write_text("[1,0]<stdout>: step 7\n")
    take_lease(paths, raw["attempt"], dataclasses.replace(this_process(), started=1))
    write_status(paths, JobStatus(state=state, attempt=raw["attempt"]))
    return paths


@pytest.mark.parametrize("file", [TRAINER, QUEUED], ids=lambda f: f.stem)
def test_a_flat_record_says_in_json_what_it_said(file: Path) -> None:
    """Every key with its value; a queued job's hosts are those that it may have, as before."""
    raw: dict[str, Any] = json.loads(file.read_text())
    paths = JobPaths(Path("/x") / raw["id"])
    from cluster.jobs.flat_record import from_flat
    from cluster.jobs.record import Job
    from cluster.typed import from_json

    job = from_json(Job, from_flat(raw))
    assert paths.folder.name == job.id
    assert raw == json.loads(json.dumps({name: as_flat(job)[name] for name in raw}))


def test_a_trainer_s_flat_record_is_listed_followed_and_resumed(tmp_path: Path) -> None:
    """On its whole hosts, as its own trainer with its interpreter, profile and terms."""
    paths = recorded(tmp_path, TRAINER, JobState.FAILED)
    views, damaged = view_all(paths.folder.parent, read_all(paths.folder.parent))
    assert (1, ()) == (len(views), damaged)
    assert paths.folder.name in job_table.table(views, everything=True)
    assert "--recipe poly90" in show.one(view(find(paths.folder.parent, "last")))
    assert ["[1,0]<stdout>: step 7\n"] == list(follow.lines(paths, follow=True))

    spec = next_attempt(view(paths), CLUSTER, None, None)
    words = ("--data-dir", "/shared/data/imagenet", "--recipe", "poly90")
    python = "/opt/pytorch/bin/python"
    assert Program(trainer="trainer.resnet50_torch", words=words, python=python) == spec.program
    assert (HOSTS, 16, "ena", {"LR": "1"}) == (spec.hosts, spec.np, spec.profile, spec.environment)
    assert (True, 8, 3, 900.0) == (spec.heal, spec.min_np, spec.attempts_per_hour, spec.hang_after)


def test_a_queued_program_s_flat_record_waits_is_stopped_and_resumed(tmp_path: Path) -> None:
    """In its place of the queue, with its code, packages and seats."""
    paths = recorded(tmp_path, QUEUED, JobState.QUEUED)
    job = read_job(paths)
    assert (True, 3) == (job.waits_for_hosts, job.ticket)
    assert [(job.id, (1, 1), 2)] == [
        (w.job, tuple(h.slots for h in w.hosts), w.np) for w in queue([(job, JobStatus(state=JobState.QUEUED))])
    ]
    assert JobState.STOPPED is stop(paths).state

    spec = next_attempt(view(paths), CLUSTER, None, None)
    assert Program(words=("python", "train.py", "--lr", "0.1"), per="node") == spec.program
    assert ("ab" * 32, "src", [1, 1]) == (spec.code, spec.below, [h.slots for h in spec.hosts])
    assert (
        EnvironmentRequest(kind=EnvironmentKind.REQUIREMENTS, what="requirements.txt", id="0123456789abcdef")
        == spec.packages
    )


def test_a_record_that_is_written_again_has_its_request_whole(tmp_path: Path) -> None:
    """In `spec`, apart from the plan; others read neither the environment nor who is notified."""
    paths = recorded(tmp_path, TRAINER, JobState.FAILED)
    job = read_job(paths)
    write_job(paths, job)
    kept, shown = (json.loads(p.read_text()) for p in (paths.job, paths.public))

    assert job == read_job(paths)
    assert {"id", "created", "sequence", "ticket", "spec", "plan"} == set(kept)
    assert ({"LR": "1"}, {}) == (kept["spec"]["environment"], shown["spec"]["environment"])
    assert ([], "") == (shown["plan"]["mpirun"], shown["plan"]["notify"])
    assert 0o600 == paths.job.stat().st_mode & 0o777

"""Records of jobs: read whole or named, by old and new versions; looked up; shown. Pure."""

import contextlib
import dataclasses
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.errors import ClusterError, ConfigError
from cluster.files import write_json
from cluster.folder_thread import FolderThread
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.jobs import process
from cluster.jobs.client import job_table, show
from cluster.jobs.client.client import JobListing, JobsClient
from cluster.jobs.client.resume import next_attempt
from cluster.jobs.ended_jobs import EndedJobs
from cluster.jobs.lock import locked, make_folder
from cluster.jobs.master.follow import ending, lines, unseen_checkpoints
from cluster.jobs.master.submit import _refuse_taken
from cluster.jobs.process import ProcessId, boot_id, this_process
from cluster.jobs.record import (
    DamagedRecord,
    JobPaths,
    JobStatus,
    JobView,
    TrainingProgress,
    check_id,
    check_name,
    read_job,
)
from cluster.jobs.record_lease import EXPIRES_S, read_lease, take_lease, unrenewed_s
from cluster.jobs.records import find, next_sequence, read_all, read_going, remember_last, view, view_all
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status, write_status
from cluster.jobs.supervisor.lease_holder import LeaseHolder
from cluster.kill.kill import KnownJobs
from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.history import AttemptRecord, History
from cluster.ssh.fanout import Executor
from cluster.typed import from_json
from tests.cluster.jobs_here import HERE, a_job, wait_until
from tests.cluster.records import on_record


@pytest.mark.parametrize(
    ("state", "is_going", "is_over", "holds_hosts", "may_resume"),
    [
        ("queued", True, False, True, False),
        ("starting", True, False, True, False),
        ("running", True, False, True, False),
        ("stopping", True, False, True, False),
        ("healing", True, False, True, False),
        ("succeeded", False, True, False, True),
        ("failed", False, True, False, True),
        ("stopped", False, True, False, True),
        ("lost", False, False, True, True),
    ],
)
def test_what_a_state_allows(state: Any, is_going: Any, is_over: Any, holds_hosts: Any, may_resume: Any) -> None:
    """One table for all who ask; kill leaves alone exactly what goes on."""
    one = JobState(state)

    assert (is_going, is_over, holds_hosts, may_resume) == (one.is_going, one.is_over, one.holds_hosts, one.may_resume)
    seen = JobView(job=a_job("", "x"), status=JobStatus(state=one), folder="", owner="", age_s=0)
    assert is_going == (KnownJobs.of(JobListing(jobs=(seen,), damaged=(), damaged_ids=(), left_out={})).going == ("x",))


def test_every_state_is_in_the_table() -> None:
    """A new one is thought about."""
    assert 9 == len(JobState)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    """What a newer version added is passed over; what an older one did not know has its default."""
    paths = on_record(tmp_path, "a", steps=90)
    whole, status = read_job(paths), read_status(paths)
    for path in (paths.job, paths.status):
        raw = json.loads(path.read_text())
        write_json(path, {**raw, "of_the_future": {"x": [1]}})
    assert (whole, status) == (read_job(paths), read_status(paths))

    raw = json.loads(paths.job.read_text())
    for of, name in ((raw["plan"], "attempt"), (raw["plan"], "steps"), (raw, "sequence"), (raw, "of_the_future")):
        del of[name]
    write_json(paths.job, raw)
    assert (1, 0, None) == (read_job(paths).attempt, read_job(paths).sequence, read_job(paths).plan.steps)


def test_the_environment_is_read_by_its_user_alone(tmp_path: Path) -> None:
    """The public record has neither it nor the command line that holds it."""
    paths = on_record(tmp_path, "a", environment={"COLOUR": "blue"})

    assert 0o600 == paths.job.stat().st_mode & 0o777
    assert 0o644 == paths.public.stat().st_mode & 0o777
    assert "blue" not in paths.public.read_text()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"state": 3}', b"\xff\xfe", b"[" * 100_000, b'{"state": "x"}'])
def test_one_damaged_record_is_named_and_hides_no_other(tmp_path: Path, damage: Any) -> None:
    """Listed apart, with its file; others are found, also as `last`."""
    on_record(tmp_path, "good", sequence=1)
    bad = on_record(tmp_path, "bad", sequence=2)
    bad.status.write_bytes(damage)
    (tmp_path / "no-job").mkdir()
    records = read_all(tmp_path)

    assert ["good"] == [job.id for job, _ in records.jobs]
    assert [bad.status] == [e.path for e in records.damaged]
    assert str(bad.status) in str(records.damaged[0])
    assert "good" == find(tmp_path, "last").folder.name
    with pytest.raises(DamagedRecord, match=r"state\.json is damaged"):
        view(find(tmp_path, "bad"))


def test_last_is_what_the_master_counted_last(tmp_path: Path) -> None:
    """Not what an operator's clock dated last."""
    on_record(tmp_path, "20990101-000000-x-aa", sequence=1)
    on_record(tmp_path, "20261122-000000-x-bb", sequence=2)

    assert "20261122-000000-x-bb" == find(tmp_path, "last").folder.name
    assert 3 == next_sequence(read_all(tmp_path))
    assert ["20990101-000000-x-aa", "20261122-000000-x-bb"] == [j.id for j, _ in read_all(tmp_path).jobs]


def test_last_is_what_its_user_started_last(tmp_path: Path) -> None:
    """Resumed or submitted; a removed one, or another user's record of it, is not believed."""
    for sequence, name in enumerate(("a", "b", "c"), 1):
        on_record(tmp_path, name, sequence=sequence)
    remember_last(tmp_path, "a")
    assert "a" == find(tmp_path, "last").folder.name
    shutil.rmtree(tmp_path / "a")
    assert "c" == find(tmp_path, "last").folder.name
    remember_last(tmp_path, "../b")
    assert "c" == find(tmp_path, "last").folder.name


def test_a_job_that_has_ended_is_not_read_again_until_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is not even opened; its number still counts, and any change of its folder is seen."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jobs = tmp_path / "jobs"
    for sequence, name in enumerate(("ended", "new", "goes"), 1):
        on_record(jobs, name, JobState.RUNNING, sequence=sequence)
    status = JobStatus(
        state=JobState.SUCCEEDED, attempt=1, started="2026-11-22T10:00:00+00:00", ended="2026-11-22T10:00:05+00:00"
    )
    for name in ("ended", "new"):
        write_status(JobPaths(jobs / name), status)
    os.utime(jobs / "ended", (time.time() - 3600, time.time() - 3600))
    first = read_going(jobs)
    for name in ("ended", "new"):  # in place, which leaves the folder's time as it is
        with JobPaths(jobs / name).status.open("r+") as file:
            file.write("damage")
    again = read_going(jobs)

    assert [{"ended": 1, "new": 2}, {"ended": 1}] == [first.over, again.over]
    assert [["goes"]] * 2 == [[job.id for job, _ in records.jobs] for records in (first, again)]
    assert ["new"] == [e.path.parent.name for e in again.damaged], "it had changed too recently to be believed"
    assert 4 == next_sequence(again)
    write_status(JobPaths(jobs / "ended"), JobStatus(state=JobState.QUEUED, attempt=2))
    assert ["ended", "goes"] == [job.id for job, _ in read_going(jobs).jobs]


@pytest.mark.parametrize("damage", ["", "[]", '{"ended": [1]}', '{"ended": ["x", "y", "z"]}', "[" * 99_999])
def test_a_damaged_cache_of_ended_jobs_is_made_anew(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hides no job."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    on_record(tmp_path / "jobs", "goes", JobState.RUNNING, sequence=1)
    EndedJobs(tmp_path / "jobs")._file.write_text(damage)
    assert ["goes"] == [job.id for job, _ in read_going(tmp_path / "jobs").jobs]


@pytest.mark.parametrize(
    ("which", "expected"),
    [("nosuch", "no job 'nosuch' in"), ("x-", "'x-' could be any of x-1, x-12"), ("last", "no job 'last' in")],
)
def test_what_cannot_be_found_is_said(tmp_path: Path, which: Any, expected: Any) -> None:
    """With the folder, or with what it could be; a whole id is not a part of a longer one."""
    if which != "last":
        on_record(tmp_path, "x-1")
        on_record(tmp_path, "x-12")
        assert "x-1" == find(tmp_path, "x-1").folder.name
    with pytest.raises(ConfigError, match=expected):
        find(tmp_path, which)


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "-a", "a" * 32, "a/b"])
def test_names_that_are_no_folder_s(name: Any) -> None:
    """Refused before anything is made."""
    with pytest.raises(ConfigError):
        check_name(name)
    with pytest.raises(ConfigError):
        check_id(f"/{name}")


def renewed_ago(paths: JobPaths, age_s: float) -> None:
    """The job's lease, dated so by its folder."""
    at = time.time() - age_s
    os.utime(paths.lease, (at, at))


def test_a_lease_expires_where_its_holder_cannot_be_seen(tmp_path: Path) -> Any:
    """On this machine the process itself is looked at; of another boot or host only the time is known."""
    here, paths = this_process(), on_record(tmp_path, "a")
    gone = dataclasses.replace(here, started=here.started - 1)
    away = dataclasses.replace(here, host="elsewhere")

    def may_live(holder: ProcessId, age_s: float) -> bool:
        lease = take_lease(paths, 1, holder)
        renewed_ago(paths, age_s)
        return lease.may_live(paths)

    assert (True, True) == (may_live(here, 0), may_live(here, 9 * EXPIRES_S))
    assert (False, False) == (may_live(gone, 0), may_live(gone, 9 * EXPIRES_S))
    assert (True, False) == (may_live(away, 0), may_live(away, EXPIRES_S + 1))
    assert take_lease(paths, 3, here) == read_lease(paths)
    assert 3 == json.loads(paths.lease.read_text())["attempt"], "trainers read this field"


@pytest.mark.parametrize("ahead_s", [-3600.0, -40.0, 40.0, 3600.0])
def test_a_lease_is_as_old_as_its_folder_says_whatever_its_holder_s_clock(tmp_path: Path, ahead_s: float) -> Any:
    """The clocks of two machines are minutes apart: a job that goes on is not lost for it, nor one that is lost alive."""
    paths, away = on_record(tmp_path, "a"), dataclasses.replace(this_process(), host="elsewhere")
    write_status(paths, JobStatus(state=JobState.RUNNING, supervisor=away))
    write_json(
        paths.lease, {"attempt": 1, "holder": dataclasses.asdict(away), "renewed": round(time.time() + ahead_s, 1)}
    )
    assert JobState.RUNNING is read_status(paths).state
    renewed_ago(paths, EXPIRES_S + 1)
    assert JobState.LOST is read_status(paths).state


def test_a_folder_that_cannot_be_written_is_no_proof_that_a_holder_is_gone(tmp_path: Path) -> Any:
    """Its clock cannot be asked."""
    jobs, away = tmp_path / "jobs", dataclasses.replace(this_process(), host="elsewhere")
    paths = on_record(jobs, "a")
    lease = take_lease(paths, 1, away)
    renewed_ago(paths, EXPIRES_S + 1)
    assert not lease.may_live(paths)
    jobs.rename(tmp_path / "elsewhere")
    jobs.symlink_to("elsewhere")  # behind a link nothing is made
    assert lease.may_live(paths)


def test_a_lease_that_cannot_be_written_anew_is_dated_anew(tmp_path: Path) -> Any:
    """The disk is full: who looks from another machine sees all the same that its holder lives."""
    paths, folder = on_record(tmp_path, "a"), FolderThread()
    holder = LeaseHolder(paths, 1, folder)
    take_lease(paths, 1, holder.process)
    renewed_ago(paths, EXPIRES_S + 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # no byte can be written to any file
    try:
        holder.renew_if_due()
        folder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    age_s = unrenewed_s(paths)
    assert age_s is not None
    assert age_s < EXPIRES_S


def test_a_holder_of_an_earlier_boot_is_gone_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A master that comes back goes on without waiting; a namesake that renews its lease since then is another machine."""
    paths, earlier = on_record(tmp_path, "a"), dataclasses.replace(this_process(), boot="an-earlier-one")
    booted = time.time() - 10
    monkeypatch.setattr(process, "booted", lambda: booted)

    def may_live(holder: ProcessId, age_s: float) -> bool:
        lease = take_lease(paths, 1, holder)
        renewed_ago(paths, age_s)
        return lease.may_live(paths)

    assert (False, True) == (may_live(earlier, 15), may_live(earlier, 0))
    assert not may_live(earlier, EXPIRES_S + 1)
    away = dataclasses.replace(earlier, host="elsewhere")
    assert may_live(away, 15), "a successor by another name waits for the lease to expire"


def test_of_lost_jobs_the_master_says_whose_supervisor_may_live(tmp_path: Path) -> None:
    """On another machine it may only not reach the folder; one that was here is seen to be gone. 'inv kill' leaves the
    first one's ranks alone.
    """
    here = this_process()
    supervisors = {
        "gone": dataclasses.replace(here, started=here.started - 1),
        "rebooted": dataclasses.replace(here, boot="an-earlier-one"),
        "away": dataclasses.replace(here, host="elsewhere"),
        "none": None,
    }
    for job, supervisor in supervisors.items():
        paths = on_record(tmp_path / "jobs", job)
        write_status(paths, JobStatus(state=JobState.RUNNING, supervisor=supervisor))
        if supervisor:
            take_lease(paths, 1, supervisor)
            renewed_ago(paths, time.time() - process.booted() + 60)
    (tmp_path / "hosts").write_text("localhost slots=1\n")
    (tmp_path / "cluster.toml").write_text(f'shared = "{tmp_path}"\n')
    cluster = load_cluster(str(tmp_path))
    with Executor(cluster) as reach:
        listing = JobsClient(reach, cluster).list()

    assert {JobState.LOST} == {one.state for one in listing.jobs}
    known = KnownJobs.of(listing)
    assert ((), ("away",)) == (known.going, known.lost)
    assert {"gone", "rebooted", "none"} == {*known.over}


@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING, JobState.STOPPING])
def test_a_job_without_its_supervisor_is_lost(tmp_path: Path, state: Any) -> None:
    """Whichever way it went: its process gone, or never there, or silent on a machine that is not ours."""
    paths = on_record(tmp_path, "a", state)
    assert JobState.LOST is read_status(paths).state
    alive = this_process()
    for supervisor, expected in (
        (alive, state),
        (dataclasses.replace(alive, started=alive.started - 1), JobState.LOST),
        (dataclasses.replace(alive, boot="an-earlier-one"), JobState.LOST),
    ):
        write_status(paths, JobStatus(state=state, supervisor=supervisor))
        assert expected is read_status(paths).state
    take_lease(paths, 1, dataclasses.replace(alive, boot="an-earlier-one"))
    assert state is read_status(paths).state, "it was renewed just now"
    assert (
        "'inv jobs.resume' does so and goes on" in read_status(JobPaths(on_record(tmp_path, "b", state).folder)).cause
    )


def test_the_lock_is_waited_for_and_its_wait_ends(tmp_path: Path) -> None:
    """With what to do; and it can be had again."""
    make_folder(tmp_path)
    with (
        locked(tmp_path),
        pytest.raises(
            ClusterError, match=f"process {os.getpid()} on .*, another submission or stop of yours, has held"
        ),
        locked(tmp_path, 0.1),
    ):
        pass
    with locked(tmp_path, 0.1):
        pass
    assert 0o1777 == tmp_path.stat().st_mode & 0o7777


def test_progress_is_read_from_the_last_lines(tmp_path: Path) -> None:
    """Step, speed, and the time left at the pace of the last lines; what is cut off is passed over."""
    paths = on_record(tmp_path, "a", steps=101)
    rows = [{"kind": "train", "step": s, "time": 1000.0 + s, "images_per_s": 80.04} for s in range(0, 60, 10)]
    paths.metrics.write_text("".join(json.dumps(r) + "\n" for r in rows) + '{"kind": "train", "st')

    assert TrainingProgress(step=51, time=1050.0, images_per_s=80.04, left_s=50.0) == view(paths).progress
    paths.metrics.write_text('{"kind": "train", "step": 1, "time": NaN}\n[]\n{"kind": "eval"}\n')
    assert None is view(paths).progress


@pytest.mark.parametrize("set_by_s", [-9 * 3600.0, 9 * 3600.0])
def test_a_clock_that_was_set_makes_no_silence(tmp_path: Path, set_by_s: float) -> None:
    """The age of a job and of its last step are told by the clock that its supervisor dates them by."""
    paths = on_record(tmp_path, "a", program=True)
    write_status(paths, JobStatus(state=JobState.RUNNING, supervisor=this_process()))
    offset = time.time() - time.monotonic() - set_by_s  # the wall clock was set by so much since
    began = time.monotonic() + offset - 100
    record = AttemptRecord(number=1, np=1, hosts=("a",), began=began, step=7, step_at=began + 90)
    write_json(paths.attempts, dataclasses.asdict(History(attempts=(record,), boot=boot_id(), offset_s=offset)))
    seen = view(paths)
    assert seen.progress and seen.progress.quiet_s < 3600, "ten seconds, by any clock"
    assert 100 <= seen.age_s < 3600
    assert seen.account and 99 <= seen.account.total.wall_s < 3600


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
def test_a_job_is_one_line_of_the_terminal(columns: int) -> None:
    """What there is no room for is left out, and an end that does not fit is cut; an id never is."""
    name = "20261128-125721-resnet50-a1b2"
    progress = TrainingProgress(
        step=12500, time=1000.0, images_per_s=2480.04, left_s=3725.0, epoch=1.25, score=71.5, score_name="top1"
    )
    hosts = tuple(Host(rank=n, address=f"10.231.{n}.17", slots=8) for n in range(12))
    status = JobStatus(
        state=JobState.HEALING, started="2026-11-22T10:00:00+00:00", cause="10.231.0.2\nhung time and again"
    )
    job = a_job("", name, steps=112600, hosts=hosts)
    one = JobView(
        job=job, status=status, folder="/f", owner="somebody", age_s=4e5, progress=progress, usd=1234.5, began=1.6e9
    )
    titles, row = job_table.table([one], everything=True, columns=columns).splitlines()

    assert row.startswith(f"{name}  healing")
    assert len(titles) <= columns and len(row) == columns and row.endswith("…")
    assert ("began" in titles) == (columns >= 100) and ("left" in titles) == (columns >= 140)
    whole = job_table.table([one], everything=True)
    assert "hung time and again" in whole and "somebody" in whole and 2 == len(whole.splitlines())


def test_a_column_that_nobody_has_something_for_is_left_out() -> None:
    """A program without numbers has no step, and a lab costs nothing."""
    status = JobStatus(state=JobState.SUCCEEDED, started="2026-11-22T10:00:00+00:00")
    one = JobView(job=a_job("", "x"), status=status, folder="/f", owner="me", age_s=40, began=1.6e9)

    titles, row = job_table.table([one], everything=True, columns=100).splitlines()
    assert ["job", "state", "attempt", "ranks", "began", "duration", "owner", "hosts"] == titles.split()
    assert ["x", "succeeded", "1", "1", "2020-09-13", "40s", "me", "localhost"] == row.split()


@pytest.mark.parametrize(
    ("what", "checkpoint", "expected"),
    [
        (FailureKind.RANK_SIGNAL, "/j/step-3", "again from the newest checkpoint: inv jobs.resume x"),
        (FailureKind.RANK_SIGNAL, "", "it left no checkpoint; from its beginning: inv jobs.resume x"),
        (
            FailureKind.PROGRAM,
            "/j/step-3",
            "with mended code from its newest checkpoint: the same command with --resume x",
        ),
        (FailureKind.PROGRAM, "", "failed"),
    ],
)
def test_how_to_go_on_is_said_where_it_helps(what: FailureKind, checkpoint: str, expected: str) -> None:
    """The same code would fail again after an error of its own; without a checkpoint there is none to go on from."""
    said = ending(JobStatus(state=JobState.FAILED, ended_by=what), "x", checkpoint)
    assert said.endswith(expected)
    assert ("checkpoint" in said) is bool(checkpoint or what is FailureKind.RANK_SIGNAL)


def test_checkpoints_beside_the_code_are_said_not_to_be_looked_at(tmp_path: Path) -> None:
    """Unless the job has some where they belong."""
    paths = on_record(tmp_path, "a", program=True)
    assert "" == unseen_checkpoints(paths)
    (paths.code / "checkpoints").mkdir(parents=True)
    assert "" == unseen_checkpoints(paths)
    (paths.code / "checkpoints" / "last").touch()
    assert "$DLAMI_JOB_DIR/checkpoints" in unseen_checkpoints(paths)
    paths.checkpoints.mkdir()
    (paths.checkpoints / "last").touch()
    assert "" == unseen_checkpoints(paths)


def test_jobs_list_shows_age_step_speed_and_time_left() -> None:
    """And says when no step has come for long."""
    progress = TrainingProgress(
        step=50, time=1000.0, images_per_s=80.04, left_s=3725.0, epoch=1.25, score=71.52, score_name="top1"
    )
    status = JobStatus(state=JobState.RUNNING, started="2026-11-22T10:00:00+00:00")
    one = JobView(
        job=a_job("", "x", steps=101),
        status=status,
        folder="/f",
        owner="me",
        age_s=4000,
        progress=progress,
        usd=1234.5,
        began=1.6e9,
    )

    titles, row = job_table.table([one], everything=False).splitlines()
    assert [
        "job",
        "state",
        "attempt",
        "ranks",
        "began",
        "duration",
        "step",
        "epoch",
        "images/s",
        "left",
        "score",
        "USD",
        "owner",
        "hosts",
    ] == titles.split()
    assert [
        "x",
        "running",
        "1",
        "1",
        "2020-09-13",
        "1h06m",
        "50/101",
        "1.2",
        "80.0",
        "1h02m",
        "top1",
        "71.5%",
        "1,234.50",
        "me",
        "localhost",
    ] == row.split()
    quiet = dataclasses.replace(one, progress=dataclasses.replace(progress, quiet_s=300.0))
    assert "no step for 5m" in job_table.table([quiet], everything=False)
    assert "step 50 of 101, epoch 1.2, 80.0 images/s, 1h02m left, top1 71.5%" in show.one(one)
    assert one == from_json(JobView, json.loads(json.dumps(dataclasses.asdict(one))))
    warned = dataclasses.replace(one, status=dataclasses.replace(status, warnings=("orted is stopped",)))
    assert job_table.table([warned], everything=False).endswith("localhost   warning: orted is stopped")
    assert "\n  warning      orted is stopped" in show.one(warned)
    assert ["orted is stopped"] == json.loads(json.dumps(warned.to_json()))["warnings"]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, "0s"), (59.9, "59s"), (60, "1m"), (3600, "1h00m"), (190000, "2d4h")]
)
def test_durations(seconds: Any, expected: Any) -> None:
    """As a person says them."""
    assert expected == show.duration(seconds)


CLUSTER = Cluster(name="here", hosts=(HERE,), folder=ROOT, shared="/s", project="/p")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


WHOLE = {  # a job's files, the same bytes each time
    "job.json": json.dumps(dataclasses.asdict(a_job("exit 0", "x", created="2026-11-22T10:00:00+00:00", steps=9))),
    "state.json": json.dumps(
        dataclasses.asdict(JobStatus(state=JobState.RUNNING, started="2026-11-22T10:00:00+00:00"))
    ),
    "lease.json": '{"attempt": 1, "holder": {"host": "h", "pid": 7, "started": 9, "boot": ""}, "renewed": 5.5}',
    "metrics.jsonl": '{"kind": "train", "step": 3, "time": 5.0, "images_per_s": 2.0}',
}


@st.composite
def mutated(draw: st.DrawFn, whole: str) -> bytes:
    """A record with a field changed, dropped or added, or its bytes cut or flipped; or any JSON."""
    fields = json.loads(whole)
    kind = draw(st.sampled_from(["field", "drop", "add", "cut", "flip", "any"]))
    if kind == "field":
        fields[draw(st.sampled_from(sorted(fields)))] = draw(JSON)
    elif kind == "drop":
        del fields[draw(st.sampled_from(sorted(fields)))]
    elif kind == "add":
        fields[draw(st.text(max_size=9))] = draw(JSON)
    elif kind == "any":
        fields = draw(JSON)
    text = json.dumps(fields).encode()
    if kind == "cut":
        return text[: draw(st.integers(0, len(text)))]
    if kind == "flip":
        at = draw(st.integers(0, len(text) - 1))
        return text[:at] + bytes([draw(st.integers(0, 255))]) + text[at + 1 :]
    return text


DAMAGE = st.fixed_dictionaries({}, optional={name: mutated(whole) for name, whole in WHOLE.items()})


@settings(suppress_health_check=list(HealthCheck))
@given(damage=DAMAGE)
def test_no_damage_to_a_record_is_a_traceback(damage: Any) -> None:
    """Whatever is in its files: listed, found, shown, refused as a host's holder; or named, with an error of ours."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "x").mkdir()
        for name, whole in WHOLE.items():
            (folder / "x" / name).write_bytes(damage.get(name, whole.encode()))
        read_everything(folder)


def read_everything(folder: Any) -> None:
    records = read_all(folder)
    assert 1 == len(records.jobs) + len(records.damaged)
    try:
        seen = view(find(folder, "x"))
        again = from_json(JobView, json.loads(json.dumps(dataclasses.asdict(seen))))
        job_table.table([again], everything=True)
        show.one(again)
        show.how_it_was_left(again)
        ending(again.status, again.id)
        next_attempt(again, CLUSTER, None, None)
    except ClusterError as e:
        assert "x" in str(e)
    with contextlib.suppress(ClusterError):
        _refuse_taken(records, a_job("", "y"))


def test_a_shared_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Not that the job never was: its record may lie where nobody looks now."""
    with pytest.raises(ConfigError, match="which is not there: is the shared folder mounted"):
        find(tmp_path / "gone/jobs", "last")


def test_a_supervisor_that_does_not_renew_its_lease_is_warned_of(tmp_path: Path) -> None:
    """Its process lives, and says nothing: who looks at the job learns it, as long as it is so."""
    paths, own = on_record(tmp_path, "x"), this_process()
    write_status(paths, JobStatus(state=JobState.RUNNING, supervisor=own))
    lease = dataclasses.asdict(take_lease(paths, 1, own))
    assert () == view(paths).status.warnings
    write_json(paths.lease, {**lease, "renewed": lease["renewed"] - EXPIRES_S - 5})
    (warning,) = view(paths).status.warnings
    assert re.search(rf"supervisor, process {own.pid} on {own.host}, has not said for \d+", warning)
    assert warning in view_all(tmp_path, read_all(tmp_path))[0][0].status.warnings
    write_status(paths, JobStatus(state=JobState.SUCCEEDED, supervisor=own))
    assert () == view(paths).status.warnings


def test_a_supervisor_that_is_stopped_is_said_once_to_who_follows(tmp_path: Path) -> None:
    """Its job reads `running` and nothing comes any more: whoever waits has to learn for what."""
    paths = on_record(tmp_path, "x")
    supervisor = subprocess.Popen(["sleep", "600"])
    try:
        holder = process.process_id(supervisor.pid)
        running = write_status(paths, JobStatus(state=JobState.RUNNING, supervisor=holder))
        supervisor.send_signal(signal.SIGSTOP)
        wait_until(lambda: holder.is_stopped, "it is stopped")

        said = lines(paths, follow=True)
        assert f"the job's supervisor, process {supervisor.pid} on {holder.host}, is stopped (SIGSTOP" in next(said)
        write_status(paths, dataclasses.replace(running, state=JobState.SUCCEEDED))
        assert [] == list(said)
    finally:
        supervisor.kill()
        supervisor.wait()

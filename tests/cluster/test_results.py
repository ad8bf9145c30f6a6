"""A job's results in S3, against moto over HTTP: at its end, at each healing, and what a failure there does not do."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.receivers import check_results
from cluster.files import write_json
from cluster.inventory import ROOT
from cluster.jobs.client.job_table import table
from cluster.jobs.client.show import one
from cluster.jobs.master.submit import submit
from cluster.jobs.record import JobPaths, read_job
from cluster.jobs.records import read_attempts, view
from cluster.jobs.results import read_results
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status
from cluster.results import gathered
from cluster.results import send as sending
from cluster.results.gathered import MOST_BYTES, best_checkpoint, gather
from cluster.results.send import OWN_DISK, send
from tests import fake_s3
from tests.cluster.healing_jobs import DIES, healing
from tests.cluster.jobs_here import ended, wait_until
from tests.cluster.made_job import made_job, write_metrics
from tests.typed_words import typed

BUCKET, PLACE = "kept", "s3://kept/trainings"
LONG_S = 400.0  # of a machine that does a dozen other things


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A client of a fake S3 with an empty bucket; what runs here finds it as it would find AWS's."""
    boto3 = pytest.importorskip("boto3")
    with fake_s3.serving() as url, pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", url)
        client = boto3.client("s3")
        client.create_bucket(Bucket=BUCKET)
        yield client


def kept(s3: Any, job: str) -> dict[str, int]:
    """What of a job is in the bucket, with its size."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"trainings/{job}/")
    found = {o["Key"]: o["Size"] for p in pages for o in p.get("Contents", ())}
    return {key.removeprefix(f"trainings/{job}/"): size for key, size in found.items()}


def is_sent(paths: JobPaths) -> bool:
    """Whether the supervisor has had them sent after the job's last attempt."""
    found = read_results(paths.folder)
    return found is not None and found.attempt == max((a.number for a in read_attempts(paths) if a.is_over), default=1)


def no_folder_is_left(job: str) -> bool:
    return not list(OWN_DISK.glob(f"dlami-results-{job}-*"))


@pytest.mark.slow
def test_results_go_to_s3_at_each_healing_and_at_the_end(
    s3: Any, folder: Path, job_id: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Report, metrics, logs and best checkpoint; the record and jobs.list say so; a variable's value goes nowhere.

    And once more when `jobs.results` is typed.
    """
    body = (
        "mkdir -p $DLAMI_JOB_FOLDER/checkpoints; cd $DLAMI_JOB_FOLDER; "
        """printf '{"kind": "train", "step": %s, "time": 1760000000.0, "loss": 1.5}\\n' $DLAMI_ATTEMPT >>metrics.jsonl; """
        """echo '{"step": 1}' >checkpoints/step-00000001.json; echo weights >checkpoints/step-00000001.npz; """
        """echo '{"step": 2}' >checkpoints/step-00000002.json; echo other >checkpoints/step-00000002.npz; """
        """echo '{"step": 1, "score": 9.0}' >checkpoints/best.json; """
    )
    wait = "while [ ! -e $DLAMI_JOB_FOLDER/go ]; do sleep 0.1; done"
    script = f"{body} if [ $DLAMI_ATTEMPT = 1 ]; then {DIES}; else {wait}; fi"
    paths = submit(folder, healing(script, job_id, results=PLACE, environment={"WORD": "hunter2"}))
    wait_until(
        lambda: (found := read_results(paths.folder)) is not None and found.attempt == 1,
        "the first are sent",
        timeout_s=LONG_S,
    )
    first = kept(s3, job_id)
    (paths.folder / "go").touch()
    ended(paths)
    wait_until(lambda: is_sent(paths), "the last are sent", timeout_s=LONG_S)
    last, shown = kept(s3, job_id), view(paths)

    assert JobState.SUCCEEDED is shown.state
    assert {"report.html", "metrics.jsonl", "public.json", "state.json", "attempts.json"} <= first.keys()
    assert "logs/attempt-1/console.log" in first
    assert not [name for name in first if name.startswith("logs/attempt-2")]
    assert {"logs/attempt-1/console.log", "logs/attempt-2/console.log", "logs/attempt-1/supervisor.log"} <= last.keys()
    names = {name for name in last if name.startswith("checkpoints/")}
    assert {f"checkpoints/{name}" for name in ("best.json", "step-00000001.json", "step-00000001.npz")} == names
    assert last["metrics.jsonl"] == paths.metrics.stat().st_size
    page = s3.get_object(Bucket=BUCKET, Key=f"trainings/{job_id}/report.html")["Body"].read().decode()
    assert "It succeeded" in page
    for name in last:
        assert b"hunter2" not in s3.get_object(Bucket=BUCKET, Key=f"trainings/{job_id}/{name}")["Body"].read(), name
    where = f"in {PLACE}/{job_id}, until attempt 2"
    assert where in one(shown)
    assert where in table([shown], True)
    s3.delete_object(Bucket=BUCKET, Key=f"trainings/{job_id}/report.html")
    (folder.parent / "hosts").write_text("localhost slots=1\n")
    (folder.parent / "cluster.toml").write_text(f"shared = {json.dumps(str(folder.parent))}\n")
    monkeypatch.setenv("CLUSTER", str(folder.parent))
    assert 0 == typed("jobs.results", "last")
    assert where in capsys.readouterr().out
    assert "report.html" in kept(s3, job_id)
    wait_until(lambda: no_folder_is_left(job_id), "nothing is left on the master's own disk", timeout_s=LONG_S)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["no bucket", "nobody answers"])
def test_a_job_does_not_fail_because_s3_does(
    trouble: str, s3: Any, folder: Path, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has succeeded at once; the record and jobs.list say why its results are not there."""
    if trouble == "nobody answers":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    paths = submit(folder, healing("true", job_id, results="s3://nobody-has-this/x"))
    ended(paths)
    assert JobState.SUCCEEDED is read_status(paths).state
    wait_until(lambda: is_sent(paths), "it is said", timeout_s=LONG_S)
    shown = view(paths)

    said = "NoSuchBucket" if trouble == "no bucket" else "127.0.0.1:9"
    assert said in shown.results.error
    assert f"results not all in s3://nobody-has-this/x/{job_id}: " in table([shown], True)
    assert JobState.SUCCEEDED is shown.state


SUPERVISOR = """
import contextlib, os, sys
from pathlib import Path
from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.cause import Cause
from cluster.folder_thread import FolderThread
from cluster.jobs.supervisor.lease_holder import LeaseHolder
from cluster.jobs.records import read_attempts
from cluster.jobs.record import JobPaths, read_job
from cluster.jobs.status import read_status
from cluster.jobs.supervisor.reporter import Telling

paths = JobPaths(Path(sys.argv[1]))
folder = FolderThread()
telling = Telling(read_job(paths), paths, LeaseHolder(paths, 2, folder), folder, read_status(paths))
cause, first = Cause(kind=FailureKind.HOST, text="it was lost"), read_attempts(paths)[0]
telling.heals(cause, (), first) if sys.argv[2] == "heals" else telling.is_over(telling.status, cause)
with contextlib.suppress(ChildProcessError):  # the last of them has ended
    while True:
        os.wait()
"""


@pytest.mark.seconds
@pytest.mark.parametrize("word", ["heals", "is over"])
def test_whoever_tells_of_an_end_has_the_results_sent(word: str, tmp_path: Path) -> None:
    """By a process beside it; that S3 did not take them is in the job's folder then."""
    paths = made_job(tmp_path, results="s3://nobody-has-this/x")
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1", "AWS_DEFAULT_REGION": "us-east-1"}
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    told = subprocess.run(
        [sys.executable, "-c", SUPERVISOR, str(paths.folder), word],
        cwd=ROOT,
        env={**os.environ, **nowhere, **keys},
        capture_output=True,
        text=True,
    )

    assert 0 == told.returncode, told.stderr
    found = read_results(paths.folder)
    assert found
    assert f"s3://nobody-has-this/x/{paths.folder.name}" == found.url
    assert found.error


@pytest.mark.seconds
def test_ten_attempts_with_lines_of_10_mb_go_to_s3_whole(s3: Any, tmp_path: Path) -> None:
    """And a log that is longer than all that goes there, by its end; a second time nothing moves that is there."""
    paths = made_job(tmp_path, attempts=10, results=PLACE)
    write_metrics(paths, 1000)
    for number in range(1, 11):
        paths.rank_logs(number).joinpath("1/rank.0").mkdir(parents=True)
        paths.console(number).write_text("x" * 10_000_000 + "\n")
        (paths.rank_logs(number) / "1/rank.0/stdout").write_text(f"attempt {number}\n")
    with (paths.rank_logs(3) / "1/rank.0/stderr").open("wb") as log:
        log.seek(3 * MOST_BYTES)
        log.write(b"the end\n")
    first, again = send(paths), send(paths)
    found = kept(s3, paths.folder.name)

    assert ("", "") == (first.error, again.error)
    assert (first.files, again.bytes < 1_000_000) == (again.files, True)
    assert [10_000_001] * 10 == [found[f"logs/attempt-{n}/console.log"] for n in range(1, 11)]
    assert found["report.html"] < 500_000
    key = f"trainings/{paths.folder.name}/logs/attempt-3/ranks/1/rank.0/stderr"
    end = s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    assert end.startswith(b"[the first 134,217,736 bytes are left out here]\n")
    assert end.endswith(b"the end\n")
    assert 10 == len(read_attempts(paths))
    assert read_job(paths).plan.results == PLACE
    assert no_folder_is_left(paths.folder.name)


def test_the_time_they_may_take_goes_by_how_much_there_is(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of many GB is no reason to give up; what is given up says so in a sentence."""
    paths = made_job(tmp_path, results=PLACE)
    monkeypatch.setattr(sending, "LIMIT_S", 0.001)
    given_up = send(paths)
    monkeypatch.setattr(sending, "SLOWEST", 1.0)
    slow = send(paths)

    assert re.fullmatch(
        rf"0.\d MB were not all there after 0 s, and were given up; what is there is not moved again: "
        rf"'inv jobs.results {paths.folder.name}'",
        given_up.error,
    )
    assert "" == slow.error
    assert "report.html" in kept(s3, paths.folder.name)


def test_a_checkpoint_that_is_removed_while_it_is_sent_stays_until_it_is_there(tmp_path: Path) -> None:
    """The next attempt of a job that heals removes old ones meanwhile."""
    paths = made_job(tmp_path / "shared")
    for step in (100, 200):
        write_json(paths.checkpoints / f"step-{step:08d}.json", {"step": step})
        (paths.checkpoints / f"step-{step:08d}.npz").write_bytes(b"weights")
    into = tmp_path / "into"
    into.mkdir()
    gather(paths, into)
    for file in paths.checkpoints.iterdir():
        file.unlink()

    assert {"step-00000200.json", "step-00000200.npz"} == {p.name for p in (into / "checkpoints").iterdir()}
    assert b"weights" == (into / "checkpoints/step-00000200.npz").read_bytes()
    assert "hunter2" not in (into / "public.json").read_text() + (into / "report.html").read_text()
    assert not (into / "job.json").exists()


@pytest.mark.parametrize("hidden", ["logs/attempt-1/ranks/1.0", "checkpoints/step-300"])
def test_a_folder_that_cannot_be_read_is_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    """Of logs or of a program's own checkpoint: a container that ran as root may have left it."""
    paths, scandir = made_job(tmp_path / "shared"), os.scandir
    folder = paths.folder / hidden
    folder.mkdir(parents=True)
    (folder / "file").write_text("x")
    monkeypatch.setattr("cluster.results.gathered.newest_checkpoint", lambda _: str(paths.checkpoints / "step-300"))

    def refusing(path: Any) -> Any:
        if str(path) == str(folder):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    (tmp_path / "into").mkdir()
    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(PermissionError, match=hidden):
        gather(paths, tmp_path / "into")


def test_what_may_still_be_written_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the end of what is very long, but all of the metrics; of a rank's log that is over there is a link."""
    monkeypatch.setattr(gathered, "MOST_BYTES", 20_000)
    paths = made_job(tmp_path / "shared")
    write_metrics(paths, 1000)
    short, long = (paths.rank_logs(1) / f"1/rank.{n}/stdout" for n in (0, 1))
    for file, text in ((short, "x" * 20_000), (long, "y" * 20_001), (paths.console(1), "first\n" + "z" * 20_000)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (paths.logs(1) / "link").symlink_to(paths.folder / "job.json")
    (into := tmp_path / "into").mkdir()
    gather(paths, into)
    logs = into / "logs/attempt-1"
    end, of_rank = (logs / "console.log").read_text(), logs / "ranks/1/rank.0/stdout"

    assert not (logs / "link").exists()
    assert [of_rank] == [p for p in into.rglob("*") if p.is_symlink()]
    assert short == of_rank.readlink()
    assert "[the first 6 bytes are left out here]\n" + "z" * 20_000 == end
    assert (logs / "ranks/1/rank.1/stdout").read_text().startswith("[the first 1 bytes are left out here]\n")
    assert (into / "logs/attempt-2/console.log").read_text() == paths.console(2).read_text()
    assert paths.metrics.read_bytes() == (into / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("best", "taken"),
    [
        ('{"step": 1}', ["best.json", "step-00000001.json", "step-00000001.npz"]),
        ("", ["step-00000002.json", "step-00000002.npz"]),
        ('{"step": 7}', ["step-00000002.json", "step-00000002.npz"]),
        ('{"step": -1}', ["step-00000002.json", "step-00000002.npz"]),
        ('{"step": true}', ["step-00000002.json", "step-00000002.npz"]),
        ('{"score": 1}', ["step-00000002.json", "step-00000002.npz"]),
    ],
)
def test_the_best_checkpoint_is_taken_or_the_newest(best: str, taken: list[str], tmp_path: Path) -> None:
    """Where none was scored, or the best one is not there any more."""
    paths = made_job(tmp_path)
    for step in (1, 2):
        for end in ("json", "npz"):
            (paths.checkpoints / f"step-{step:08d}.{end}").touch()
    (paths.checkpoints / "best.json").write_text(best)

    assert taken == [p.name for p in best_checkpoint(paths)]


def test_of_a_program_s_checkpoints_the_newest_is_taken_with_all_in_it(tmp_path: Path) -> None:
    """A folder or a file; nothing where it has saved nothing."""
    paths = made_job(tmp_path)
    assert [] == list(best_checkpoint(paths))
    for name in ("step-4/a/model.bin", "step-4/opt.bin", "step-3/opt.bin"):
        (paths.checkpoints / name).parent.mkdir(parents=True, exist_ok=True)
        (paths.checkpoints / name).touch()
    os.utime(paths.checkpoints / "step-3", (1, 1))

    found = [str(p.relative_to(paths.checkpoints)) for p in best_checkpoint(paths)]
    assert ["step-4/a/model.bin", "step-4/opt.bin"] == found


@pytest.mark.parametrize(
    "place", ["bucket/x", "s3://B/x", "s3://", "s3://bucket//x", "s3://bucket/*", "s3://bucket/a b"]
)
def test_what_is_no_place_in_s3_is_refused(place: str) -> None:
    """Before anything is started, with how it is written."""
    with pytest.raises(FieldError, match="s3://bucket/trainings"):
        check_results(place)

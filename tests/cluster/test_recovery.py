"""A supervisor that goes on by itself: real mpirun on this machine, with a shell script as its one rank, and no lab."""

import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.jobs.claim import NAME_VARIABLE, HostsTaken, claim_hosts
from cluster.jobs.client.show import one
from cluster.jobs.master import follow
from cluster.jobs.master.lost_jobs import heal_lost
from cluster.jobs.master.stop import stop
from cluster.jobs.master.submit import remove, submit
from cluster.jobs.onhost.claim import holder
from cluster.jobs.process import start_ticks
from cluster.jobs.record import DamagedRecord, JobPaths, read_job
from cluster.jobs.records import find, read_attempts, view
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status, words_file
from cluster.recovery.failure_kinds import FailureKind
from cluster.typed import from_json
from tests import dead_server
from tests.cluster.flat_jobs import changed
from tests.cluster.healing_jobs import DIES, LINGERS, healing
from tests.cluster.jobs_here import a_job, ended, wait_until
from tests.conftest import PATIENCE_S

pytestmark = [
    pytest.mark.slow,  # real supervisors and mpirun, some seconds each
    pytest.mark.skipif(not shutil.which("mpirun"), reason="needs Open MPI"),
]


def kinds(paths: JobPaths) -> list[FailureKind | None]:
    return [a.what for a in read_attempts(paths)]


def console(paths: JobPaths, attempt: int) -> str:
    return paths.console(attempt).read_text()


def waits(paths: JobPaths) -> bool:
    """Its supervisor waits for something between two attempts."""
    return read_status(paths).state is JobState.HEALING and "dlami: waits: " in console(paths, 1)


# More ranks than there is room for, so that the supervisor waits after the first attempt.
SHORT_OF_HOSTS = {"min_np": 2, "whole_np": 2}


def test_a_killed_rank_is_followed_by_the_next_attempt(folder: Any, job_id: Any, capfd: Any) -> None:
    """Who follows sees both attempts and the job's end; the record says what became of each."""
    script = f"echo this is attempt $DLAMI_ATTEMPT; [ $DLAMI_ATTEMPT != 1 ] || {{ {DIES}; }}"
    paths = submit(folder, healing(script, job_id))
    status = follow.console(paths, follow=True)
    said = capfd.readouterr().out

    assert (JobState.SUCCEEDED, 2, FailureKind.DONE) == (status.state, status.attempt, status.ended_by)
    assert re.search(
        r"this is attempt 1\n(.*\n)?dlami: attempt 1 ended: rank 0 on localhost ended by signal 9 \(Killed\)[^\n]*\n"
        r"dlami: attempt 2, \d+ s later: 1 rank on localhost, on the same hosts\nthis is attempt 2\n$",
        said,
        re.DOTALL,
    ), said
    assert [FailureKind.RANK_SIGNAL, FailureKind.DONE] == kinds(paths)
    shown = view(paths)
    assert shown.account
    assert (2, 2) == (len(shown.attempts), len(shown.account.attempts))
    told = json.dumps(dataclasses.asdict(shown))
    assert shown == from_json(type(shown), json.loads(told))
    assert "1 rank on localhost, no step: rank 0 on localhost ended by signal 9 (Killed)" in one(shown)


@pytest.mark.parametrize(("name", "attempts"), [("step-$DLAMI_ATTEMPT", 4), ("last", 2)])
def test_new_checkpoints_are_progress_of_a_program_that_tells_no_steps(
    folder: Any, job_id: Any, name: Any, attempts: Any
) -> None:
    """One that dies again and again goes on while it leaves new ones; the same name could be the same steps again."""
    saves = f"mkdir -p $DLAMI_JOB_FOLDER/checkpoints; echo $DLAMI_ATTEMPT > $DLAMI_JOB_FOLDER/checkpoints/{name}"
    script = f"{saves}; [ $DLAMI_ATTEMPT = 4 ] || {{ {DIES}; }}"
    paths = submit(folder, healing(script, job_id))
    ended(paths)
    assert attempts == len(kinds(paths))
    assert [True, name != "last"] == [a.saved for a in read_attempts(paths)][:2]
    assert (name == "last") is (JobState.FAILED is read_status(paths).state)


@pytest.mark.parametrize("text", ["", '{"state": "runn', "[]"])
@pytest.mark.parametrize("what", ["running", "killed", "no lease"])
def test_a_job_whose_state_is_damaged_is_listed_stopped_and_removed(
    folder: Any, job_id: Any, text: str, what: str
) -> None:
    """By its lease, or by what its supervisor's command line and hostfile tell: no circle of advice."""
    paths = submit(folder, healing("exec sleep 600", job_id))
    wait_until(lambda: bool(read_attempts(paths) and read_attempts(paths)[-1].started), "mpirun")
    if what == "killed":
        supervisor = read_status(paths).supervisor
        assert supervisor
        os.kill(supervisor.pid, signal.SIGKILL)
        wait_until(lambda: not supervisor.is_alive, "its end")
    paths.status.write_text(text)
    if what == "no lease":
        paths.lease.unlink()
        with pytest.raises(DamagedRecord):
            read_status(paths)
    else:
        assert paths.folder == find(folder, "last").folder
        expected = JobState.LOST if what == "killed" else JobState.RUNNING
        assert expected is view(paths).state
        assert (what == "running") is any("is damaged" in w for w in view(paths).status.warnings)
        with pytest.raises(ConfigError, match=r"inv jobs\.stop"):
            remove(folder, paths)
    assert JobState.STOPPED is stop(paths).state
    assert JobState.STOPPED is read_status(paths).state
    assert () == remove(folder, paths)
    assert not paths.folder.exists()


def test_a_lost_job_whose_state_is_damaged_goes_on(folder: Any, job_id: Any) -> None:
    """When its master is back, as every other."""
    script = "[ $DLAMI_ATTEMPT != 1 ] || exec sleep 600"
    paths = submit(folder, healing(script, job_id))
    wait_until(lambda: bool(read_attempts(paths) and read_attempts(paths)[-1].started), "mpirun")
    supervisor = read_status(paths).supervisor
    assert supervisor
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: not supervisor.is_alive, "its end")
    paths.status.write_text("")
    assert [True] == [one.goes_on for one in heal_lost(folder)]
    ended(paths)
    assert [FailureKind.MASTER, FailureKind.DONE] == kinds(paths)


def test_a_new_job_begins_from_an_older_one_s_checkpoint(folder: Any, job_id: Any) -> None:
    """With its own code: the copies are its own, and its attempts are counted on, as the newest checkpoint is theirs."""
    saves = "mkdir -p $DLAMI_JOB_FOLDER/checkpoints; echo old > $DLAMI_JOB_FOLDER/checkpoints/step-3; exit 4"
    old = submit(folder, healing(saves, job_id))
    ended(old)
    (old.checkpoints / ".step-4").touch()
    goes_on = "test $DLAMI_RESUME = $DLAMI_JOB_FOLDER/checkpoints/step-3 && echo new >> $DLAMI_RESUME"
    new = submit(folder, healing(goes_on, job_id + "b", begins_from=job_id, attempt=2))
    ended(new)
    assert (JobState.SUCCEEDED, 2) == (read_status(new).state, read_status(new).attempt)
    assert ("old\n", "old\nnew\n") == tuple((p.checkpoints / "step-3").read_text() for p in (old, new))
    assert ["step-3"] == [p.name for p in new.checkpoints.iterdir()]
    assert [] == list(folder.glob(".from-*"))
    shutil.rmtree(old.checkpoints)
    with pytest.raises(ConfigError, match="no checkpoint"):
        submit(folder, healing("true", job_id + "c", begins_from=job_id, attempt=2))
    assert not (folder / f"{job_id}c").exists()


def test_the_end_is_explained_though_somebody_removed_the_console(folder: Any, job_id: Any) -> None:
    """The supervisor holds it open."""
    paths = submit(folder, healing(f"rm $DLAMI_JOB_FOLDER/logs/*/console.log; {DIES}", job_id, heal=False))
    ended(paths)
    assert read_status(paths).cause.startswith("rank 0 on localhost ended by signal 9 (Killed)")


def test_between_two_attempts_hosts_are_held_and_a_stop_is_heard_at_once(
    folder: Any, job_id: Any, tmp_path: Path
) -> None:
    """Healing is going on: nobody else gets the hosts, of whatever shared folder, nobody resumes it, and jobs.stop ends
    it without a wait. Then they are free.
    """
    paths = submit(folder, healing(DIES, job_id, **SHORT_OF_HOSTS))
    wait_until(lambda: waits(paths), "it waits")
    elsewhere = a_job("", job_id + "c")
    with pytest.raises(HostsTaken, match=rf"hosts taken by {job_id} \(user "):
        claim_hosts(elsewhere, tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=rf"hosts taken by {job_id} \(healing\): localhost"):
        submit(folder, a_job("exit 0", job_id + "b"))
    with pytest.raises(ConfigError, match="is healing: there is nothing to resume"):
        submit(folder, healing("exit 0", job_id, attempt=2))
    status = stop(paths)

    assert (JobState.STOPPED, FailureKind.STOPPED, 1) == (status.state, status.ended_by, status.attempt)
    assert "stopped before its next attempt; the last: rank 0 on localhost ended by signal 9" in status.cause
    assert [FailureKind.RANK_SIGNAL] == kinds(paths)
    assert holder(os.environ[NAME_VARIABLE]) is None


def test_a_supervisor_killed_between_two_attempts_leaves_a_lost_job_that_can_be_resumed(
    folder: Any, job_id: Any
) -> None:
    """And what a person has resumed begins anew: the attempts before do not count against it."""
    paths = submit(folder, healing(DIES, job_id, **SHORT_OF_HOSTS))
    wait_until(lambda: waits(paths), "it waits")
    supervisor = read_status(paths).supervisor
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: not supervisor.is_alive, "it is gone")
    assert JobState.LOST is read_status(paths).state

    script = f"[ $DLAMI_ATTEMPT != 2 ] || {{ {DIES}; }}"
    submit(folder, healing(script, job_id, attempt=2))
    ended(paths)
    assert JobState.SUCCEEDED is read_status(paths).state
    assert [(1, FailureKind.RANK_SIGNAL), (2, FailureKind.RANK_SIGNAL), (3, FailureKind.DONE)] == [
        (a.number, a.what) for a in read_attempts(paths)
    ]


def test_ranks_of_an_earlier_attempt_must_not_write_any_more(folder: Any, job_id: Any) -> None:
    """The lease is of the attempt that runs, before its first rank does."""
    script = f"[ $DLAMI_ATTEMPT != 1 ] || {{ {DIES}; }}; grep '\"attempt\": 2' $DLAMI_JOB_FOLDER/lease.json"
    paths = submit(folder, healing(script, job_id))
    ended(paths)

    assert JobState.SUCCEEDED is read_status(paths).state, console(paths, 2)
    assert 2 == read_job(paths).attempt


TRAINS = """
import fcntl, json, os, pathlib, signal, subprocess, sys, time
folder, attempt = pathlib.Path(os.environ["DLAMI_JOB_FOLDER"]), int(os.environ["DLAMI_ATTEMPT"])
sole = (folder / "sole").open("w")
fcntl.flock(sole, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where an earlier attempt's rank still lives
die_at = dict(enumerate(["starting", "first step", "saving", "evaluating", "stopping"], start=1)).get(attempt)

def at(point):
    if point == die_at:
        subprocess.run(["sh", "-c", sys.argv[1]])
        os.kill(os.getpid(), signal.SIGKILL)

at("starting")
saved = folder / "saved"
began = step = int(saved.read_text()) if saved.exists() else 0
with (folder / "metrics.jsonl").open("a") as metrics, (folder / "done").open("a") as done:
    while step < 20:
        metrics.write(json.dumps({"kind": "train", "step": step, "time": time.time()}) + "\\n")
        metrics.flush()
        print(attempt, step, file=done, flush=True)
        time.sleep(0.05)
        step += 1
        if step == began + 1 > 1 or (attempt, step) == (2, 1):
            at("first step")
        if step % 5 == 0:
            (folder / "part").write_text(str(step)[:1])
            if step > 5:
                at("saving")
            (folder / "part").write_text(str(step))
            (folder / "part").rename(saved)
        if step == 15:
            at("evaluating")
at("stopping")
"""


def test_a_fault_at_any_point_of_an_attempt_s_life_loses_nothing(folder: Any, job_id: Any, tmp_path: Path) -> None:
    """Killed as it starts, at its first step, while it saves, evaluates and stops: each time the next attempt goes on
    from the newest checkpoint; all steps are done, and never do two attempts write."""
    program = tmp_path / "trains.py"
    program.write_text(TRAINS)
    command = (sys.executable, str(program), LINGERS)
    job = healing("", job_id, command=command, attempts_per_hour=0)
    paths = submit(folder, changed(job, mpirun=(*job.plan.mpirun[:5], *command)))
    ended(paths)

    status = read_status(paths)
    assert (JobState.SUCCEEDED, 6) == (status.state, status.attempt), status.cause
    done = [tuple(map(int, line.split())) for line in (paths.folder / "done").read_text().splitlines()]
    assert sorted(done) == done, "no attempt wrote after the next one had begun"
    by_attempt = {n: [step for attempt, step in done if attempt == n] for n in range(1, 7)}
    assert {1: [], 2: [0], 3: [*range(10)], 4: [*range(5, 15)], 5: [*range(15, 20)], 6: []} == by_attempt
    attempts = read_attempts(paths)
    assert [None, 1, 10, 15, 20, None] == [a.step for a in attempts]
    assert all(a.cleared <= b.started for a, b in itertools.pairwise(attempts))
    account = view(paths).account
    assert account
    assert account.attempts[3].again_s > 0 == account.attempts[4].again_s, "five of its ten steps had been done before"


def killed(paths: JobPaths) -> None:
    """Its supervisor is gone without a word, as with a master that loses its power; its ranks may still run."""
    supervisor = read_status(paths).supervisor
    assert supervisor
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: read_status(paths).state is JobState.LOST, "it is lost")


def test_a_lost_job_is_taken_up_once_and_nobody_writes_beside_it(folder: Any, job_id: Any, tmp_path: Path) -> None:
    """What its ranks still do is ended first; of many who would take it up one does; its time away is accounted for."""
    ran = tmp_path / "ran"
    metrics = folder / job_id / "metrics.jsonl"
    steps = f"""for n in 0 49; do
      echo '{{"kind": "train", "step": '$n', "time": '$(( $(date +%s) + 1 + n ))'}}' >>{metrics}
      sleep 4
    done"""
    script = f"echo $DLAMI_ATTEMPT $$ >>{ran}; [ $DLAMI_ATTEMPT = 2 ] && exit 0; {steps}; exec sleep 4321"
    paths = submit(folder, healing(script, job_id))
    wait_until(lambda: [50] == [a.step for a in read_attempts(paths)], "its record says how far it is", 60)
    killed(paths)
    words = [sys.executable, "-m", "cluster.jobs", "--shared", str(folder.parent), "heal"]
    healers = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [0, 0, 0] == [h.wait(PATIENCE_S) for h in healers]
    ended(paths)

    assert [["1"], ["2"]] == [line.split()[:1] for line in ran.read_text().splitlines()]
    first = int(ran.read_text().split()[1])
    with pytest.raises(OSError):
        start_ticks(first)
    assert (JobState.SUCCEEDED, 2) == ((status := read_status(paths)).state, status.attempt)
    assert [FailureKind.MASTER, FailureKind.DONE] == kinds(paths)
    assert "without a last word" in read_attempts(paths)[0].text
    assert (1, 50) == (read_attempts(paths)[0].first_step, read_attempts(paths)[0].step)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a folder is mounted, and taken away")
def test_a_shared_folder_that_is_gone_is_waited_for(tmp_path: Path, folder: Any, job_id: Any) -> None:
    """Its job is known to the master meanwhile, and who follows it waits as well."""
    shared, kept = tmp_path / "shared", tmp_path / "kept"
    shared.mkdir()
    kept.mkdir()
    subprocess.run(["mount", "--bind", str(kept), str(shared)], check=True)
    try:
        script = f"[ $DLAMI_ATTEMPT != 1 ] || {{ umount -l {shared}; touch $DLAMI_JOB_FOLDER/x || exit 1; }}"
        paths = submit(shared / "jobs", healing(script, job_id))
        wait_until(lambda: says(paths, JobState.HEALING), "it waits")
        assert f"{paths.folder} cannot be written: No such file or directory" in read_status(paths).cause
        subprocess.run(["mount", "--bind", str(kept), str(shared)], check=True)
        ended(paths)
        assert (JobState.SUCCEEDED, 2) == (read_status(paths).state, read_status(paths).attempt)
        assert [FailureKind.SHARED_FOLDER, FailureKind.DONE] == kinds(paths)
    finally:
        subprocess.run(["umount", "-l", str(shared)], check=True)


def says(paths: JobPaths, state: JobState) -> bool:
    """Whether this is what is known of it, if anything is."""
    try:
        return read_status(paths).state is state
    except DamagedRecord:
        return False


NEEDS_FUSE = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="needs root and FUSE: a file server that never answers"
)


@NEEDS_FUSE
def test_a_shared_folder_that_hangs_holds_up_no_healing(tmp_path: Path, folder: Any, job_id: Any) -> None:
    """A hang is found and explained all the same, kept on the master's own disk, and the next attempt comes after it."""
    shared, on = tmp_path / "shared", tmp_path / "on"
    shared.mkdir()
    script = f"[ $DLAMI_ATTEMPT != 1 ] || {{ touch {on}; exec sleep 4321; }}"
    paths = submit(shared / "jobs", healing(script, job_id, hang_after=4.0))
    words = words_file(paths)
    wait_until(lambda: on.exists(), "its rank runs")
    with dead_server.silent(shared, tmp_path):
        wait_until(lambda: words.exists() and json.loads(words.read_text())["state"] == "healing", "it heals", 120)
        told = json.loads(words.read_text())
    ended(paths)

    assert "shared-folder" == told["ended_by"], told
    assert "the shared folder does not answer" in told["cause"]
    assert (JobState.SUCCEEDED, 2) == (read_status(paths).state, read_status(paths).attempt)
    assert [FailureKind.SHARED_FOLDER, FailureKind.DONE] == kinds(paths)
    assert not words.exists()

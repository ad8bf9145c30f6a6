"""One attempt after the other: who may start, who may write, and what is said of the end. Here, without a lab."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError, NothingToDo
from cluster.files import write_json
from cluster.inventory import ROOT
from cluster.jobs.lock import locked
from cluster.jobs.master.stop import stop
from cluster.jobs.master.submit import remove, submit
from cluster.jobs.process import process_id, this_process
from cluster.jobs.record import JobPaths, JobStatus
from cluster.jobs.record_lease import Fenced, check_lease, read_lease
from cluster.jobs.records import find, read_all, read_attempts, view
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status, write_status
from cluster.jobs.supervisor import local_cleanup as copies_here
from cluster.ssh.onhost import shared_tree
from tests.cluster.flat_jobs import changed
from tests.cluster.jobs_here import a_job, ended, wait_until
from tests.conftest import PATIENCE_S
from tests.other_users import copy_sources, open_folder, python_of_all
from trainer.common.checkpoints.checkpoint_replica import DISK, DISKS, local_folder, make_private

pytestmark = pytest.mark.slow  # real supervisors, a second each
ENDLESS = "sleep 1000 & wait"


@pytest.mark.parametrize(
    ("script", "state", "cause"),
    [
        ("exit 0", JobState.SUCCEEDED, ""),
        ("exit 7", JobState.FAILED, "mpirun ended with 7: see the log"),
        ("kill -9 $$", JobState.FAILED, "mpirun ended with -9: see the log"),
        (
            "echo '[1,0]<stdout>:Asked to stop: saved after step 4; the same command resumes'",
            JobState.FAILED,
            "a rank was told to end (SIGTERM or SIGUSR1), not by 'inv jobs.stop': all saved after step 4 and left; "
            "was a host shut down?",
        ),
    ],
)
def test_a_job_s_end_is_what_happened(folder: Any, job_id: Any, script: Any, state: Any, cause: Any) -> None:
    """Ranks that left early because a signal told them to have not succeeded, though mpirun ends with 0."""
    paths = submit(folder, a_job(script, job_id))
    ended(paths)

    assert (state, cause) == (read_status(paths).state, read_status(paths).cause)


def test_nothing_that_a_job_starts_holds_a_lock_of_ours(folder: Any, job_id: Any, tmp_path: Path) -> None:
    """Neither its supervisor nor a rank nor what holds its host: the next submission waits for none of them."""
    paths = submit(folder, a_job(f"touch {tmp_path}/on; {ENDLESS}", job_id))
    wait_until(lambda: (tmp_path / "on").exists(), "the rank runs")
    supervisor = read_status(paths).supervisor
    of_it = [supervisor.pid, *map(int, subprocess.getoutput(f"pgrep -s {supervisor.pid}").split())]
    tagged = subprocess.getoutput(f"grep -lzxF DLAMI_JOB={job_id} /proc/[0-9]*/environ 2>/dev/null").split()
    of_it += [int(path.split("/")[2]) for path in tagged]
    assert 3 <= len(set(of_it))
    assert [] == [
        link for pid in of_it for link in open_files(pid) if link.startswith(str(tmp_path)) and "lock" in link
    ]
    with locked(folder, 0):
        pass
    stop(paths)


def open_files(pid: int) -> list[str]:
    found = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(one.readlink()))
    return found


def test_a_frozen_supervisor_is_seen_by_others_and_stops_its_job_all_the_same(folder: Any, job_id: Any) -> None:
    """SIGSTOP: it is woken, and ranks save and leave as ever."""
    paths = submit(folder, a_job("trap 'exit 0' USR1; " + ENDLESS, job_id))
    wait_until(lambda: read_status(paths).state is JobState.RUNNING, "it runs")
    supervisor = read_status(paths).supervisor
    os.kill(supervisor.pid, signal.SIGSTOP)
    wait_until(lambda: supervisor.is_stopped, "it is stopped")
    (warning,) = view(paths).status.warnings
    assert f"supervisor, process {supervisor.pid} on {supervisor.host}, is stopped (SIGSTOP or a debugger)" in warning

    assert (JobState.STOPPED, 0) == (stop(paths).state, read_status(paths).exit_code)
    assert () == view(paths).status.warnings


def test_of_two_resumes_at_once_one_is_refused(folder: Any, job_id: Any, tmp_path: Path) -> None:
    """Two operators, the same moment: one attempt runs."""
    ended(submit(folder, a_job("exit 1", job_id)))
    job = a_job(f"echo run >>{tmp_path}/ran; {ENDLESS}", job_id, attempt=2)
    words = [sys.executable, "-m", "cluster.jobs", "--shared", str(tmp_path), "submit"]
    done = []

    def resume() -> None:
        sent = json.dumps(dataclasses.asdict(job))
        done.append(subprocess.run(words, cwd=ROOT, input=sent, capture_output=True, text=True, timeout=PATIENCE_S))

    both = [threading.Thread(target=resume) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()

    assert [0, 2] == sorted(d.returncode for d in done), [d.stderr for d in done]
    assert "nothing to resume" in "".join(d.stderr for d in done)
    paths = find(folder, job_id)
    wait_until(lambda: (tmp_path / "ran").exists(), "it runs")
    stop(paths)
    assert "run\n" == (tmp_path / "ran").read_text()


def test_a_supervisor_dead_before_its_first_word_is_lost_and_the_job_can_go_on(folder: Any, job_id: Any) -> None:
    """Not `starting` for ever."""
    paths = submit(folder, a_job("exit 0", job_id))
    with locked(folder):  # which it needs for its first word
        announced = read_status(paths)
        assert JobState.STARTING is announced.state
        os.kill(announced.supervisor.pid, signal.SIGKILL)
        wait_until(lambda: not announced.supervisor.is_alive, "it is gone")
        lost = read_status(paths)

    assert JobState.LOST is lost.state
    assert "its supervisor is gone without a last word" in lost.cause
    submit(folder, a_job("exit 0", job_id, attempt=2))
    ended(paths)
    assert JobState.SUCCEEDED is read_status(paths).state


def test_resuming_a_lost_job_ends_what_its_ranks_still_do(folder: Any, job_id: Any, tmp_path: Path) -> None:
    """kill -9 of the supervisor leaves ranks that write; the next attempt begins when they are gone."""
    paths = submit(
        folder, a_job(f"echo $$ >{tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; {ENDLESS}", job_id)
    )
    wait_until(lambda: (tmp_path / "pid").exists(), "the rank runs")
    rank = process_id(int((tmp_path / "pid").read_text()))
    supervisor = read_status(paths).supervisor
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: not supervisor.is_alive, "the supervisor is gone")
    assert (JobState.LOST, True) == (read_status(paths).state, rank.is_alive)
    submit(folder, a_job(f"echo $DLAMI_ATTEMPT $DLAMI_JOB_FOLDER >{tmp_path}/env", job_id, attempt=2))

    assert not rank.is_alive
    assert 2 == read_lease(paths).attempt
    ended(paths)
    assert f"2 {paths.folder}\n" == (tmp_path / "env").read_text()


def test_an_old_supervisor_that_comes_back_finds_itself_fenced(folder: Any, job_id: Any, tmp_path: Path) -> None:
    """It ends what it runs, and writes nothing into the record of the attempt that came after it."""
    paths = submit(
        folder, a_job(f"echo $$ >{tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 1000", job_id)
    )
    wait_until(lambda: (tmp_path / "pid").exists(), "the rank runs")
    rank, old = process_id(int((tmp_path / "pid").read_text())), read_status(paths).supervisor
    os.kill(old.pid, signal.SIGSTOP)
    write_json(paths.lease, {"attempt": 2, "holder": dataclasses.asdict(this_process()), "renewed": 0.0})
    newer = write_status(paths, JobStatus(state=JobState.RUNNING, attempt=2, supervisor=this_process()))
    os.kill(old.pid, signal.SIGCONT)
    wait_until(lambda: not old.is_alive, "the old supervisor has left")

    assert not rank.is_alive
    assert newer == read_status(paths)
    assert "is not the one that may write any more" in (paths.logs(1) / "supervisor.log").read_text()
    with pytest.raises(Fenced):
        check_lease(paths, 1, old)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a file system that is full is mounted")
@pytest.mark.parametrize("script", ["exit 0", "exit 3"])
def test_a_job_that_ends_on_a_full_disk_is_over_and_says_so(tmp_path: Path, job_id: Any, script: Any) -> None:
    """The end is kept on this machine's own disk, read from there, and brought over when there is room again."""
    shared = tmp_path / "shared"
    shared.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "full", str(shared)], check=True)
    try:
        fill = f"cat /dev/zero >{shared}/fill 2>/dev/null; {script}"
        paths = submit(shared / "jobs", a_job(fill, job_id))
        ended(paths)
        said = read_status(paths)
        assert "running" == json.loads(paths.status.read_text())["state"]
        assert f"{paths.folder} cannot be written: No space left on device" in said.cause
        assert (JobState.SUCCEEDED if script == "exit 0" else JobState.FAILED) is said.state
        assert [] == [s for _, s in read_all(shared / "jobs").jobs if s.state.holds_hosts]
        with pytest.raises(NothingToDo):
            stop(paths)
        (shared / "fill").unlink()
        assert said == read_status(paths)
        assert said.state == json.loads(paths.status.read_text())["state"]
    finally:
        subprocess.run(["umount", "-l", str(shared)], check=True)


def test_a_job_that_is_removed_takes_its_copies_along(folder: Any, job_id: Any, tmp_path: Path) -> None:
    """On the own disk of each host of each attempt, and nothing else there; who does not answer is named."""
    disk = tmp_path / "disk"
    job = a_job("exit 0", job_id, environment={"DLAMI_LOCAL_DISK": str(disk)})
    paths = submit(folder, job)
    ended(paths)
    tags = {"DLAMI_JOB": job_id, "DLAMI_ATTEMPT": "1", "DLAMI_JOB_FOLDER": str(paths.folder), **job.spec.environment}
    disk.mkdir()
    copies = local_folder(tags)
    assert copies and (DISK, DISKS) == (copies_here.DISK, copies_here.DISKS)
    for name in (copies.name, "another"):
        make_private(copies.with_name(name))
        (copies.with_name(name) / "step-5.npz").touch()
    (attempt,) = read_attempts(paths)
    write_json(paths.attempts, {"attempts": [{**dataclasses.asdict(attempt), "hosts": ["localhost", "192.0.2.1"]}]})
    left = remove(folder, paths)

    assert ["another"] == [p.name for p in copies.parent.iterdir()]
    assert ["192.0.2.1"] == [line.partition(": ")[0] for line in left]


def test_hosts_are_taken_by_a_job_that_may_still_run(folder: Any, job_id: Any) -> None:
    """By one that runs, and by one whose state cannot be read while its supervisor holds the lease."""
    paths = submit(folder, a_job(ENDLESS, job_id))
    wait_until(lambda: read_status(paths).state is JobState.RUNNING, "it runs")
    supervisor = read_status(paths).supervisor
    with pytest.raises(ConfigError, match=rf"hosts taken by {job_id} \(running\): localhost"):
        submit(folder, a_job("exit 0", job_id + "b"))
    whole = paths.status.read_bytes()
    paths.status.write_bytes(b"")
    with pytest.raises(ConfigError, match=rf"hosts taken by {job_id} \(running\): localhost"):
        submit(folder, a_job("exit 0", job_id + "b"))
    assert "is damaged" in " ".join(read_status(paths).warnings)
    paths.status.write_bytes(whole)
    stop(paths)
    wait_until(lambda: not supervisor.is_alive, "its supervisor has left")
    second = submit(folder, a_job("exit 0", job_id + "b"))
    ended(second)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to be two users")
def test_two_users_share_a_folder_and_each_has_his_own_jobs(job_id: Any) -> None:
    """Each submits and sees; an environment is read by its user alone; only his own he can stop."""
    with open_folder() as shared, open_folder() as place:
        sources = copy_sources(place)
        shared_tree.make(str(shared))
        _two_users(python_of_all(sources, "cluster.jobs.master.stop"), sources, shared, job_id)


def _two_users(python: str, sources: Path, shared: Path, job_id: str) -> None:

    def jobs(uid: int, *words: str, job: object = None) -> "subprocess.CompletedProcess[str]":
        sent = json.dumps(dataclasses.asdict(job)) if job else None  # type: ignore[call-overload]
        return subprocess.run(
            [python, "-m", "cluster.jobs", "--shared", str(shared), *words],
            cwd=sources, user=uid, group=uid, extra_groups=[], input=sent, capture_output=True, text=True, timeout=PATIENCE_S,
            env={**os.environ, "HOME": str(shared), "TMPDIR": str(shared), "XDG_RUNTIME_DIR": "", "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip

    one, other = 65534, 65533
    mine = a_job("exit 0", job_id + "a", environment={"COLOUR": "blue"})
    theirs = a_job("exit 0", job_id + "b")
    first = jobs(one, "submit", job=mine)
    assert 0 == first.returncode, first.stderr
    ended(JobPaths(shared / "jobs" / mine.id))
    second = jobs(other, "submit", job=theirs)
    assert 0 == second.returncode, second.stderr
    ended(JobPaths(shared / "jobs" / theirs.id))

    listed = jobs(other, "list").stdout
    assert mine.id in listed
    assert theirs.id in listed
    assert "blue" not in listed
    assert "blue" in jobs(one, "show", mine.id).stdout
    assert theirs.id in jobs(other, "show", "last").stdout
    for words in (("stop", mine.id), ("remove", mine.id)):
        refused = jobs(other, *words)
        assert (2, True) == (refused.returncode, "'s job: only" in refused.stderr), refused.stderr
    again = jobs(other, "submit", job=changed(mine, attempt=2))
    assert (2, True) == (again.returncode, "can resume it" in again.stderr)
    assert 0 == jobs(one, "remove", mine.id).returncode

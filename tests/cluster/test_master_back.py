"""The master dies and comes back: its lost jobs go on by themselves, those that do not say why, and nobody writes twice."""

import dataclasses
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.client.client import JobsClient
from cluster.jobs.master.lost_jobs import LostJob, heal_lost
from cluster.jobs.master.submit import submit
from cluster.jobs.process import this_process
from cluster.jobs.record import Job, JobPaths, JobStatus, write_job
from cluster.jobs.records import read_attempts
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status, write_status
from cluster.ssh.fanout import Executor
from lab import lab as labs
from lab.record import Lab
from tests.cluster.flat_jobs import changed
from tests.cluster.jobs_here import a_job as a_job_here
from tests.cluster.lab_jobs import a_job, started
from tests.conftest import Inv, wait_for


@pytest.fixture
def jobs(reach: Executor, cluster: Cluster) -> Iterator[JobsClient]:
    """The jobs of the lab's cluster; none goes on afterwards."""
    yield JobsClient(reach, cluster)
    with Executor(cluster) as anew:  # the master may have been away
        left = JobsClient(anew, cluster)
        for job in left.list().jobs:
            if job.state.holds_hosts:
                left.stop(job.id)


def that_heals(job: Job, **more: Any) -> Job:
    return changed(job, heal=True, whole_np=job.np, whole_hosts=job.hosts, **more)


def test_lost_jobs_go_on_when_the_master_is_back(
    lab: Lab, jobs: JobsClient, reach: Executor, cluster: Cluster, inv: Inv
) -> None:
    """Its host boots, and the next attempt runs on all hosts, told to who is to be told; with --no-heal it stays lost."""
    healed = that_heals(a_job(reach, cluster, cluster.hosts[:3]), notify="sh -c 'cat >>/shared/told'")
    left = a_job(reach, cluster, cluster.hosts[3:])
    for job in (healed, left):
        started(jobs, reach, job)
    labs.crash(lab, lab.hosts[0])
    booted = time.monotonic()
    labs.heal(lab, lab.hosts[:1])

    def shown(job: Job) -> Any:
        return json.loads(inv("jobs.show", job.id, "--json").stdout or "{}")

    wait_for(lambda: (shown(healed).get("state"), shown(healed).get("attempt")) == ("running", 2), 240, "it goes on")
    print(f"from the master's boot to its next attempt: {time.monotonic() - booted:.1f} s")
    lease = json.loads((lab.shared / "jobs" / healed.id / "lease.json").read_text())
    assert 2 == lease["attempt"]
    with Executor(cluster) as anew:
        ranks = anew.run(healed.hosts, "pgrep -xc sleep || true")
        wait_for(
            lambda: all("4321" in r.text for r in anew.run(healed.hosts, "pgrep -ax sleep").values()), 60, "ranks run"
        )
    assert ranks
    told = [json.loads(line) for line in (lab.shared / "told").read_text().splitlines()]
    assert [("lost", healed.id)] == [(t["event"], t["job"]) for t in told if t["event"] == "lost"]
    assert "lost" == shown(left)["state"]
    assert "it was started with --no-heal" in shown(left)["cause"]


def test_who_has_no_way_to_the_hosts_is_told_so(
    lab: Lab, jobs: JobsClient, reach: Executor, cluster: Cluster, inv: Inv
) -> None:
    """A supervisor has no operator's agent: without a key of its own on the master the job stays lost, and says why."""
    job = that_heals(a_job(reach, cluster, cluster.hosts[:2]))
    started(jobs, reach, job)
    master = [cluster.hosts[0]]
    pid = jobs.show(job.id).status.supervisor
    assert pid
    reach.run(master, f"kill -9 {pid.pid}; mv .ssh/id_ed25519 .ssh/away; pkill -f ControlPersist; rm -rf /tmp/dlami-0")
    try:
        done = inv("jobs.heal")
        assert (1, True) == (done.returncode, "it refused our SSH key" in done.stdout), done.stdout + done.stderr
        assert "without the operator's agent" in jobs.show(job.id).status.cause
        assert JobState.LOST is jobs.show(job.id).state
    finally:
        reach.run(master, "mv .ssh/away .ssh/id_ed25519").check()
    assert f"{job.id} would go on" in inv("jobs.heal", "--dry-run").stdout


def lost_here(folder: Path, name: str, state: JobState = JobState.RUNNING, **changes: Any) -> JobPaths:
    """A job of this machine whose supervisor is gone."""
    paths = JobPaths(folder / name)
    paths.folder.mkdir(parents=True)
    write_job(paths, a_job_here("true", name, **changes))
    gone = dataclasses.replace(this_process(), started=1)
    write_status(paths, JobStatus(state=state, supervisor=gone))
    return paths


@pytest.mark.parametrize(
    ("state", "changes", "why"),
    [
        (JobState.RUNNING, {"heal": True}, ""),
        (JobState.HEALING, {"heal": True}, ""),
        (JobState.STARTING, {"heal": True}, ""),
        (JobState.RUNNING, {}, "it was started with --no-heal; 'inv jobs.resume j' goes on with it"),
        (JobState.STOPPING, {"heal": True}, "it was being stopped; 'inv jobs.stop j' ends what is left of it"),
    ],
)
def test_which_lost_jobs_go_on(state: JobState, changes: Any, why: str, tmp_path: Path) -> None:
    lost_here(tmp_path, "j", state, **changes)
    assert [LostJob(id="j", goes_on=not why, why=why)] == heal_lost(tmp_path, dry_run=True)


def test_nobody_s_job_is_taken_up_but_one_s_own_lost_ones(tmp_path: Path) -> None:
    """Another user's, one that has ended, one whose supervisor lives: left alone."""
    theirs = lost_here(tmp_path, "theirs", heal=True)
    os.chown(theirs.folder, 12345, -1) if os.getuid() == 0 else pytest.skip("needs root")
    lost_here(tmp_path, "over", JobState.FAILED, heal=True)
    alive = lost_here(tmp_path, "alive", heal=True)
    write_status(alive, JobStatus(state=JobState.RUNNING, supervisor=this_process()))
    assert [] == heal_lost(tmp_path, dry_run=True)


def test_another_master_s_jobs_are_left_to_it(tmp_path: Path) -> None:
    """Two clusters may keep their jobs in one folder; a successor by another name knows its own by their hosts."""
    for name, address in (("theirs", "192.0.2.7"), ("ours", "127.0.0.1")):
        paths = lost_here(tmp_path, name, heal=True, hosts=(Host(rank=0, address=address, slots=1),))
        elsewhere = dataclasses.replace(this_process(), host="another-master")
        write_status(paths, JobStatus(state=JobState.RUNNING, supervisor=elsewhere))
    assert ["ours"] == [one.id for one in heal_lost(tmp_path, dry_run=True)]


def test_what_stays_lost_says_so_once(tmp_path: Path) -> None:
    """In its record, and to who is told; a second look repeats nothing."""
    told = tmp_path / "told"
    lost_here(tmp_path / "jobs", "j", notify=f"sh -c 'cat >>{told}'")
    for _ in range(2):
        assert [False] == [one.goes_on for one in heal_lost(tmp_path / "jobs")]
    assert 1 == len(told.read_text().splitlines())
    assert "it was started with --no-heal" in json.loads(told.read_text())["text"]


RANK = """\
import signal, sys, time
def save(*_):
    print('Asked to stop: saved after step 7', flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
print('on', flush=True)
time.sleep(4321)
"""


def test_ranks_save_and_leave_before_their_host_goes(
    lab: Lab, jobs: JobsClient, reach: Executor, cluster: Cluster, inv: Inv
) -> None:
    """Told of one host's end, the job goes on without it; told of all hosts' end, it has stopped, and says what to do."""
    told = "sh -c 'cat >>/shared/told-of-notices'"
    job = that_heals(a_job(reach, cluster, cluster.hosts[:3], ("python3", "-c", RANK)), notify=told, min_np=2)
    jobs.submit(job)
    logs = lab.shared / "jobs" / job.id / "logs"

    def listening(attempt: int, ranks: int) -> bool:
        console = logs / f"attempt-{attempt}/console.log"
        return console.exists() and console.read_text().count(":on") == ranks

    try:
        wait_for(lambda: listening(1, 6), 90, "six ranks listen")
        assert not inv("lab.notice", 2, "--name", lab.name, "--kind", "spot").returncode
        wait_for(lambda: listening(2, 4), 120, "four ranks of the next attempt listen, on the hosts that stay")
        assert [h.address for h in cluster.hosts[:2]] == [h.address for h in jobs.show(job.id).job.hosts]
        assert 6 == (logs / "attempt-1/console.log").read_text().count("Asked to stop: saved after step 7")
        for host in lab.hosts[:2]:
            labs.notice(lab, host, "block", 100)
        wait_for(lambda: not jobs.show(job.id).state.is_going, 120, "it has ended")
    finally:
        for host in lab.hosts[:3]:
            labs.notice(lab, host, "none", 0)
    status = jobs.show(job.id).status
    assert JobState.STOPPED is status.state, status
    assert "'inv jobs.resume' goes on with it on new ones" in status.cause
    events = [json.loads(line) for line in (lab.shared / "told-of-notices").read_text().splitlines()]
    assert {cluster.hosts[n].address for n in range(3)} == {e["host"] for e in events if e["event"] == "notice"}


@pytest.mark.parametrize(("said", "heal", "state"), [
    ("stopping", True, JobState.LOST), ("stopping", False, JobState.STOPPED), ("running", True, JobState.STOPPED),
])  # fmt: skip
def test_a_shutdown_of_the_master_is_no_end_of_a_job_that_heals(
    said: str, heal: bool, state: JobState, folder: Path, job_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM from a systemd that goes down: it is taken up when the master is back; from anybody else it has stopped."""
    systemctl = tmp_path / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(f"#!/bin/sh\necho {said}\nexit 1\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{systemctl.parent}:{os.environ['PATH']}")
    paths = submit(folder, a_job_here("exec sleep 4321", job_id, heal=heal))
    wait_for(lambda: read_status(paths).state is JobState.RUNNING, 60, "it runs")
    supervisor = read_status(paths).supervisor
    assert supervisor
    wait_for(lambda: bool(read_attempts(paths)) and read_attempts(paths)[0].started is not None, 60, "mpirun runs")
    os.kill(supervisor.pid, signal.SIGTERM)
    wait_for(lambda: not supervisor.is_alive, 120, "its supervisor has ended")
    status = read_status(paths)
    assert state is status.state
    assert ("its master was shut down" in status.cause) == (said == "stopping")
    assert [heal] * (state is JobState.LOST) == [one.goes_on for one in heal_lost(folder, dry_run=True)]

"""Jobs on real hosts with small ranks, so that what happens to hosts can be tried many times: lost, busy, taken."""

import dataclasses
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cluster.errors import ConfigError
from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.jobs.client.client import JobsClient
from cluster.jobs.record import new_id
from cluster.jobs.state import JobState
from cluster.ssh.fanout import Executor
from cluster.ssh.tagged_processes import list_script
from lab import lab as labs
from lab.record import Lab
from tests.cluster.lab_jobs import ENDLESS, a_job, started
from tests.conftest import PATIENCE_S, Inv, wait_for


def ended(jobs: Any, job: Any, within_s: int = 120) -> Any:
    wait_for(lambda: not jobs.show(job.id).state.is_going, within_s, "the job has ended")
    return jobs.show(job.id).status


def test_a_host_that_mpirun_does_not_miss_is_missed_by_the_supervisor(
    lab: Lab, jobs: Any, reach: Executor, cluster: Cluster
) -> None:
    """A message to it is under way, so that its keepalive is silent: the job has failed, and says whose fault it is."""
    job = a_job(reach, cluster, cluster.hosts[:3], ("sh", "-c", "trap '' USR2; sleep 4321 & wait"))
    started(jobs, reach, job)
    labs.cut(lab, lab.hosts[2])
    tell = f"for p in $(pgrep -x mpirun); do grep -qz DLAMI_JOB={job.id} /proc/$p/environ && kill -USR2 $p; done"
    reach.run([cluster.master], tell).check()  # which passes it on to every rank
    status = ended(jobs, job, 200)

    assert JobState.FAILED is status.state
    lost = cluster.hosts[2].address
    assert (lost, f"host {lost} was lost in mid-run: it answered nothing for 12 s") == (status.host, status.cause)
    assert (f"{lost}: not looked at, it does not answer",) == status.left
    of_the_job = list_script("DLAMI_JOB", job.id)
    assert {""} == {r.text for r in reach.run(cluster.hosts[:2], of_the_job).check().values()}
    labs.heal(lab, lab.hosts[2:3])
    wait_for(
        lambda: {(True, "")} == {(r.ok, r.text) for r in reach.run(cluster.hosts[2:3], of_the_job).values()},
        PATIENCE_S,
        "the host is back, its ranks and its claim are gone",
    )


def test_a_host_of_another_cluster_file_s_job_is_taken_and_inv_kill_leaves_it_alone(
    lab: Lab, jobs: Any, reach: Executor, cluster: Cluster, tmp_path: Path
) -> Any:
    """Two shared folders, the same hosts: the second operator is told by the hosts themselves."""
    job = a_job(reach, cluster, cluster.hosts[:2])
    started(jobs, reach, job)
    other = tmp_path / "other"
    other.mkdir()
    (other / "hosts").write_text((cluster.folder / "hosts").read_text())
    settings = (cluster.folder / "cluster.toml").read_text()
    (other / "cluster.toml").write_text(settings.replace('shared = "/shared"', 'shared = "/shared/b"'))
    (lab.shared / "b").mkdir(exist_ok=True)
    assert "/shared/b" == load_cluster(str(other)).shared

    def inv(*words: Any) -> Any:
        environment = {**os.environ, "CLUSTER": str(other), "XDG_CACHE_HOME": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-m", "invoke", *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    refused = inv("train.resnet50", "--unchecked", "--hosts", "1-2", "--", "--synthetic", "--num-batches", "9")
    assert 2 == refused.returncode, refused.stderr
    assert f"hosts taken by {job.id} (user root): {cluster.hosts[1].address}" in refused.stderr
    for task, how in (("reboot", "--yes"), ("reboot", "--dry-run"), ("health", "--net"), ("health", "--deep")):
        refused = inv(task, how, "--hosts", "1-2")
        assert 2 == refused.returncode, refused
        assert f"{job.id} (user root) runs on {cluster.hosts[1].address}, as is seen there: " in refused.stderr
    for words in (("kill", "--yes"), ("kill", "--yes", "--all-mine")):
        left = inv(*words)
        assert "runs, not touched" in left.stdout
        assert "zero processes left" not in left.stdout
    assert jobs.show(job.id).state is JobState.RUNNING
    assert "stopped" == jobs.stop(job.id).state


def test_of_two_clusters_that_start_in_the_same_moment_one_has_the_hosts(
    lab: Lab, reach: Executor, cluster: Cluster
) -> None:
    """Two shared folders, two masters, hosts in common: one job runs, and of the other nothing is left anywhere."""
    (lab.shared / "b").mkdir(exist_ok=True)
    turned = [dataclasses.replace(h, rank=n) for n, h in enumerate(reversed(cluster.hosts))]
    other = dataclasses.replace(cluster, hosts=tuple(turned), shared="/shared/b")
    with Executor(other) as other_reach:
        both = [
            (JobsClient(reach, cluster), lab.shared / "jobs"),
            (JobsClient(other_reach, other), lab.shared / "b" / "jobs"),
        ]
        plans = [a_job(reach, one, one.hosts[:3], mpirun=ENDLESS) for one in (cluster, other)]
        for _ in range(2):
            wanted = [dataclasses.replace(job, id=new_id("small")) for job in plans]
            with ThreadPoolExecutor() as pool:
                tries = [pool.submit(jobs.submit, job) for (jobs, _), job in zip(both, wanted, strict=True)]
            refused = [str(e) for one in tries if isinstance(e := one.exception(), ConfigError)]
            assert 1 == len(refused), [one.exception() for one in tries]
            won = next(n for n, one in enumerate(tries) if one.exception() is None)
            winner, loser = wanted[won], wanted[1 - won]
            assert f"hosts taken by {winner.id} (user " in refused[0]
            assert not (both[1 - won][1] / loser.id).exists()
            assert [] == list(both[1 - won][1].glob(".new-*"))
            left = reach.run(cluster.hosts, list_script("DLAMI_JOB", loser.id)).check()
            assert {""} == {r.text for r in left.values()}
            assert JobState.STOPPED is both[won][0].stop(winner.id).state
            left = reach.run(cluster.hosts, list_script("DLAMI_JOB", winner.id)).check()
            assert {""} == {r.text for r in left.values()}


def test_the_end_of_the_master_is_not_called_a_running_job(
    lab: Lab, jobs: Any, reach: Executor, cluster: Cluster, inv: Inv
) -> None:
    """Who follows is told what is known: that the master is out of sight."""
    job = a_job(reach, cluster, cluster.hosts[:1])
    started(jobs, reach, job)
    following = subprocess.Popen(
        [sys.executable, "-m", "invoke", "jobs.logs", job.id, "--follow"],
        cwd=ROOT, text=True, env={**os.environ, "CLUSTER": f"lab:{lab.name}"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    follows = "pgrep -f '[c]luster.jobs .*logs.*--follow'"
    wait_for(lambda: reach.run([cluster.master], follows)[cluster.master].ok, 60, "the log is followed")
    labs.crash(lab, lab.hosts[0])
    assert following.stderr
    said = next((line for line in following.stderr if "the connection to the master broke" in line), "")
    labs.heal(lab, lab.hosts[:1])
    _, rest = following.communicate(timeout=PATIENCE_S)

    assert said and 1 == following.returncode
    assert f"{job.id}: lost" in rest
    wait_for(lambda: jobs.show(job.id).state is JobState.LOST, 60, "it is lost")


def test_a_damaged_record_stands_in_nobody_s_way(
    lab: Lab, jobs: Any, reach: Executor, cluster: Cluster, inv: Inv
) -> None:
    """Listed, trained and killed as without it, with its name; its own processes are not touched; it can be removed."""
    job = a_job(reach, cluster, cluster.hosts[:1])
    started(jobs, reach, job)
    state = lab.shared / "jobs" / job.id / "state.json"
    whole = state.read_bytes()
    state.write_bytes(b"")
    try:
        listed, shown, killed = inv("jobs.list"), inv("jobs.show", job.id), inv("kill", "--yes", "--all-mine")
        assert f"/shared/jobs/{job.id}/state.json is damaged" in shown.stdout, shown.stdout + shown.stderr
        assert (0, True) == (listed.returncode, f"{job.id}  running" in listed.stdout), listed.stdout
        assert (0, True) == (killed.returncode, "runs, not touched" in killed.stdout), killed.stderr
        assert "sleep 4321" in reach.run(job.hosts, list_script("DLAMI_JOB", job.id))[cluster.master].text
        assert "is active" in inv("jobs.remove", job.id, "--yes").stderr
        other = a_job(reach, cluster, cluster.hosts[2:3], mpirun=("true",))
        jobs.submit(other)
        assert JobState.SUCCEEDED is ended(jobs, other).state
    finally:
        state.write_bytes(whole)
    jobs.stop(job.id)
    state.write_bytes(b"")
    assert f"inv jobs.stop {job.id}" in inv("jobs.remove", job.id, "--yes").stderr, "it may have left something"
    assert 0 == inv("jobs.stop", job.id).returncode
    assert 0 == inv("jobs.remove", job.id, "--yes").returncode
    assert () == jobs.list().damaged

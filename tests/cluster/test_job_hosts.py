"""Jobs on real hosts with small ranks, so that what happens to hosts can be tried many times: lost, busy, taken."""

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.jobs.client import Jobs
from cluster.jobs.record import Job, JobPaths, jobs_folder, new_id, now
from cluster.jobs.state import JobState
from cluster.lab import lab as labs
from cluster.lab.record import Lab
from cluster.launch.facts import survey
from cluster.launch.mpirun import JobTags, command_line, plan_launch
from cluster.ssh.fanout import Reach
from cluster.ssh.tagged import list_script
from tests.conftest import PATIENCE_S, Inv, wait_for

ENDLESS = ("sleep", "4321")
TALK_OVER_MPI = (
    "import ctypes; mpi = ctypes.CDLL('libmpi.so.40', mode=ctypes.RTLD_GLOBAL); mpi.MPI_Init(0, 0); mpi.MPI_Finalize()"
)


def a_job(reach: Reach, cluster: Cluster, hosts: Any, command: Any = ENDLESS, mpirun: Any = None) -> Any:
    """A job whose ranks are one small program."""
    results, facts = survey(reach, cluster, cluster.hosts)
    results.check()
    launch = plan_launch(hosts, facts)
    job_id = new_id("small")
    paths = JobPaths(jobs_folder(cluster.shared) / job_id)
    words = command_line(
        launch,
        command,
        hostfile=str(paths.hostfile),
        workdir=str(paths.code),
        output=str(paths.rank_logs(1)),
        job=JobTags(id=job_id, folder=str(paths.folder)),
    )
    return Job(
        id=job_id, name="small", command=tuple(command), mpirun=tuple(mpirun or words), np=launch.np,
        hosts=launch.hosts, profile="tcp", environment={}, versions={}, revision="none", created=now(),
    )  # fmt: skip


def started(jobs: Any, reach: Reach, job: Any) -> None:
    """Submitted, and its ranks run on every host."""
    jobs.submit(job)
    wait_for(
        lambda: all(
            "sleep 4321" in r.text for r in reach.run(job.hosts, list_script("DLAMI_JOB", job.id)).check().values()
        ),
        60,
        "its ranks run on every host",
    )


def ended(jobs: Any, job: Any, within_s: int = 120) -> Any:
    wait_for(lambda: not jobs.show(job.id).state.is_going, within_s, "the job has ended")
    return jobs.show(job.id).status


def test_the_end_of_mpirun_s_daemon_is_not_a_lost_host(jobs: Any, reach: Reach, cluster: Cluster) -> None:
    """The host answers, and that is what is said."""
    job = a_job(reach, cluster, cluster.hosts[:2])
    started(jobs, reach, job)
    reach.run([cluster.hosts[1]], "pkill -9 -x orted").check()
    status = ended(jobs, job)

    assert JobState.FAILED is status.state
    assert f"mpirun's daemon on {cluster.hosts[1].address} is gone; the host answers" in status.cause
    assert () == status.left


def test_a_host_that_mpirun_does_not_miss_is_missed_by_the_supervisor(
    lab: Lab, jobs: Any, reach: Reach, cluster: Cluster
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


def test_a_job_whose_host_is_gone_has_not_succeeded(lab: Lab, jobs: Any, reach: Reach, cluster: Cluster) -> None:
    """mpirun may end with 0 all the same."""
    wait = "until [ -e go ]; do sleep 0.1; done"
    job = a_job(reach, cluster, cluster.hosts[1:3], mpirun=("sh", "-c", wait))
    folder = lab.shared / "jobs" / job.id
    wait_for(lambda: is_taken_on(jobs, job), 120, "the master reaches its hosts, one of which was cut off before")
    wait_for(lambda: jobs.show(job.id).state is JobState.RUNNING, 60, "it runs")
    wait_for(lambda: json.loads((folder / "lease.json").read_text())["renewed"] > since(folder), 60, "a look was had")
    labs.crash(lab, lab.hosts[2])
    (folder / "go").touch()
    status = ended(jobs, job)

    lost = cluster.hosts[2].address
    assert (JobState.FAILED, 0) == (status.state, status.exit_code)
    assert f"host {lost} was lost in mid-run: it does not answer; mpirun ended with 0 all the same" == status.cause


def is_taken_on(jobs: Any, job: Any) -> bool:
    """Submitted; False while a host does not answer the master."""
    try:
        jobs.submit(job)
    except ClusterError as e:
        assert "no ssh within" in str(e), e
        return False
    return True


def since(folder: Any) -> Any:
    """When the attempt's supervisor took its lease; it has looked at its hosts before it renews that."""
    return folder.joinpath("hosts").stat().st_mtime + 5


def test_a_host_of_another_cluster_file_s_job_is_taken_and_inv_kill_leaves_it_alone(
    lab: Lab, jobs: Any, reach: Reach, cluster: Cluster, tmp_path: Path
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
    assert f"hosts taken by {job.id}: its processes run on {cluster.hosts[1].address}" in refused.stderr
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
    lab: Lab, reach: Reach, cluster: Cluster
) -> None:
    """Two shared folders, two masters, hosts in common: one job runs, and of the other nothing is left anywhere."""
    (lab.shared / "b").mkdir(exist_ok=True)
    turned = [dataclasses.replace(h, rank=n) for n, h in enumerate(reversed(cluster.hosts))]
    other = dataclasses.replace(cluster, hosts=tuple(turned), shared="/shared/b")
    with Reach(other) as other_reach:
        both = [(Jobs(reach, cluster), lab.shared / "jobs"), (Jobs(other_reach, other), lab.shared / "b" / "jobs")]
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
    lab: Lab, jobs: Any, reach: Reach, cluster: Cluster, inv: Inv
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


def test_a_rank_told_to_end_is_no_success(lab: Lab, jobs: Any, reach: Reach, cluster: Cluster) -> None:
    """Ranks that leave in good order by SIGTERM, as at a host's shutdown: failed, and why; by 'inv jobs.stop': stopped."""
    leave = (
        "import signal,sys,time\ndef go(*_):\n print('Asked to stop: saved after step 7', flush=True); sys.exit(0)\n"
    )
    ranks = leave + "signal.signal(signal.SIGTERM, go); signal.signal(signal.SIGUSR1, go)\nprint('on', flush=True)\n"
    command = ("python3", "-c", ranks + "time.sleep(4321)")
    for end in ("TERM", "stop"):
        job = a_job(reach, cluster, cluster.hosts[1:2], command)
        jobs.submit(job)
        console = lab.shared / "jobs" / job.id / "logs/attempt-1/console.log"
        wait_for(lambda c=console, n=job.np: c.exists() and c.read_text().count(":on") == n, 60, "ranks listen")
        if end == "TERM":
            reach.run([cluster.hosts[1]], "pkill -TERM -f '^python3 -c import signal'").check()
            status = ended(jobs, job)
            assert (JobState.FAILED, 0) == (status.state, status.exit_code)
            assert "told to end (SIGTERM or SIGUSR1), not by 'inv jobs.stop'" in status.cause
        else:
            assert JobState.STOPPED is jobs.stop(job.id).state


def test_a_stopped_rank_is_ended_without_the_grace_of_saving(
    lab: Lab, jobs: Any, reach: Reach, cluster: Cluster
) -> None:
    """SIGSTOP of one rank: it answers nothing, and no other can save without it."""
    job = a_job(reach, cluster, cluster.hosts[:2], ("sh", "-c", "trap '' USR1; sleep 4321 & wait; wait"))
    started(jobs, reach, job)
    host = cluster.hosts[1]
    reach.run([host], f"kill -{signal.SIGSTOP.value} $(pgrep -x sleep | tail -1)").check()
    late = lab.shared / "late"
    timer = subprocess.Popen(["sh", "-c", f"sleep 25; touch {late}"])
    assert (JobState.STOPPED, ()) == ((stopped := jobs.stop(job.id)).state, stopped.status.left)
    assert not late.exists()
    timer.kill()
    timer.wait()


def test_a_job_that_has_succeeded_goes_on_only_if_that_is_meant(
    jobs: Any, reach: Reach, cluster: Cluster, inv: Inv
) -> None:
    """It is asked for; where nobody can answer, nothing starts."""
    words = ("python", "-m", "trainer.resnet50", "--job-dir", "x", "--synthetic", "--num-batches", "2")
    job = dataclasses.replace(a_job(reach, cluster, cluster.hosts[:1], mpirun=("true",)), command=words)
    jobs.submit(job)
    assert JobState.SUCCEEDED is ended(jobs, job).state
    asked = inv("jobs.resume", job.id)

    assert 2 == asked.returncode
    assert f"{job.id} has succeeded; go on with it all the same? There is no terminal to ask on" in asked.stderr
    assert 1 == jobs.show(job.id).status.attempt


def test_what_would_be_done_is_said_and_not_done(jobs: Any, reach: Reach, cluster: Cluster, inv: Inv) -> None:
    """--dry-run of stop and remove; --json of what stop has done."""
    job = a_job(reach, cluster, cluster.hosts[:1])
    started(jobs, reach, job)
    would = json.loads(inv("jobs.stop", job.id, "--dry-run", "--json").stdout)
    assert (job.id, "running") == (would["id"], would["state"])
    locks = reach.run([cluster.master], "find /proc/[0-9]*/fd -lname '*/.lock-*' 2>/dev/null || true")
    assert {""} == {r.text for r in locks.values()}, "no connection, orted or rank has inherited one"
    assert job.id in inv("jobs.stop", "last", "--dry-run").stdout
    assert jobs.show(job.id).state is JobState.RUNNING

    did = inv("jobs.stop", job.id, "--json")
    assert (0, "stopped", []) == (did.returncode, json.loads(did.stdout)["state"], json.loads(did.stdout)["left"])
    would_go = inv("jobs.remove", job.id, "--dry-run")
    assert (0, f"this would remove /shared/jobs/{job.id} with its checkpoints, and their copies on its hosts\n") == (
        would_go.returncode,
        would_go.stdout,
    )
    assert 2 == inv("jobs.remove", job.id).returncode
    assert f"removed {job.id}\n" == inv("jobs.remove", job.id, "--yes").stdout
    assert "no job" in inv("jobs.show", job.id).stderr


def test_a_damaged_record_stands_in_nobody_s_way(lab: Lab, jobs: Any, reach: Reach, cluster: Cluster, inv: Inv) -> None:
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


def test_a_host_without_room_for_mpi_is_named(jobs: Any, reach: Reach, cluster: Cluster) -> None:
    """A full /tmp, where Open MPI keeps its session: not what its inner parts say of that, but where, and what to do."""
    full = cluster.hosts[1]
    job = a_job(reach, cluster, cluster.hosts[:2], (sys.executable, "-c", TALK_OVER_MPI))
    fill = "mount -t tmpfs -o size=64k full /tmp && { cat /dev/zero >/tmp/fill; true; } 2>/dev/null"
    try:
        reach.run([full], fill).check()
        folder = jobs.submit(job)
        status = ended(jobs, job)
        asks = "from cluster.jobs import record, room; from pathlib import Path; "
        asks += f"print(*room.hosts_without_room(record.read_job(record.JobPaths(Path({folder!r})))))"
        seen = reach.run(
            [cluster.master], shlex.join(["cd", cluster.project]) + " && " + shlex.join([cluster.python, "-c", asks])
        )
    finally:
        reach.run([full], "umount -l /tmp")

    assert (JobState.FAILED, full.address, ()) == (status.state, status.host, status.left), status
    assert f"there is no room on {full}, where Open MPI keeps its files: inv run -- 'df /tmp /dev/shm'" == status.cause
    assert [full.address] == [r.text.strip() for r in seen.check().values()], "also where mpirun does not say it"

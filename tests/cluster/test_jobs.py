"""A job's life on real hosts, one attempt at a time: a real trainer, killed, crashed, detached from, stopped."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT, Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.tagged_processes import list_script
from lab import lab as labs
from lab.record import Lab
from tests.conftest import PATIENCE_S, Inv, wait_for

ENDLESS = (
    "--synthetic",
    "--model",
    "resnet18",
    "--image-size",
    "32",
    "--batch-size",
    "2",
    "--num-batches",
    "1000000",
    "--threads",
    "1",
    "--display-every",
    "5",
    "--checkpoint-every",
    "5",
)
START_S = 180  # for four ranks to import TensorFlow on two busy cores


@pytest.fixture(scope="module")
def job(session_lab: Lab) -> Iterator[Any]:
    """An endless training on the first two hosts, four ranks; its attempts are begun by the tests."""
    environment = {**os.environ, "CLUSTER": f"lab:{session_lab.name}"}
    words = [
        sys.executable,
        "-m",
        "invoke",
        "train.resnet50",
        "--hosts",
        "0-1",
        "--detach",
        "--no-heal",
        "--name",
        "life",
        "--",
        *ENDLESS,
    ]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    found = re.search(r"job (\S+-life-\S+): 4 ranks on 2 hosts", done.stderr)
    assert found, done.stdout + done.stderr
    yield found[1]
    subprocess.run(
        [sys.executable, "-m", "invoke", "jobs.stop", found[1]],
        cwd=ROOT,
        env=environment,
        timeout=PATIENCE_S,
        capture_output=True,
    )


def folder(lab: Lab, job: Any) -> Any:
    return lab.shared / "jobs" / job


def state(lab: Lab, job: Any) -> Any:
    return json.loads((folder(lab, job) / "state.json").read_text())


def console(lab: Lab, job: Any) -> Any:
    path = folder(lab, job) / f"logs/attempt-{state(lab, job)['attempt']}/console.log"
    return path.read_text() if path.exists() else ""


def trains(lab: Lab, job: Any) -> Any:
    """Some steps are done in the attempt that runs now."""
    assert state(lab, job)["state"] in ("starting", "running"), console(lab, job)[-3000:]
    return bool(re.search(r"\[1,0\]<stdout>: +\d+ +\d+\.\d", console(lab, job)))


def checkpoints(lab: Lab, job: Any) -> Any:
    """The steps there is a checkpoint of."""
    return [int(p.stem.split("-")[1]) for p in (folder(lab, job) / "checkpoints").glob("step-*.json")]


def processes_of(reach: Executor, hosts: Any, job: Any) -> Any:
    results = reach.run(hosts, list_script("DLAMI_JOB", job), limits=Limits(total_s=300)).check()
    return {h.rank: r.text.splitlines() for h, r in results.items()}


@pytest.mark.story
def test_a_killed_rank_ends_the_attempt_everywhere(
    lab: Lab, cluster: Cluster, reach: Executor, inv: Inv, job: Any
) -> None:
    """The second job on the same hosts is refused meanwhile; afterwards the state names rank, host and log."""
    wait_for(lambda: trains(lab, job), START_S, "the training prints its table")
    wait_for(lambda: checkpoints(lab, job), START_S, "the training has saved")
    refused = inv("train.resnet50", "--hosts", "1-2", "--", *ENDLESS)
    assert 2 == refused.returncode
    assert f"hosts taken by {job} (running): {cluster.hosts[1].address}" in refused.stderr
    table = inv("jobs.list").stdout
    assert job in table
    assert "running" in table

    ranks = [line.split()[0] for line in processes_of(reach, cluster.hosts, job)[1] if "trainer.resnet50" in line]
    assert 2 == len(ranks)
    reach.run([cluster.hosts[1]], f"kill -9 {ranks[0]}").check()
    wait_for(lambda: state(lab, job)["state"] == "failed", 120, "the attempt has ended")

    ended = state(lab, job)
    assert ended["rank"] in (2, 3)
    assert cluster.hosts[1].address == ended["host"]
    assert f"rank {ended['rank']} on {ended['host']} ended by signal 9 (Killed)" == ended["cause"]
    assert (lab.shared / Path(ended["log"]).relative_to("/shared")).exists()
    assert [] == ended["left"]
    assert {0: [], 1: [], 2: [], 3: []} == processes_of(reach, cluster.hosts, job)


@pytest.mark.story
def test_a_crashed_host_ends_the_attempt_on_the_others(
    lab: Lab, cluster: Cluster, reach: Executor, inv: Inv, job: Any
) -> None:
    """The next attempt goes on from the checkpoint, without healing as before; then its second host loses power."""
    before = max(checkpoints(lab, job))
    assert 0 == inv("jobs.resume", job, "--detach").returncode
    wait_for(lambda: trains(lab, job), START_S, "the second attempt trains")
    first = int(re.search(r"\[1,0\]<stdout>: +(\d+) +\d+\.\d", console(lab, job))[1])
    assert first >= before, "it does not begin again from 0"

    labs.crash(lab, lab.hosts[1])
    wait_for(lambda: state(lab, job)["state"] == "failed", 120, "the attempt has ended")

    ended = state(lab, job)
    assert 2 == ended["attempt"]
    assert ended["cause"].startswith(f"host {cluster.hosts[1].address} was lost in mid-run")  # whoever saw it first
    live = [h for h in cluster.hosts if h.rank != 1]
    assert {0: [], 2: [], 3: []} == processes_of(reach, live, job)
    assert all(cluster.hosts[1].address in line for line in ended["left"]), "it says where it could not look"


@pytest.mark.story
def test_a_lost_operator_loses_nothing_and_stop_ends_everything_of_the_job_alone(
    lab: Lab, cluster: Cluster, reach: Executor, inv: Inv, job: Any
) -> None:
    """Ctrl-C detaches; `jobs.stop` saves, ends all ranks on all hosts and touches nobody else's process."""
    assert 0 == inv("jobs.resume", job, "--detach", "--no-heal").returncode
    watching = subprocess.Popen(
        [sys.executable, "-m", "invoke", "jobs.logs", job, "--follow"],
        cwd=ROOT,
        text=True,
        env={**os.environ, "CLUSTER": f"lab:{lab.name}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for(lambda: trains(lab, job), START_S, "the third attempt trains")
    watching.send_signal(signal.SIGINT)
    said, detached = watching.communicate(timeout=PATIENCE_S)
    assert "Horovod size: 4" in said
    assert f"detached; the job goes on. Its log: inv jobs.logs -f {job}" in detached
    steps = console(lab, job).count("\n")
    wait_for(lambda: console(lab, job).count("\n") > steps, 120, "it trains on")

    bystander = "DLAMI_JOB=somebody-else setsid sleep 987 >/dev/null 2>&1 </dev/null &"
    reach.run([cluster.master], bystander).check()
    done = inv("jobs.stop", job)
    assert 0 == done.returncode, done.stderr
    assert f"{job}: stopped; no process of it is left on any host\n" == done.stdout
    assert {0: [], 1: [], 2: [], 3: []} == processes_of(reach, cluster.hosts, job)
    assert 1 == len(processes_of(reach, cluster.hosts, "somebody-else")[0])
    reach.run([cluster.master], "pkill -f 'sleep 987'")
    saved = re.search(r"Asked to stop: saved after step (\d+)", console(lab, job))
    assert saved, console(lab, job)[-2000:]
    assert int(saved[1]) + 1 == max(checkpoints(lab, job)), "what was trained until the stop is in a checkpoint"

    again = inv("jobs.stop", job)
    assert 0 == again.returncode
    assert f"{job} has ended (stopped), and nothing of it is left on any host" in again.stderr


@pytest.mark.story
def test_a_lost_supervisor_is_noticed_and_its_ranks_are_ended(
    lab: Lab, cluster: Cluster, reach: Executor, inv: Inv, job: Any
) -> None:
    """kill -9 of the supervisor: the job is lost, not "running"; its hosts stay taken until it is stopped."""
    assert 0 == inv("jobs.resume", job, "--detach", "--no-heal").returncode
    wait_for(
        lambda: state(lab, job)["supervisor"] and len(processes_of(reach, [cluster.hosts[1]], job)[1]) > 1,
        START_S,
        "ranks have started on the second host",
    )
    reach.run([cluster.master], f"kill -9 {state(lab, job)['supervisor']['pid']}").check()

    assert "lost" in inv("jobs.list").stdout
    assert 2 == inv("train.resnet50", "--hosts", "0", "--", *ENDLESS).returncode
    assert "no process of it is left" in inv("jobs.stop", job).stdout
    assert {0: [], 1: [], 2: [], 3: []} == processes_of(reach, cluster.hosts, job)


@pytest.mark.story
def test_resuming_looks_at_the_hosts_first(lab: Lab, cluster: Cluster, reach: Executor, inv: Inv, job: Any) -> None:
    """An unfit host is refused, or left out with its ranks; nothing was started by either."""
    before, odd = state(lab, job), cluster.hosts[1]
    reach.run(
        [odd],
        "mount -t tmpfs -o size=1m tmpfs /dev/shm; head -c 2000000 /dev/zero >/dev/shm/fill; [ -s /dev/shm/fill ]",
    ).check()
    try:
        refused = inv("jobs.resume", job, "--detach", "--no-heal")
        fewer = inv("jobs.resume", job, "--skip-unfit", "--dry-run")
        blind = inv("jobs.resume", job, "--unchecked", "--dry-run")
        asked = inv("jobs.resume", job, "--skip-unfit", "--dry-run", "--np", "4")
    finally:
        reach.run([odd], "umount /dev/shm").check()

    assert 2 == refused.returncode, refused.stdout + refused.stderr
    assert f"unfit  {odd.address} (rank 1): /dev/shm is full" in refused.stderr
    assert "nothing was started" in refused.stderr
    assert f"2 ranks train: {cluster.master.address} 0-1" in fewer.stderr
    assert ("-np 2 ", "-np 4 ") == tuple(re.search(r"-np \d+ ", d.stdout)[0] for d in (fewer, blind)), (
        fewer.stderr + blind.stderr
    )
    assert "4 ranks asked for, there are 2 slots on 1 host" in asked.stderr
    assert before == state(lab, job)


@pytest.mark.story
def test_what_a_job_was_is_on_record(lab: Lab, inv: Inv, job: Any) -> None:
    """Command, hosts, versions, revision, code: enough to do it again."""
    shown = json.loads(inv("jobs.show", job, "--json").stdout)

    assert "trainer.resnet50" in shown["command"]
    assert "0.28.1" == shown["versions"]["horovod"]
    assert shown["revision"]
    assert 4 == shown["np"]
    assert (folder(lab, job) / "code/trainer/resnet50/train_loop.py").exists()
    assert 2 == len((folder(lab, job) / "hosts").read_text().splitlines())
    assert shown["progress"]["step"] > 0
    assert 1_000_000 == shown["steps"], "its trainer says how many steps there are"
    scaling = inv("train.scaling", "--job", job, "--json")
    assert [4] == [point["ranks"] for point in json.loads(scaling.stdout)], scaling.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--np", "9", "--", *ENDLESS), "9 ranks asked for, there are 8 slots on 4 hosts"),
        (("--hosts", "7", "--", *ENDLESS), "ranks here are 0 to 3"),
        (("--", "--synthetic", "--model", "resnet51"), "resnet51"),
        (("--", "--num-epochs", "1", "--data-dir", "/shared/nowhere"), "/shared/nowhere"),
        (("--env", "AWS_SECRET_ACCESS_KEY=x", "--", *ENDLESS), "would be visible in the process list"),
        (("--profile", "ib", "--", *ENDLESS), "no launch profile 'ib'"),
        (("--resume", "nosuch", "--", *ENDLESS), "no job 'nosuch'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(lab: Lab, inv: Inv, words: Any, expected: Any) -> None:
    """Exit code 2, one sentence, no job folder."""
    before = set((lab.shared / "jobs").glob("*"))
    done = inv("train.resnet50", *words)

    assert 2 == done.returncode, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert set() == set((lab.shared / "jobs").glob("*")) - before

"""Jobs whose hosts die, on real hosts with a spare: who takes the place, what is remembered, what is waited for."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import load_cluster
from cluster.jobs.client.client import JobsClient
from cluster.jobs.state import JobState
from cluster.recovery.host_failures import read_memory
from cluster.ssh.fanout import Executor
from lab import lab as labs
from lab.record import Lab
from tests.cluster.flat_jobs import changed
from tests.cluster.lab_jobs import a_job, started
from tests.conftest import Inv, operator_of, wait_for

FIRST_ONLY = ("sh", "-c", '[ "$DLAMI_ATTEMPT" != 1 ] || sleep 4321')  # ranks of the first attempt go on for ever
TRAINING = (
    "--synthetic", "--model", "resnet18", "--image-size", "32", "--batch-size", "2", "--classes", "10",
    "--num-batches", "20", "--threads", "1", "--display-every", "1", "--checkpoint-every", "5",
)  # fmt: skip


@pytest.fixture(scope="module")
def spare_lab(lab_allowed: None) -> Iterator[Lab]:
    """Three hosts of one slot, and a spare."""
    name = f"p{os.getpid() % 10_000_000}"
    try:
        yield labs.up(name, 3, 1, spares=1)
    finally:
        if labs.is_anything_left(name):
            labs.down(name)


@pytest.fixture
def lab(spare_lab: Lab) -> Iterator[Lab]:
    """The same, healed after the test, without a job or a memory."""
    yield spare_lab
    labs.heal(spare_lab, spare_lab.hosts)
    cluster = load_cluster(f"lab:{spare_lab.name}")
    with Executor(cluster) as reach:
        jobs = JobsClient(reach, cluster)
        for job in jobs.list().jobs:
            if job.state.holds_hosts:
                jobs.stop(job.id)


@pytest.fixture
def inv(lab: Lab, tmp_path: Path) -> Inv:
    """The command line on these hosts."""
    return operator_of(lab, tmp_path)


@pytest.fixture
def reach(lab: Lab) -> Iterator[Executor]:
    """Connections to them."""
    with Executor(load_cluster(f"lab:{lab.name}")) as opened:
        yield opened


def shown(inv: Inv, job: str) -> Any:
    answer = inv("jobs.show", job, "--json")
    assert 0 == answer.returncode, answer.stderr
    return json.loads(answer.stdout)


def console(lab: Lab, job: str) -> str:
    logs = (lab.shared / "jobs" / job / "logs").glob("attempt-*/console.log")
    return "".join(path.read_text(errors="replace") for path in sorted(logs))


def test_a_spare_takes_a_dead_host_s_rank_and_the_training_ends_with_all_its_steps(lab: Lab, inv: Inv) -> None:
    """Unattended. The dead one's failure is remembered, once."""
    begun = inv("train.resnet50", "--hosts", "0-1", "--detach", "--", *TRAINING)
    found = re.search(r"job (\S+): 2 ranks on 2 hosts", begun.stderr)
    assert found, begun.stderr
    job = found[1]
    saved = lab.shared / "jobs" / job / "checkpoints"
    wait_for(lambda: any(saved.glob("step-*.json")), 240, "it has saved")
    labs.crash(lab, lab.hosts[1])
    wait_for(lambda: not JobState(shown(inv, job)["state"]).is_going, 400, "it has ended")

    addresses = [h.address for h in lab.hosts]
    said, ended = console(lab, job), shown(inv, job)
    assert "succeeded" == ended["state"], said[-3000:]
    assert [addresses[0], addresses[3]] == [h["address"] for h in ended["hosts"]]
    assert [0, 1] == [h["rank"] for h in ended["hosts"]]
    assert 20 == max(int(p.stem.split("-")[1]) for p in saved.glob("step-*.json")), sorted(saved.iterdir())
    assert f"spare {addresses[3]} takes the place of {addresses[1]}" in said
    assert ["host", "done"] == [a["what"] for a in ended["attempts"]]
    assert [addresses[1]] == [e.host for e in read_memory(lab.shared).entries]


ON_MASTER = """
import json, sys
from pathlib import Path
from cluster.hosts import Host
from cluster.jobs.claim import claim_hosts, give_back
from cluster.jobs.flat_record import from_flat
from cluster.jobs.record import Job
from cluster.typed import from_json
host = Host(**json.loads(sys.argv[2]))
job = from_json(Job, from_flat({"id": "of-elsewhere", "name": "small", "command": [], "np": 1, "hosts": [vars(host)], "profile": "tcp",
                                "versions": {}, "created": ""}))
claim_hosts(job, Path("/elsewhere")) if sys.argv[1] == "takes" else give_back(job)
"""


def test_a_spare_that_a_job_of_another_shared_folder_has_is_none(lab: Lab, reach: Executor) -> None:
    """The host itself says so, and another choice is made: here with fewer ranks. The spare stays who has it's."""
    cluster = load_cluster(f"lab:{lab.name}")
    master, dies, _, spare = cluster.hosts
    jobs = JobsClient(reach, cluster)

    def elsewhere(what: str) -> None:
        words = shlex.join([cluster.python, "-c", ON_MASTER, what, json.dumps(vars(spare))])
        reach.run([master], f"cd {cluster.project} && {words}").check()

    job = a_job(reach, cluster, (master, dies), FIRST_ONLY)
    terms = {"heal": True, "min_np": 1, "whole_np": job.np, "whole_hosts": job.hosts, "spares": (spare,)}
    elsewhere("takes")
    try:
        started(jobs, reach, changed(job, **terms))
        labs.crash(lab, lab.hosts[1])
        wait_for(lambda: not jobs.show(job.id).state.is_going, 180, "it has ended")
        assert JobState.SUCCEEDED is jobs.show(job.id).state, console(lab, job.id)[-3000:]
        assert [master.address] == [h.address for h in jobs.show(job.id).job.hosts]
        assert f"goes on without: {dies} does not answer" in console(lab, job.id)
        elsewhere("takes")
    finally:
        elsewhere("gives back")

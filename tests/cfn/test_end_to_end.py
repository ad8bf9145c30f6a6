"""An operator's whole story on the fake AWS and real lab hosts, by the tasks alone: create, train, lose a node
that the job itself has replaced, grow, delete."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.clusterfile import text
from cluster.hosts import read_hostfile
from cluster.inventory import ROOT, load_cluster
from cluster.jobs.client.client import JobsClient
from cluster.jobs.state import JobState
from cluster.ssh.fanout import Executor
from dlami.fake_aws import cluster_values
from lab import lab as labs
from lab.aws.driver import LabDriver
from tests.cluster.flat_jobs import changed
from tests.cluster.lab_jobs import a_job, started
from tests.conftest import wait_for

FIRST_ONLY = ("sh", "-c", '[ "$DLAMI_ATTEMPT" != 1 ] || sleep 4321')  # ranks of the first attempt go on for ever

TRAINING = (
    "--model resnet18 --image-size 32 --batch-size 4 --classes 10 --synthetic --num-batches 4 --display-every 1 --threads 1"
).split()


@pytest.fixture
def inv(driver: LabDriver, tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """The command line of an operator whose cluster lives in a folder of its own."""
    text.write(tmp_path / "cluster.toml", text.render({**cluster_values(driver.lab), "name": "story"}))

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        options = (
            ["--file", str(tmp_path / "cluster.toml")]
            if words[0].startswith("stack.") or words[0] == "hosts.write"
            else []
        )
        split = words.index("--") if "--" in words else len(words)
        return subprocess.run(
            [sys.executable, "-m", "invoke", *words[:split], *options, *words[split:]],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "CLUSTER": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        )

    return run


def done(answer: "subprocess.CompletedProcess[str]") -> str:
    assert answer.returncode == 0, answer.stderr[-3000:] + answer.stdout[-3000:]
    return answer.stdout


def test_a_cluster_trains_loses_a_node_goes_on_grows_and_ends(
    driver: LabDriver, inv: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    """stack.create to stack.delete for 1 + 2 nodes, with no code path of its own."""
    path = tmp_path / "cluster.toml"
    path.write_text(path.read_text().replace("workers = 3", "workers = 2"))
    done(inv("stack.create", "--yes"))
    done(inv("hosts.write"))
    before = [h.address for h in read_hostfile(tmp_path / "hosts")]
    assert 3 == len(before)
    assert 3 == len([json.loads(line) for line in done(inv("run", "--json", "--", "hostname")).splitlines()])

    done(inv("train.resnet50", "--no-heal", "--hosts", "0,2", "--np", "2", "--", *TRAINING))
    assert "succeeded" == json.loads(done(inv("jobs.list", "--all", "--json")))[0]["state"]

    after = _healed_by_replacement(driver, tmp_path, before)
    done(inv("hosts.write"))
    assert after == [h.address for h in read_hostfile(tmp_path / "hosts")]

    path.write_text(path.read_text().replace("workers = 2", "workers = 3"))
    running = set(driver.hosts)
    done(inv("stack.update", "--yes"))
    done(inv("hosts.write"))
    grown = [h.address for h in read_hostfile(tmp_path / "hosts")]
    assert (after, 4, True) == (grown[:3], len(grown), running <= set(driver.hosts))

    assert "kept: SharedFileSystem fs-" in done(inv("stack.delete", "--yes"))
    assert [] == driver.errors


def _healed_by_replacement(driver: LabDriver, folder: Path, before: list[str]) -> list[str]:
    """A job without a spare loses a node, and nobody is asked: the master's role has it replaced, its successor has its
    rank, and nobody else is moved. The addresses afterwards."""
    cluster = load_cluster(str(folder))
    assert "us-east-1/story" == cluster.stack
    role = f"[default]\nendpoint_url = {driver.url}\naws_access_key_id = fake\naws_secret_access_key = fake\n"
    with Executor(cluster) as reach:  # a lab host has no role of its own: the fake takes these
        reach.run([cluster.master], "mkdir -p ~/.aws && cat >~/.aws/config", stdin=role.encode()).check()
        jobs = JobsClient(reach, cluster)
        job = a_job(reach, cluster, cluster.hosts[:2], FIRST_ONLY)
        terms = {"heal": True, "whole_np": job.np, "whole_hosts": job.hosts, "stack": cluster.stack}
        started(jobs, reach, changed(job, **terms))
        dead = cluster.hosts[1]
        host = next(h for h in driver.hosts.values() if h.address == dead.address)
        labs.crash(driver.lab, host)  # and nobody tells EC2
        wait_for(lambda: not jobs.show(job.id).state.is_going, 400, "it has ended")
        ended = jobs.show(job.id)

    console = "".join(p.read_text() for p in sorted((driver.lab.shared / "jobs" / job.id).glob("logs/*/console.log")))
    assert JobState.SUCCEEDED is ended.state, console
    assert f"waits: too few hosts: {dead} does not answer" in console
    master, successor = (h.address for h in ended.job.hosts)
    assert (before[0], True) == (master, successor not in before)
    assert f"its successor {successor} has the place of {dead}" in console
    return [master, successor, *before[2:]]

"""Fixtures of jobs, on a lab's hosts and on this machine alone."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.jobs.claim import NAME_VARIABLE
from cluster.jobs.cleanup import sweep
from cluster.jobs.client.client import JobsClient
from cluster.jobs.records import read_all
from cluster.ssh.fanout import Executor
from lab.record import Lab
from tests import fake_s3
from tests.cluster.jobs_here import wait_until
from tests.cluster.lab_s3 import BUCKET
from tests.cluster.others_programs import ACCELERATE, KEPT, MPI4PY, pip
from tests.cluster.own_programs import STEPS, Own
from tests.conftest import PATIENCE_S


@pytest.fixture
def jobs(reach: Executor, cluster: Cluster) -> Iterator[Any]:
    """The jobs of the lab's cluster; none goes on afterwards."""
    made = JobsClient(reach, cluster)
    yield made
    for job in made.list().jobs:
        if job.state.holds_hosts:
            made.stop(job.id)


@pytest.fixture
def here(tmp_path: Path) -> Cluster:
    """This machine alone."""
    (tmp_path / "hosts").write_text("localhost slots=1\n")
    (tmp_path / "cluster.toml").write_text(f'shared = "{tmp_path}"\n')
    return load_cluster(str(tmp_path))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The jobs' folder; nothing of its jobs runs afterwards, or is in the way of another test's."""
    made = tmp_path / "jobs"
    monkeypatch.setenv(NAME_VARIABLE, f"dlami-{os.getpid()}-{tmp_path.name}"[:100])
    yield made
    for job, status in read_all(made).jobs:
        if status.supervisor and status.supervisor.is_alive and status.supervisor.pid != os.getpid():
            os.kill(status.supervisor.pid, signal.SIGTERM)
            wait_until(lambda one=status.supervisor: not one.is_alive, "its supervisor is gone")
        sweep(job.hosts, job.id, grace_s=1)


@pytest.fixture
def job_id(request: pytest.FixtureRequest) -> str:
    return f"here-{os.getpid()}-{abs(hash(request.node.name)) % 10**8}"


@pytest.fixture
def s3(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client, its bucket empty at first; the hosts' credentials are in their environment's file."""
    boto3 = pytest.importorskip("boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with fake_s3.serving(lab.bridge_address) as url:
        client = boto3.client("s3", endpoint_url=url)
        client.create_bucket(Bucket=BUCKET)
        client.url = url
        yield client


@pytest.fixture
def hosts(cluster: Cluster, reach: Executor) -> Iterator[Any]:
    """The lab's hosts, with a role's credentials where boto3 looks for them."""
    reach.run(
        cluster.hosts,
        "rm -rf /root/data /shared/data; mkdir -p /root/.aws && printf '[default]\\naws_access_key_id=testing\\naws_secret_access_key=testing\\n"
        "region=us-east-1\\n' >/root/.aws/credentials",
    ).check()
    yield cluster.hosts
    reach.run(cluster.hosts, "rm -rf /root/.aws /root/data /shared/data")


@pytest.fixture(scope="module")
def own(session_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    """`dlami` as an operator types it in a folder of his own; `own("train.run", "--", "hostname")`."""
    environment = {
        **os.environ, "CLUSTER": f"lab:{session_lab.name}", "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
    }  # fmt: skip

    def run(*words: object, timeout: float = PATIENCE_S) -> "subprocess.CompletedProcess[str]":
        bare = ["--no-code"] if words[0] == "train.run" else []
        typed = [sys.executable, "-m", "dlami.program", *map(str, [words[0], *bare, *words[1:]])]
        return subprocess.run(typed, cwd="/", capture_output=True, text=True, timeout=timeout, env=environment)

    (session_lab.shared / "own").mkdir(exist_ok=True)
    (session_lab.shared / "own/steps.py").write_text(STEPS)
    yield run
    for job in json.loads(run("jobs.list", "--json").stdout):
        run("jobs.stop", job["id"])


@pytest.fixture(scope="module")
def mpi4py(session_lab: Lab) -> str:
    """Where the hosts have mpi4py's package, its own tests and its demos; skipped where they cannot be had."""
    kept = KEPT / MPI4PY
    if not kept.exists():
        new = kept.with_name(f".{MPI4PY}-{os.getpid()}")
        pip("install", "--no-deps", "--target", str(new / "lib"), MPI4PY)
        pip("download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", str(new), MPI4PY)
        with tarfile.open(next(new.glob("*.tar.gz"))) as archive:
            archive.extractall(new, filter="data")
        next(new.glob("mpi4py-*/")).rename(new / "source")
        new.rename(kept)
    shutil.copytree(kept, session_lab.shared / "mpi4py", dirs_exist_ok=True)
    return "/shared/mpi4py"


@pytest.fixture
def accelerate(lab: Lab) -> str:
    """Where the hosts have Accelerate's package; skipped where it cannot be had."""
    kept = KEPT / ACCELERATE[0]
    if not kept.exists():
        pip("install", "--no-deps", "--target", str(kept), *ACCELERATE)
    shutil.copytree(kept, lab.shared / "accelerate", dirs_exist_ok=True)
    return "/shared/accelerate"

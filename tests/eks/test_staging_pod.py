"""What a staging's pods run, as processes against an S3: the parts of all indexes together are the data, once."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.hosts import Host
from cluster.inventory import ROOT
from cluster.ssh.onhost.frame import Frames
from cluster.stage.stage import how_it_went, request_of
from eks.staging import staging_job
from tests.conftest import PATIENCE_S
from tests.eks.clusters import cluster
from tests.eks.objects import KEYS, five_objects

pytestmark = pytest.mark.slow


@pytest.fixture
def s3() -> Iterator[str]:
    """The address of one with five objects."""
    with five_objects("127.0.0.1") as url:
        yield url


def test_the_pods_of_a_job_bring_a_part_each(s3: str, tmp_path: Path) -> None:
    """With the environment and the command of the Job's own document; each says how it went in a frame of its log."""
    of = cluster("a", shared=str(tmp_path))
    job = staging_job(of, request_of("s3://bucket/in", f"{tmp_path}/in", endpoint=s3), pods=2)
    container = job.documents[0]["spec"]["template"]["spec"]["containers"][0]
    assert job.pods == 2 and container["command"][1:] == ["-m", "eks.staging_pod"]
    own = {one["name"]: one["value"] for one in container["env"]}
    moved = []
    for index in range(2):
        environment = {**os.environ, **KEYS, **own, "JOB_COMPLETION_INDEX": str(index)}
        command = [sys.executable, *container["command"][1:]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=PATIENCE_S, env=environment)
        assert 0 == done.returncode, done.stderr
        staged = how_it_went(Host(rank=index, address="node", slots=1), Frames().feed(done.stdout), "it said nothing")
        assert staged.error is None
        moved.append(staged.said["files"])

    assert [3, 2] == moved
    assert {str(n): bytes([n]) * 1000 for n in range(5)} == {
        p.name: p.read_bytes() for p in (tmp_path / "in").iterdir()
    }

"""A bucket that is filled before there is a cluster: every step of it on this machine alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from cluster.inventory import ROOT
from tests import fake_s3
from tests.conftest import PATIENCE_S

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 with an empty bucket, on this machine."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with fake_s3.serving() as address:
        boto3.client("s3", endpoint_url=address).create_bucket(Bucket="bucket")
        yield address


def test_a_bucket_is_filled_from_a_machine_that_has_no_cluster(s3: str, tmp_path: Path) -> None:
    """A hostfile of one line makes this machine a cluster of one; docs/maskrcnn.md has the same commands. What a node
    stages later is the set that was made here."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "hosts").write_text("localhost slots=1\n")
    environment = {**os.environ, **KEYS, "CLUSTER": str(here), "AWS_ENDPOINT_URL": s3}

    def inv(*words: object) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "invoke", *map(str, words)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert 0 == done.returncode, done.stdout + done.stderr
        return done.stdout

    inv("data.sample", "--coco", "--out", here / "coco", "--", "--train", 3, "--val", 1)
    inv("data.bundle", "--folder", here / "coco", "--out", here / "up/coco.tar")
    assert "localhost  1 moved" in inv("stage", here / "up", "s3://bucket/data", "--upload")
    inv("stage", "s3://bucket/data", here / "node", "--untar")

    for made in (here / "coco").rglob("*"):
        staged = here / "node/coco" / made.relative_to(here / "coco")
        assert made.is_dir() or made.read_bytes() == staged.read_bytes()
    checked = subprocess.run(
        [sys.executable, "-m", "trainer.coco.bundle", here / "node/coco"], cwd=ROOT, timeout=PATIENCE_S
    )
    assert 0 == checked.returncode

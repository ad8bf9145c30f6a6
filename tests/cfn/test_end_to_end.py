"""An operator's whole story on the fake AWS and real lab hosts, by the tasks alone: create, train, lose a node, replace, resume, grow, delete."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cfn.clusterfile import text
from cfn.lab_aws import cluster_values
from cluster.hosts import read_hostfile
from cluster.inventory import ROOT
from cluster.lab.aws.driver import LabDriver

TRAINING = (
    "--model",
    "resnet18",
    "--image-size",
    "32",
    "--batch-size",
    "4",
    "--classes",
    "10",
    "--synthetic",
    "--num-batches",
    "40",
    "--checkpoint-every",
    "5",
    "--display-every",
    "5",
    "--threads",
    "1",
)


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
            timeout=300,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "CLUSTER": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        )

    return run


def done(answer: "subprocess.CompletedProcess[str]") -> str:
    assert answer.returncode == 0, answer.stderr[-3000:] + answer.stdout[-3000:]
    return answer.stdout


@pytest.mark.timeout(600)
def test_a_cluster_trains_loses_a_node_goes_on_grows_and_ends(
    driver: LabDriver, inv: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    """stack.create to stack.delete for 1 + 3 nodes, with no code path of its own."""
    done(inv("stack.create", "--yes"))
    done(inv("hosts.write"))
    before = [h.address for h in read_hostfile(tmp_path / "hosts")]
    assert 4 == len(before)
    assert 4 == len([json.loads(line) for line in done(inv("run", "--json", "--", "hostname")).splitlines()])

    done(inv("train.resnet50", "--detach", "--np", "4", "--", *TRAINING))
    _until(lambda: any(driver.lab.shared.glob("jobs/*/checkpoints/step-*.json")), 150, "no checkpoint")
    done(inv("lab.crash", before[2], "--name", driver.lab.name))
    _until(
        lambda: json.loads(done(inv("jobs.list", "--all", "--json")))[0]["state"] in ("failed", "lost"),
        120,
        "the job did not fail",
    )

    done(inv("stack.replace", "2", "--yes"))
    done(inv("hosts.write"))
    after = [h.address for h in read_hostfile(tmp_path / "hosts")]
    assert [before[n] for n in (0, 1, 3)] == [after[n] for n in (0, 1, 3)]
    assert "Resuming after step " in done(inv("jobs.resume", "last"))
    assert "succeeded" == json.loads(done(inv("jobs.list", "--all", "--json")))[0]["state"]

    path = tmp_path / "cluster.toml"
    path.write_text(path.read_text().replace("workers = 3", "workers = 5"))
    running = set(driver.hosts)
    done(inv("stack.update", "--yes"))
    done(inv("hosts.write"))
    grown = [h.address for h in read_hostfile(tmp_path / "hosts")]
    assert (after, 6, True) == (grown[:4], len(grown), running <= set(driver.hosts))

    assert "kept: SharedFileSystem fs-" in done(inv("stack.delete", "--yes"))
    assert [] == driver.errors


def _until(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.5)

"""Speed, curves and a conversion shared by hosts, with the operator's own commands on a lab."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from lab.record import Lab
from tests.conftest import Inv

SMALL = ("--model", "resnet18", "--image-size", "32", "--batch-size", "4", "--threads", "1")
FLAGS = ("--", "--synthetic", *SMALL, "--num-batches", "6", "--display-every", "1")


@pytest.fixture(scope="module")
def scaled(session_inv: Inv) -> Any:
    """What the scaling report said after training on one and on two ranks, as JSON, and the jobs it trained."""
    done = session_inv("train.scaling", "--json", "--np", "1,2", "--hosts", "1,2", *FLAGS, timeout=1500)
    assert 0 == done.returncode, done.stdout + done.stderr
    jobs = [j["id"] for j in json.loads(session_inv("jobs.list", "--all", "--json").stdout) if "-scaling-" in j["id"]]
    return done, jobs


def test_scaling_trains_on_each_number_of_ranks_and_reports(scaled: Any, lab: Lab) -> None:
    """A record per number, the first of them the unit; what the trainings print is no part of it, nor the picture's place."""
    done, jobs = scaled

    assert 2 == len(jobs)
    report = json.loads(done.stdout)
    assert [1, 2] == [one["ranks"] for one in report]
    assert 1.0 == report[0]["efficiency"]
    assert 2 == done.stderr.count("Finished in")
    assert "/shared/jobs/scaling.png" in done.stderr
    assert (lab.shared / "jobs/scaling.png").read_bytes().startswith(b"\x89PNG")


def test_the_benchmark_runs_as_a_job_over_hosts(inv: Inv) -> None:
    """tf_cnn_benchmarks' lines, the mean over all ranks and their total."""
    done = inv(
        "train.benchmark",
        "--hosts",
        "0,3",
        "--np",
        "3",
        "--",
        *SMALL,
        "--num-batches",
        "4",
        "--num-warmup-batches",
        "1",
        "--display-every",
        "2",
        timeout=1500,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert re.findall(r"^(\d+)\timages/sec: [\d.]+ \+/- [\d.]+ \(jitter = [\d.]+\)\t[\d.]+$", done.stdout, re.M) == [
        "1",
        "2",
        "4",
    ]
    assert re.search(r"^mean images/sec per rank: [\d.]+ \+/- [\d.]+ over 3 ranks$", done.stdout, re.M)
    assert re.search(r"^total images/sec: [\d.]+ \+/- [\d.]+$", done.stdout, re.M)


def test_hosts_share_a_conversion(inv: Inv, lab: Lab, data: Path) -> None:
    """More ranks than shards: each file is accounted for once, the manifest is whole, nothing else is left there."""
    shutil.copytree(data / "imagenet-mini", lab.shared / "to-share")
    before = set(lab.shared.glob("jobs/*-imagenet-*/job.json"))
    done = inv(
        "data.imagenet",
        "--raw",
        "/shared/to-share",
        "--out",
        "/shared/by-hosts",
        "--hosts",
        "0-2",
        "--",
        "--shorter-side",
        "32",
        "--train-shards",
        "1",
        "--validation-shards",
        "1",
        timeout=1500,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "157 files: 157 written to /shared/by-hosts, 0 rejected" in done.stdout
    (job,) = set(lab.shared.glob("jobs/*-imagenet-*/job.json")) - before
    assert 3 == json.loads(job.read_text())["plan"]["np"], "one rank per host looks for the files"
    assert 3 == len(list((lab.shared / "by-hosts").iterdir()))
    checked = inv("data.verify", "/shared/by-hosts", "--decode")
    assert 0 == checked.returncode, checked.stdout + checked.stderr
    refused = inv("data.imagenet", "--raw", "/shared/to-share", "--out", "/shared/by-hosts", "--hosts", "0-2")
    assert 2 == refused.returncode and "already prepared" in refused.stderr

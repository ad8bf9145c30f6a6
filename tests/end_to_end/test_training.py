"""From raw JPEGs to an evaluated model over two hosts, with the operator's own commands."""

import json
import re
import shutil
from pathlib import Path

from cluster.inventory import Cluster
from lab.record import Lab
from tests.conftest import Inv


def looks_as_the_references(said: str) -> None:
    """The table of steps and the line of the evaluation."""
    assert "Horovod size: 2" in said
    assert re.search(r"^ *Step Epoch +Speed +Loss FinLoss +LR$", said, re.MULTILINE)
    assert re.search(r"^ *1 +0\.\d +\d+\.\d +\d+\.\d{3} +\d+\.\d{3} +0\.\d{5}$", said, re.MULTILINE)
    assert "Finished in " in said
    assert re.search(r"^ *step +epoch +top1 +top5 +loss +checkpoint_time\(UTC\)$", said, re.MULTILINE)
    assert re.search(
        r"^ *\d+ +1\.0 +\d+\.\d+ +\d+\.\d+ +\d+\.\d+ +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d$", said, re.MULTILINE
    )


def left_a_whole_folder(lab: Lab, inv: Inv, judged: int) -> None:
    """Each rank's log, curves, and an evaluation of this many images at the end."""
    job = lab.shared / "jobs" / json.loads(inv("jobs.show", "mini", "--json").stdout)["id"]
    ranks = sorted(p.name for p in (job / "logs/attempt-1/ranks").glob("*/rank.*"))
    assert ["rank.0", "rank.1"] == ranks
    assert list((job / "tensorboard").iterdir())
    evaluated = json.loads((job / "metrics.jsonl").read_text().splitlines()[-1])
    assert ("eval", judged) == (evaluated["kind"], evaluated["images"])


def test_imagenet_folder_to_evaluation_over_two_hosts(lab: Lab, cluster: Cluster, inv: Inv, data: Path) -> None:
    """Every image is accounted for, both hosts train, the table and the evaluation line are the reference's."""
    raw = lab.shared / "raw"
    shutil.copytree(data / "imagenet-mini", raw)
    images = sum(1 for _ in raw.rglob("*.JPEG"))

    shards = "--train-shards 5 --validation-shards 3".split()
    packed = inv("data.imagenet", "--raw", "/shared/raw", "--out", "/shared/shards", "--", *shards, timeout=1500)
    assert 0 == packed.returncode, packed.stderr
    manifest = json.loads((lab.shared / "shards/manifest.json").read_text())
    assert images == manifest["written"] == sum(s["examples"] for s in manifest["splits"].values())

    words = "--data-dir /shared/shards --model resnet18 --image-size 32 --batch-size 4 --num-epochs 1 --eval --display-every 2"
    seats = ("--np", "2", "--hosts", "0,2", "--name", "mini")
    done = inv("train.resnet50", *seats, "--", *words.split(), "--threads", "1", timeout=1500)
    assert 0 == done.returncode, done.stdout + done.stderr
    looks_as_the_references(done.stdout)
    left_a_whole_folder(lab, inv, manifest["splits"]["validation"]["examples"])


def test_resnet50_at_224_pixels_on_a_host(four_inv: Inv) -> None:
    """The reference's network at its size, on synthetic images: the table is printed from the first step."""
    words = "--synthetic --model resnet50 --image-size 224 --batch-size 1 --num-batches 2 --display-every 1 --threads 1"
    done = four_inv("train.resnet50", "--hosts", "2", "--np", "1", "--name", "full", "--", *words.split(), timeout=1500)

    assert 0 == done.returncode, done.stdout + done.stderr
    table = re.findall(r"^ *(\d+) +\d+\.\d +\d+\.\d +\d+\.\d{3} +\d+\.\d{3} +\d\.\d{5}$", done.stdout, re.MULTILINE)
    assert {"0", "1"} <= set(table)

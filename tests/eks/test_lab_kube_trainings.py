"""What `inv eks.train.*` renders, executed by the lab's driver on pods: the same losses as `inv train.*` on bare hosts,
also when a worker and the launcher are killed on the way."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.eks import image
from cluster.eks.document import read, text
from cluster.inventory import ROOT
from cluster.lab import lab as labs
from cluster.lab.record import Lab
from tests.conftest import Inv, operator_of, wait_for
from tests.eks.operators import LIMIT_S, Operator, dlami, operator_of_pods
from tests.eks.pods import IMAGE_VARIABLE, NAMESPACE
from tests.trainer_maskrcnn.helpers import REDUCED
from trainer.coco.sample import write_sample

pytestmark = pytest.mark.long
RESNET = (
    *("--synthetic", "--deterministic", "--model", "resnet18", "--image-size", "32", "--batch-size", "2"),
    *("--classes", "10", "--threads", "1", "--display-every", "1"),
)
MASKRCNN = (
    *("--threads", "1", *REDUCED, "TRAIN.LOG_PERIOD=1", "TRAIN.MAX_STEPS=4", "TRAIN.STEPS_PER_EPOCH=4"),
    *("TRAIN.WARMUP=2", "TRAIN.EVAL_PERIOD=0", "TRAIN.EVAL_AT_END=False"),
)
BENCHMARK = (
    *("--model", "resnet18", "--image-size", "32", "--batch-size", "4", "--threads", "1", "--num-batches", "4"),
    *("--num-warmup-batches", "1", "--display-every", "1"),
)
PROGRAM = """\
import numpy as np
import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
mine = tf.constant(np.random.default_rng(hvd.rank()).standard_normal(1000), tf.float32)
total = hvd.allreduce(mine, op=hvd.Sum)
if hvd.rank() == 0:
    print("ranks", hvd.size(), "sum", float(tf.reduce_sum(total)).hex(), flush=True)
"""


@pytest.fixture(scope="module")
def operator(lab_allowed: None, kube: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with operator_of_pods(kube.kubectl, tmp_path_factory.mktemp("eks"), f"e{os.getpid() % 10_000_000}") as made:
        yield made


@pytest.fixture(scope="module")
def bare(lab_allowed: None) -> Iterator[Lab]:
    """Two hosts of one slot, as the pods are."""
    name = f"h{os.getpid() % 10_000_000}"
    try:
        yield labs.up(name, num_hosts=2, slots=1)
    finally:
        if labs.is_anything_left(name):
            labs.down(name)


@pytest.fixture(scope="module")
def inv(bare: Lab, tmp_path_factory: pytest.TempPathFactory) -> Inv:
    return operator_of(bare, tmp_path_factory.mktemp("cache"))


def losses(job: Path) -> dict[int, dict[str, float]]:
    """Step -> every figure of the training that does not depend on time."""
    rows = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    return {
        r["step"]: {k: v for k, v in r.items() if "loss" in k or k in ("lr", "top1")}
        for r in rows
        if r["kind"] == "train"
    }


def both(
    inv: Inv, bare: Lab, operator: Operator, task: str, words: tuple[str, ...], *pythons: Path
) -> tuple[Path, Path, str, str]:
    """Folders and outputs of the same training on bare hosts and on pods, by interpreters of their own if given."""
    on_hosts, on_pods = (("--python", str(one)) for one in pythons) if pythons else ((), ())
    there = inv(f"train.{task}", "--np", "2", *on_hosts, "--", *words, timeout=LIMIT_S)
    assert 0 == there.returncode, there.stdout + there.stderr
    here = operator(f"eks.train.{task}", "--np", "2", *on_pods, "--", *words)
    assert 0 == here.returncode, here.stdout + here.stderr
    folder = max((bare.shared / "jobs").glob("*/job.json"), key=lambda p: p.stat().st_mtime).parent
    return folder, operator.job(here.stderr), there.stdout, here.stdout


def test_resnet50_mode_has_the_same_losses_bit_for_bit(inv: Inv, bare: Lab, operator: Operator) -> None:
    """Two pods and two bare hosts, ten steps."""
    there, here, _, _ = both(inv, bare, operator, "resnet50", (*RESNET, "--num-batches", "10"))

    assert list(range(10)) == sorted(losses(here))
    assert losses(there) == losses(here)


def test_pytorch_has_the_same_losses_bit_for_bit(inv: Inv, bare: Lab, operator: Operator, torch_python: Path) -> None:
    """The same by PyTorch, by another interpreter than the project's: in pods the image's own, else one below the project."""
    in_pods = Path(image.PROJECT) / torch_python.relative_to(ROOT)
    if unpacked := os.environ.get(IMAGE_VARIABLE):
        if not (Path(unpacked) / "rootfs" / image.TORCH.lstrip("/")).is_symlink():
            pytest.skip("PyTorch is no part of this image: 'inv eks.image --torch'")
        in_pods = Path(image.TORCH) / "bin/python"
    words = (*RESNET, "--num-batches", "4")
    there, here, _, _ = both(inv, bare, operator, "resnet50-torch", words, torch_python, in_pods)

    assert list(range(4)) == sorted(losses(here))
    assert losses(there) == losses(here)


def test_maskrcnn_has_the_same_losses_bit_for_bit(inv: Inv, bare: Lab, operator: Operator, tmp_path: Path) -> None:
    """A reduced network on drawn shapes, four steps."""
    for shared in (bare.shared, operator.shared):
        write_sample(shared / "data/shapes", train=8, val=2, size=96, seed=1)
    there, here, _, _ = both(inv, bare, operator, "maskrcnn", ("DATA.BASEDIR=/shared/data/shapes", *MASKRCNN))

    assert 4 == len(losses(here))
    assert losses(there) == losses(here)


def test_tf_cnn_mode_has_the_same_losses(inv: Inv, bare: Lab, operator: Operator) -> None:
    """The losses of its lines, to the digits that it prints; and its total."""
    _, _, there, here = both(inv, bare, operator, "benchmark", BENCHMARK)
    line = re.compile(r"^(\d+)\timages/sec: .*\t([\d.]+)$", re.MULTILINE)

    assert 4 == len(line.findall(here))
    assert line.findall(there) == line.findall(here)
    assert "total images/sec: " in here


def test_rendered_files_train_as_they_lie_there(
    inv: Inv, bare: Lab, operator: Operator, kube: Any, tmp_path: Path
) -> None:
    """Applied by kubectl, the example of tf_cnn mode with other flags: it begins, and has the losses of bare hosts."""
    there = inv("train.benchmark", "--np", "2", "--", *BENCHMARK, timeout=LIMIT_S)
    assert 0 == there.returncode, there.stdout + there.stderr
    done = operator("eks.render", tmp_path / "k8s")
    assert 0 == done.returncode, done.stdout + done.stderr
    apply = [kube.kubectl, "apply", "--filename", tmp_path / "k8s"]
    applied = subprocess.run(apply, capture_output=True, text=True, timeout=LIMIT_S, env=operator.pods.environment)
    assert 0 == applied.returncode, applied.stderr
    (job,) = read((tmp_path / "k8s/jobs/benchmark.yaml").read_text())
    (told,) = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["env"]
    told["value"] = json.dumps({**json.loads(told["value"]), "words": BENCHMARK})
    operator.pods("create", "--filename", "-", stdin=text([job]))
    operator.pods.wait_for_condition("benchmark", "Succeeded", LIMIT_S)

    here = operator("eks.jobs.logs", "benchmark")
    line = re.compile(r"^(\d+)\timages/sec: .*\t([\d.]+)$", re.MULTILINE)
    assert 4 == len(line.findall(here.stdout)), here.stdout + here.stderr
    assert line.findall(there.stdout) == line.findall(here.stdout)


def test_ones_own_program_computes_the_same(bare: Lab, operator: Operator, tmp_path: Path) -> None:
    """It travels with the job; its sum over both ranks is the same bit for bit."""
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ("--", "python", "program.py")

    def line(task: str, environment: dict[str, str]) -> str:
        done = dlami((task, "--np", "2", "--include", ".", *words), tmp_path, environment)
        assert 0 == done.returncode, done.stdout + done.stderr
        return re.findall(r"^.*(ranks \d+ sum \S+)$", done.stdout, re.MULTILINE)[0]

    there = line("train.run", {**os.environ, "CLUSTER": f"lab:{bare.name}"})
    here = line("eks.train.run", {**operator.pods.environment, "CLUSTER": str(operator.folder)})
    assert there.startswith("ranks 2 sum ") and there == here


def test_a_killed_worker_and_a_killed_launcher_cost_no_step(inv: Inv, bare: Lab, operator: Operator) -> None:
    """The driver starts their containers again, as kubelet does; ours takes the job up from the newest checkpoint both
    times, and the last losses are those of a run that nobody disturbed."""
    words = (*RESNET, "--num-batches", "40", "--checkpoint-every", "4", "--checkpoint-seconds", "0")
    job = operator.started("eks.train.resnet50", "--np", "2", "--", *words)
    folder = operator.shared / "jobs" / job

    def reached(step: int) -> bool:
        return (folder / "metrics.jsonl").exists() and max(losses(folder), default=0) >= step

    node = operator.pods.kube.nodes
    wait_for(lambda: reached(10), LIMIT_S, "step 10")
    node.crash(NAMESPACE, f"{job}-worker-1")
    wait_for(lambda: attempts(folder) == 2, LIMIT_S, "a second attempt")
    at = max(losses(folder))
    wait_for(lambda: reached(at + 6), LIMIT_S, "steps after the worker's death")
    (launcher,) = operator.pods.pods_of(job, "launcher")
    node.crash(NAMESPACE, launcher["metadata"]["name"])
    operator.pods.wait_for_condition(job, "Succeeded", LIMIT_S)

    done = inv("train.resnet50", "--np", "2", "--name", "whole", "--", *words, timeout=LIMIT_S)
    assert 0 == done.returncode, done.stderr
    (whole,) = (bare.shared / "jobs").glob("*-whole-*")
    assert losses(whole) == losses(folder)
    assert 3 == attempts(folder)
    (launcher,) = operator.pods.pods_of(job, "launcher")
    assert 1 == launcher["status"]["containerStatuses"][0]["restartCount"]


def attempts(job: Path) -> int:
    """How many there were of mpirun."""
    return len(list((job / "logs").glob("attempt-*")))

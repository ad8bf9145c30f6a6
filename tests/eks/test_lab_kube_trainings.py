"""What `inv eks.train.*` and `inv eks.render` write, executed by the lab's driver on pods: the same losses as `inv train.*` on
bare hosts, also when a worker and the launcher are killed on the way."""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT
from eks import image
from lab import lab as labs
from lab.record import Lab
from tests.conftest import Inv, operator_of, wait_for
from tests.eks.operators import LIMIT_S, Operator, dlami, operator_of_pods
from tests.eks.pods import IMAGE_VARIABLE, NAMESPACE
from tests.trainer_maskrcnn.helpers import REDUCED
from trainer.coco.sample import write_sample

RESNET = (
    *("--deterministic", "--model", "resnet18", "--image-size", "32", "--batch-size", "2", "--threads", "1"),
    *("--display-every", "1"),
)
SYNTHETIC = (*RESNET, "--synthetic", "--classes", "10")
THE_FILE_SAYS = ("--recipe", "poly90", "--data-dir", "/shared/data/imagenet")
OF_THE_FILE = (  # beside what it says: 40 steps of two ranks on 130 images, and nothing that wants a GPU
    *(*RESNET, "--precision", "float32", "--num-epochs", "1.25", "--warmup-epochs", "0.1"),
    *("--checkpoint-every", "4", "--checkpoint-seconds", "0"),
)
MASKRCNN = (
    *("DATA.BASEDIR=/shared/data/coco", "BACKBONE.WEIGHTS=", *REDUCED, "TRAIN.LOG_PERIOD=1", "TRAIN.MAX_STEPS=4"),
    *("TRAIN.STEPS_PER_EPOCH=4", "TRAIN.WARMUP=2", "TRAIN.EVAL_PERIOD=0", "TRAIN.EVAL_AT_END=False", "--threads", "1"),
)
BENCHMARK = (
    *("--model", "resnet18", "--image-size", "32", "--batch-size", "4", "--threads", "1", "--num-batches", "4"),
    *("--num-warmup-batches", "1", "--display-every", "1"),
)
SPEED_AND_LOSS = re.compile(r"^(\d+)\timages/sec: .*\t([\d.]+)$", re.MULTILINE)
LOSS = re.compile(r"step \d+ of 2 ranks: loss \S+")
# Somebody's own training: a line through each rank's points, by the gradients of all.
PROGRAM = """\
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
draw = np.random.default_rng(hvd.rank())
x, noise = (tf.constant(draw.standard_normal((64, n)), tf.float32) for n in (8, 1))
y, w = tf.reduce_sum(x, 1, keepdims=True) + noise, tf.zeros((8, 1))
for step in range(5):
    error = x @ w - y
    gradient = tf.reshape(tf.matmul(x, error, transpose_a=True), [-1]) / 32
    of_all = hvd.allreduce(tf.concat([gradient, [tf.reduce_mean(error**2)]], 0), op=hvd.Average)
    w -= 0.1 * of_all[:8, None]
    if hvd.rank() == 0:
        print("step", step, "of", hvd.size(), "ranks: loss", float(of_all[8]).hex(), flush=True)
"""


@pytest.fixture(scope="module")
def operator(lab_allowed: None, kube: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with operator_of_pods(kube.kubectl, tmp_path_factory.mktemp("eks"), f"e{os.getpid() % 10_000_000}") as made:
        yield made


@pytest.fixture(scope="module")
def files(operator: Operator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `inv eks.render` wrote, after `kubectl apply` of all in it that is no training."""
    folder = tmp_path_factory.mktemp("rendered") / "k8s"
    done = operator("eks.render", folder)
    assert 0 == done.returncode, done.stdout + done.stderr
    applied(operator, folder)
    return folder


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


@pytest.fixture(scope="module")
def on_hosts(inv: Inv, bare: Lab) -> Callable[..., tuple[Path, str]]:
    """A training on the bare hosts, once for all who ask for the same: its job's folder, and what it printed."""

    @functools.cache
    def trained(task: str, words: tuple[str, ...], *options: str) -> tuple[Path, str]:
        done = inv(f"train.{task}", "--np", "2", *options, "--", *words, timeout=LIMIT_S)
        assert 0 == done.returncode, done.stdout + done.stderr
        job = max((bare.shared / "jobs").glob("*/job.json"), key=lambda p: p.stat().st_mtime)
        return job.parent, done.stdout

    return trained


@pytest.fixture(scope="module")
def own_losses(bare: Lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with a program of one's own, and its losses on the bare hosts."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "train.py").write_text(PROGRAM)
    words = ("train.run", "--np", "2", "--include", ".", "--", "python", "train.py")
    done = dlami(words, folder, {**os.environ, "CLUSTER": f"lab:{bare.name}"})
    found = LOSS.findall(done.stdout)
    assert (0, 5) == (done.returncode, len(found)), done.stdout + done.stderr
    return folder, found


def on_pods(operator: Operator, task: str, words: tuple[str, ...], *options: str) -> tuple[Path, str]:
    """A training that `inv eks.train.*` starts: its job's folder, and what it printed."""
    done = operator(f"eks.train.{task}", "--np", "2", *options, "--", *words)
    assert 0 == done.returncode, done.stdout + done.stderr
    return operator.job(done.stderr), done.stdout


def edited(file: Path, words: tuple[str, ...], to: Path) -> Path:
    """A rendered training with these flags after its own, written into its text as somebody does who edits it."""
    lines = "".join(f",\n{' ' * 24}{json.dumps(word)}" for word in words)
    text, times = re.subn(r'("words": \[[^]]*")', lambda found: found[1] + lines, file.read_text())
    assert 1 == times
    (to / file.name).write_text(text)
    return to / file.name


def applied(operator: Operator, files: Path) -> None:
    """`kubectl apply` of a file, or of those in a folder, whatever namespaces they name."""
    environment = operator.pods.environment
    words = [environment["DLAMI_KUBECTL"], "apply", "--filename", str(files)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    assert 0 == done.returncode, done.stderr


def said_to_its_end(operator: Operator, job: str) -> str:
    """The console of a job that was made by kubectl; it must succeed."""
    done = operator("eks.jobs.logs", "--follow", job)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def losses(job: Path) -> dict[int, dict[str, float]]:
    """Step -> every figure of the training that does not depend on time."""
    rows = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    return {
        r["step"]: {k: v for k, v in r.items() if "loss" in k or k in ("lr", "top1")}
        for r in rows
        if r["kind"] == "train"
    }


@pytest.mark.promise("an MPIJob")
def test_ones_own_program_computes_the_same_from_the_rendered_file(
    own_losses: tuple[Path, list[str]], operator: Operator, files: Path
) -> None:
    """Applied as it lies there, with the program in the folder that it names."""
    folder, there = own_losses
    code = operator.shared / "data/code"
    code.mkdir()
    (code / "train.py").write_text((folder / "train.py").read_text())
    applied(operator, files / "jobs/run.yaml")

    assert there == LOSS.findall(said_to_its_end(operator, "run"))


@pytest.mark.long
def test_ones_own_program_computes_the_same(own_losses: tuple[Path, list[str]], operator: Operator) -> None:
    """It travels with the job."""
    folder, there = own_losses
    done = operator("eks.train.run", "--np", "2", "--include", ".", "--", "python", "train.py", folder=folder)

    assert (0, there) == (done.returncode, LOSS.findall(done.stdout)), done.stdout + done.stderr


@pytest.mark.long
def test_what_a_dry_run_prints_can_be_created_later(own_losses: tuple[Path, list[str]], operator: Operator) -> None:
    """The job and the Secret with its code, by kubectl alone."""
    folder, there = own_losses
    words = ("eks.train.run", "--np", "2", "--include", ".", "--dry-run", "--", "python", "train.py")
    printed = operator(*words, folder=folder)
    assert 0 == printed.returncode, printed.stderr
    made = operator.pods("create", "--filename", "-", "--output", "name", stdin=printed.stdout).splitlines()
    job, secret = (one.partition("/")[2] for one in made)

    assert f"{job}-code" == secret
    assert there == LOSS.findall(said_to_its_end(operator, job))


@pytest.mark.long
def test_resnet50_mode_has_the_same_losses_bit_for_bit(
    on_hosts: Callable[..., tuple[Path, str]], operator: Operator
) -> None:
    """Two pods and two bare hosts, ten steps."""
    words = (*SYNTHETIC, "--num-batches", "10")
    (there, _), (here, _) = on_hosts("resnet50", words), on_pods(operator, "resnet50", words)

    assert list(range(10)) == sorted(losses(here))
    assert losses(there) == losses(here)


@pytest.mark.long
@pytest.mark.parametrize("way", ["task", "file"])
def test_pytorch_has_the_same_losses_bit_for_bit(
    on_hosts: Callable[..., tuple[Path, str]],
    bare: Lab,
    operator: Operator,
    files: Path,
    data: Path,
    torch_python: Path,
    tmp_path: Path,
    way: str,
) -> None:
    """By another interpreter than the project's: in pods the image's own, else one below the project."""
    in_pods = torch_in_pods(torch_python)
    words = (*OF_THE_FILE, "--num-epochs", "0.25")
    pictures(data, bare, operator)
    there, _ = on_hosts("resnet50-torch", (*THE_FILE_SAYS, *words), "--python", str(torch_python))
    if way == "file":
        file = edited(files / "jobs/resnet50-torch.yaml", words, tmp_path)
        file.write_text(file.read_text().replace(f"{image.TORCH}/bin/python", str(in_pods)))
        applied(operator, file)
        said_to_its_end(operator, "resnet50-torch")
        here = operator.shared / "jobs/resnet50-torch"
    else:
        here, _ = on_pods(operator, "resnet50-torch", (*THE_FILE_SAYS, *words), "--python", str(in_pods))

    assert list(range(8)) == sorted(losses(here))
    assert losses(there) == losses(here)


@pytest.mark.long
@pytest.mark.parametrize("way", ["task", "file"])
def test_maskrcnn_has_the_same_losses_bit_for_bit(
    on_hosts: Callable[..., tuple[Path, str]], bare: Lab, operator: Operator, files: Path, tmp_path: Path, way: str
) -> None:
    """A reduced network on drawn shapes, four steps."""
    for shared in (bare.shared, operator.shared):
        if not (shared / "data/coco").exists():
            write_sample(shared / "data/coco", train=8, val=2, size=96, seed=1)
    there, _ = on_hosts("maskrcnn", MASKRCNN)
    if way == "file":
        applied(operator, edited(files / "jobs/maskrcnn.yaml", MASKRCNN, tmp_path))
        said_to_its_end(operator, "maskrcnn")
        here = operator.shared / "jobs/maskrcnn"
    else:
        here, _ = on_pods(operator, "maskrcnn", MASKRCNN)

    assert 4 == len(losses(here))
    assert losses(there) == losses(here)


@pytest.mark.long
@pytest.mark.parametrize("way", ["task", "file"])
def test_tf_cnn_mode_has_the_same_losses(
    on_hosts: Callable[..., tuple[Path, str]], operator: Operator, files: Path, tmp_path: Path, way: str
) -> None:
    """The losses of its lines, to the digits that it prints; and its total."""
    _, there = on_hosts("benchmark", BENCHMARK)
    if way == "file":
        applied(operator, edited(files / "jobs/benchmark.yaml", BENCHMARK, tmp_path))
        here = said_to_its_end(operator, "benchmark")
    else:
        _, here = on_pods(operator, "benchmark", BENCHMARK)

    assert 4 == len(SPEED_AND_LOSS.findall(here))
    assert SPEED_AND_LOSS.findall(there) == SPEED_AND_LOSS.findall(here)
    assert "total images/sec: " in here


@pytest.mark.long
def test_a_killed_worker_and_a_killed_launcher_cost_a_rendered_resnet_no_step(
    on_hosts: Callable[..., tuple[Path, str]], bare: Lab, operator: Operator, files: Path, data: Path, tmp_path: Path
) -> None:
    """The driver starts their containers again, as kubelet does; ours takes the job up from the newest checkpoint both
    times, and the losses of all steps are those of a run on bare hosts that nobody disturbed."""
    pictures(data, bare, operator)
    applied(operator, edited(files / "jobs/resnet50.yaml", OF_THE_FILE, tmp_path))
    folder, node = operator.shared / "jobs/resnet50", operator.pods.kube.nodes

    def reached(step: int) -> bool:
        return (folder / "metrics.jsonl").exists() and max(losses(folder), default=0) >= step

    def again() -> dict[str, int]:
        workers = operator.pods.pods_of("resnet50", "worker")
        return {pod["metadata"]["name"].removeprefix("resnet50-"): starts(pod) for pod in workers}

    wait_for(lambda: reached(10), LIMIT_S, "step 10")
    node.crash(NAMESPACE, "resnet50-worker-1")
    wait_for(lambda: attempts(folder) == 2, LIMIT_S, "a second attempt")
    wait_for(lambda: again() == {"worker-0": 0, "worker-1": 1}, LIMIT_S, "one of the workers was started once more")
    at = max(losses(folder))
    wait_for(lambda: reached(at + 6), LIMIT_S, "steps after the worker's death")
    (launcher,) = operator.pods.pods_of("resnet50", "launcher")
    node.crash(NAMESPACE, launcher["metadata"]["name"])
    operator.pods.wait_for_condition("resnet50", "Succeeded", LIMIT_S)

    whole, _ = on_hosts("resnet50", (*THE_FILE_SAYS, *OF_THE_FILE))
    assert list(range(40)) == sorted(losses(folder))
    assert losses(whole) == losses(folder)
    assert 3 == attempts(folder)
    (launcher,) = operator.pods.pods_of("resnet50", "launcher")
    assert 1 == starts(launcher)


def pictures(data: Path, bare: Lab, operator: Operator) -> None:
    """130 images, where the rendered file has them, for hosts and for pods."""
    for shared in (bare.shared, operator.shared):
        out = shared / "data/imagenet"
        if out.exists():
            continue
        words = ("--raw", data / "imagenet-mini", "--out", out, "--shorter-side", 64)
        more = ("--train-shards", 3, "--validation-shards", 2)
        program = [sys.executable, "-m", "trainer.imagenet", *map(str, (*words, *more))]
        subprocess.run(program, cwd=ROOT, check=True, timeout=LIMIT_S)


def torch_in_pods(torch_python: Path) -> Path:
    """PyTorch's interpreter as pods see it; an image that has none leaves the test out."""
    unpacked = os.environ.get(IMAGE_VARIABLE)
    if not unpacked:
        return Path(image.PROJECT) / torch_python.relative_to(ROOT)
    if not (Path(unpacked) / "rootfs" / image.TORCH.lstrip("/")).is_symlink():
        pytest.skip("PyTorch is no part of this image: 'inv eks.image --torch'")
    return Path(image.TORCH) / "bin/python"


def starts(pod: dict[str, Any]) -> int:
    """How often its container was started again."""
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def attempts(job: Path) -> int:
    """How many there were of mpirun."""
    return len(list((job / "logs").glob("attempt-*")))

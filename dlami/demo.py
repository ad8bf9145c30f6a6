"""Demo of the whole product on this machine in a few minutes: a cluster, images, a training over its hosts, plots."""

import fcntl
import itertools
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.files import write_atomically
from cluster.health.quick_check import look_at_hosts
from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.jobs.client.client import opened
from cluster.jobs.program import Program
from cluster.jobs.spec import JobSpec
from cluster.jobs.state import JobState
from cluster.locate import LABS
from cluster.run.command import on_master
from cluster.ssh.fanout import Executor
from cluster.terminal import counted
from lab import lab, machine

FOLDER = ROOT / "demo"  # results of the demo
LAB = "demo"
SAMPLE_IMAGES, SAMPLE_VALIDATION = 4000, 1000  # images for training and for evaluation
TRAINING_S = 110.0  # out of two minutes; the rest is the ranks' start
RECIPE = shlex.split("--model resnet18 --crop-area 0.6 --lr 0.1 --lr-decay-mode cosine --eval --display-every 20")
ENVIRONMENT = {"HOROVOD_CYCLE_TIME": "100"}  # ms; four ranks share this machine's cores: 1.2 times the speed of 20 ms
SHOWN = 0.7  # least score: lower ones are second guesses at objects that are already found
SHAPES_IMAGES = 400
SHAPES_HOSTS = 2  # more ranks would only share two cores
SHAPES_RECIPE = shlex.split("""
    BACKBONE.NORM=GN FPN.NORM=GN BACKBONE.FREEZE_AT=0
    BACKBONE.RESNET_NUM_BLOCKS=1,1,1,1 BACKBONE.CHANNELS=32 FPN.NUM_CHANNEL=64
    FPN.FRCNN_FC_HEAD_DIM=256 MRCNN.HEAD_DIM=64 FRCNN.BATCH_PER_IM=64
    RPN.ANCHOR_SIZES=16,32,64,96,128 RPN.TRAIN_PER_LEVEL_PRE_NMS_TOPK=400 RPN.TRAIN_PER_LEVEL_NMS_TOPK=200
    RPN.TRAIN_IMAGE_TOPK=300 RPN.TEST_PER_LEVEL_PRE_NMS_TOPK=200 RPN.TEST_IMAGE_TOPK=200
    PREPROC.TRAIN_SHORT_EDGE_SIZE=128 PREPROC.TEST_SHORT_EDGE_SIZE=128 PREPROC.MAX_SIZE=192
    TRAIN.BASE_LR=0.16 TRAIN.WARMUP=100 TRAIN.WARMUP_INIT_LR=0.01
    TRAIN.GRADIENT_CLIP=10 TRAIN.LR_EPOCH_SCHEDULE=[(6,.1),(7,None)] TRAIN.EVAL_PERIOD=2
    DATA.NUM_WORKERS=1
""")


def show_resnet50(keep: bool = False) -> None:
    """Run the ResNet demo. Raises ClusterError with the step that failed."""
    with demo_cluster(keep) as cluster:
        _say(2, f"{len(cluster.hosts)} host{'s' * (len(cluster.hosts) > 1)}, a first look at each")
        with Executor(cluster) as reach:
            report = look_at_hosts(reach, cluster, cluster.hosts)
        print(report)
        if report.unfit:
            raise ClusterError("the demo's hosts are not well; see above")
        _say(3, "images drawn, packed into TFRecord shards, and a ResNet trained on them over all hosts")
        raw, shards = f"{cluster.shared}/data/sample", f"{cluster.shared}/data/sample-tfrecords"
        counts = ("--train", str(SAMPLE_IMAGES), "--validation", str(SAMPLE_VALIDATION))
        do_on_master(cluster, "trainer.sample", "--out", raw, *counts)
        do_on_master(cluster, "trainer.imagenet", "--raw", raw, "--out", shards)
        fit = fitted(_first_steps(cluster, shards))
        print(fit, flush=True)
        folder = _train(cluster, "demo", shards, *fit.flags(), *RECIPE)
        _say(4, "the curves drawn, everything kept")
        do_on_master(cluster, "trainer.plot", folder, "--out", f"{folder}/curves.png")
        kept = keep_folder(cluster, folder)
    print(f"""
What is left, in {kept}:
  curves.png                                 the training's curves
  logs/attempt-1/console.log                 what the ranks said; ranks/ has a file for each
  metrics.jsonl, tensorboard/, checkpoints/  for programs, for TensorBoard, to go on from

Try next:
  inv lab.up -n 4 && export CLUSTER=lab      a cluster on this machine that stays
  inv run -- uptime                          a command on every host of it
  inv train.resnet50 -- --synthetic --batch-size 8 --num-batches 20    ResNet-50 at 224 pixels on all its slots""")


def show_maskrcnn(keep_lab: bool = False) -> None:
    """Run the Mask R-CNN demo. Raises ClusterError with the step that failed."""
    with demo_cluster(keep_lab) as cluster:
        shapes = f"{cluster.shared}/data/shapes"
        size = shlex.split(f"--train {SHAPES_IMAGES} --val 24 --size 128 --max-objects 3")
        do_on_master(cluster, "trainer.coco.sample", "--out", shapes, *size)
        do_on_master(cluster, "trainer.coco.verify", shapes)
        folder = _train_maskrcnn(cluster, shapes)
        images = [f"{shapes}/val2017/{n:012d}.jpg" for n in (1, 2, 3, 4)]
        do_on_master(
            cluster,
            "trainer.maskrcnn.predict",
            "--job-dir",
            folder,
            "--out",
            f"{folder}/pictures",
            *images,
            "--config",
            f"TEST.RESULT_SCORE_THRESH_VIS={SHOWN}",
        )
        kept = keep_folder(cluster, folder)
    print(f"\nDetections on images it has not learned from: {kept}/pictures/*.png (everything is in {FOLDER})")


def _train_maskrcnn(cluster: Cluster, shapes: str) -> str:
    """Train as a job and follow it. Return the job's folder."""
    ranks = sum(h.slots for h in cluster.hosts[:SHAPES_HOSTS])
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)  # each lab host counts all cores as its own
    spec = JobSpec(
        name="demo-maskrcnn",
        program=Program(
            trainer="trainer.maskrcnn",
            words=("--threads", str(threads), f"DATA.BASEDIR={shapes}", *SHAPES_RECIPE),
        ),
        hosts=cluster.hosts[:SHAPES_HOSTS],
    )
    return train_to_its_end(cluster, spec)


@contextmanager
def demo_cluster(keep: bool) -> Iterator[Cluster]:
    """Yield the demo's cluster: a lab of four hosts if this machine can have one, else this machine alone."""
    _check_folder()
    if lack := machine.missing():
        print(f"a lab {lack.what}, so the demo uses one host, localhost slots=2 (for four: {lack.remedy})")
        yield _this_machine()
        return
    with _name_of_ones_own() as name:
        if lab.is_anything_left(name):
            print("an earlier demo left its lab behind; it is taken down first")
            lab.down(name)
        _say(1, "a lab of four hosts: own network, files, processes and sshd each")
        lab.up(name, num_hosts=4, slots=1)
        try:
            yield load_cluster(f"lab:{name}")
        finally:
            if keep:
                print(f"\nthe lab stays up: export CLUSTER=lab:{name}; its end: inv lab.down --name {name}")
            else:
                lab.down(name)
                print("\nthe lab is taken down: no process, network device or folder of it is left")


def _check_folder() -> None:
    """Raise ClusterError if the demo's folder cannot be written, before anything is made."""
    try:
        (FOLDER / "shared").mkdir(parents=True, exist_ok=True)
        for folder in (FOLDER, FOLDER / "shared"):
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as e:
        raise ClusterError(
            f"{FOLDER}, where the demo leaves what it makes, cannot be written ({e.strerror}): if an earlier demo of "
            "another user made it, remove it or run the demo as that user"
        ) from e


def _this_machine() -> Cluster:
    write_atomically(FOLDER / "hosts", "localhost slots=2\n")
    write_atomically(FOLDER / "cluster.toml", f'name = "demo"\nshared = "{FOLDER}/shared"\n')
    _say(1, "one host: this machine")
    return load_cluster(str(FOLDER))


@contextmanager
def _name_of_ones_own() -> Iterator[str]:
    """Yield a lab name that no other demo uses meanwhile: another checkout's demo may run at the same time."""
    LABS.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        name = LAB if number == 1 else f"{LAB}{number}"
        with (LABS.parent / f"{name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield name
            return


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Size of the training that this machine finishes in two minutes."""

    images_per_s: float  # measured, at 64 pixels
    image_size: int
    num_epochs: float
    batch_size: int  # per rank

    def flags(self) -> tuple[str, ...]:
        """Return the trainer's flags for this size."""
        return (
            *("--image-size", str(self.image_size), "--num-epochs", f"{self.num_epochs:g}"),
            *("--batch-size", str(self.batch_size), "--warmup-epochs", f"{0.15 * self.num_epochs:g}"),
        )

    def __str__(self) -> str:
        return (
            f"this machine trains {self.images_per_s:.0f} images/s at 64 pixels: "
            f"{counted(self.num_epochs, 'epoch')} at "
            f"{self.image_size} pixels, about two minutes"
        )


def fitted(images_per_s: float) -> Fit:
    """Return the training with the largest images that can be learned from in two minutes.

    The cost of an image grows with its area.
    """
    for size, least, most in ((64, 1.5, 2.0), (48, 1.25, 2.0), (32, 1.0, 2.0)):
        images = images_per_s * (64 / size) ** 2 * TRAINING_S - SAMPLE_VALIDATION / 3  # evaluation: forward only
        epochs = round(images / SAMPLE_IMAGES, 2)
        if epochs >= least or size == 32:
            return Fit(
                images_per_s=images_per_s, image_size=size, num_epochs=max(least, min(most, epochs)), batch_size=16
            )
    raise AssertionError("the last size serves every speed")


def _first_steps(cluster: Cluster, shards: str) -> float:
    """Run a training of a few steps. Return the images per second over all ranks.

    The first step is not counted, because it builds the network.
    """
    flags = shlex.split("--model resnet18 --image-size 64 --batch-size 8 --num-batches 6 --display-every 1")
    folder = _train(cluster, "timing", shards, *flags)
    lines = map(json.loads, (seen_here(cluster, folder) / "metrics.jsonl").read_text().splitlines())
    return statistics.median(r["images_per_s"] for r in lines if r["kind"] == "train" and r["step"] > 1)


def _train(cluster: Cluster, name: str, shards: str, *flags: str) -> str:
    """Train as a job and follow it. Return the job's folder."""
    ranks = sum(h.slots for h in cluster.hosts)
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)  # each lab host counts all cores as its own
    arguments = ("--data-dir", shards, "--threads", str(threads), "--precision", _precision(), *flags)
    spec = JobSpec(
        name=name,
        program=Program(trainer="trainer.resnet50", words=arguments),
        hosts=cluster.hosts,
        environment=ENVIRONMENT,
    )
    return train_to_its_end(cluster, spec)


def train_to_its_end(cluster: Cluster, spec: JobSpec) -> str:
    """Train as a job and follow it. Return the job's folder. Raises ClusterError if the job fails.

    If the demo is interrupted, it stops its job: its lab is about to be removed, and half a run has no curve to show.
    """
    with opened(cluster) as jobs:
        job = jobs.plan(spec)
        folder = jobs.submit(job)
        print(f"job {job.id}: {counted(job.np, 'rank')} on {counted(len(job.hosts), 'host')}", flush=True)
        interrupted = "\ninterrupted: the demo ends its training on every host"
        if code := jobs.logs(job.id, follow=True, on_interrupt=interrupted):
            raise ClusterError(f"the training did not succeed (exit code {code}): see above, and {folder}")
        if jobs.show(job.id).state is not JobState.SUCCEEDED:
            jobs.stop(job.id)
            raise ClusterError("the demo was interrupted; its training is ended")
    return folder


def _precision() -> str:
    """Return bfloat16 if the processor computes in it, else float32.

    bfloat16 is 1.8 times as fast there, and many times slower elsewhere.
    """
    flags = Path("/proc/cpuinfo").read_text()
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


def do_on_master(cluster: Cluster, module: str, *arguments: str) -> None:
    sys.stdout.flush()
    if code := on_master(cluster, module, arguments):
        raise ClusterError(f"{module} on the master ended with exit code {code}")


def seen_here(cluster: Cluster, folder: str) -> Path:
    """Return the path on this machine of a folder in the cluster's shared folder."""
    if cluster.folder.parent == LABS:
        return lab.named(cluster.name).shared / Path(folder).relative_to(cluster.shared)
    return Path(folder)


def keep_folder(cluster: Cluster, folder: str) -> Path:
    """Copy the job's folder out of the shared folder, which is removed with the lab. Return the copy's path."""
    here = seen_here(cluster, folder)
    kept = FOLDER / here.name
    shutil.copytree(here, kept)
    return kept


def _say(step: int, what: str) -> None:
    print(f"\n[{step}/4] {what}", flush=True)

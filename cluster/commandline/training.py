"""Tasks that train, measure and draw, and that use what was trained."""

from typing import Any

from invoke import Context

from cluster.commandline.command import HOSTS_HELP, command, rest
from cluster.commandline.starting import LOOK_HELP, on_master, opened_jobs, train, trained
from cluster.errors import ConfigError
from cluster.inventory import load_cluster

TRAIN_HELP = {
    "hosts": HOSTS_HELP,
    "np": "ranks, one per slot by default",
    "profile": "tcp, ena or efa; by detection without it",
    "env": "NAME=VALUE for every rank, may be repeated",
    "dry_run": "print the mpirun command, start nothing",
    "detach": "start it and return",
    **LOOK_HELP,
}


@command(name="resnet50", help={**TRAIN_HELP, "name": "the job's name"}, iterable=["env"])
def train_resnet50(
    c: Context,
    hosts: str = "",
    np: int = 0,
    profile: str = "",
    env: Any = None,
    dry_run: bool = False,
    detach: bool = False,
    name: str = "resnet50",
    unchecked: bool = False,
    skip_unfit: bool = False,
) -> None:
    """Train a ResNet over all slots as a job: inv train.resnet50 -- --data-dir DIR [its flags]."""
    train("trainer.resnet50", name, hosts, np, profile, env, dry_run, detach, unchecked, skip_unfit)


@command(name="benchmark", help=TRAIN_HELP, iterable=["env"])
def train_benchmark(
    c: Context,
    hosts: str = "",
    np: int = 0,
    profile: str = "",
    env: Any = None,
    dry_run: bool = False,
    detach: bool = False,
    unchecked: bool = False,
    skip_unfit: bool = False,
) -> None:
    """Measure images/s as tf_cnn_benchmarks does: inv train.benchmark -- --model vgg16 --num-batches 100 --fp16."""
    train("trainer.benchmark", "benchmark", hosts, np, profile, env, dry_run, detach, unchecked, skip_unfit)


@command(
    name="plot",
    help={"job": "its id, a part of it, or last", "out": "picture on the master; in the job's folder by default"},
    positional=["job"],
)
def train_plot(c: Context, job: str, out: str = "") -> None:
    """Draw a job's loss, top-1, learning rate and speed."""
    cluster = load_cluster()
    with opened_jobs(cluster) as jobs:
        folder = str(jobs.call("show", job)["folder"])
    on_master(cluster, "trainer.plot", [folder, *(["--out", out] if out else [])])


@command(
    name="scaling",
    help={
        "np": "numbers of ranks, like 1,2,4: trains with each first",
        "job": "a job that has ended, may be repeated: only reports",
        "hosts": HOSTS_HELP,
    },
    iterable=["job"],
)
def train_scaling(c: Context, np: str = "", job: Any = None, hosts: str = "") -> None:
    """Report images/s and efficiency over ranks: inv train.scaling --np 1,2,4 -- --synthetic --num-batches 200."""
    cluster = load_cluster()
    if not (np or job) or not all(n.isdigit() for n in np.split(",") if n):
        raise ConfigError("give --np 1,2,4 to train with each number of ranks, or --job ID for each that has ended")
    with opened_jobs(cluster) as jobs:
        ids = [*(job or []), *(trained(jobs, cluster, hosts, int(n)) for n in np.split(",") if n)]
        folders = [str(jobs.call("show", which)["folder"]) for which in ids]
    on_master(cluster, "trainer.scaling", folders)


@command(name="maskrcnn", help={**TRAIN_HELP, "name": "the job's name"}, iterable=["env"])
def train_maskrcnn(
    c: Context,
    hosts: str = "",
    np: int = 0,
    profile: str = "",
    env: Any = None,
    dry_run: bool = False,
    detach: bool = False,
    name: str = "maskrcnn",
    unchecked: bool = False,
    skip_unfit: bool = False,
) -> None:
    """Train Mask R-CNN over all slots as a job: inv train.maskrcnn -- DATA.BASEDIR=DIR [KEY=VALUE ...]."""
    train("trainer.maskrcnn", name, hosts, np, profile, env, dry_run, detach, unchecked, skip_unfit)


@command(name="predict")
def maskrcnn_predict(c: Context) -> None:
    """Draw detections into PNGs: inv maskrcnn.predict -- --job-dir DIR --out DIR IMAGE ..."""
    on_master(load_cluster(), "trainer.maskrcnn.predict", rest())


@command(name="evaluate")
def maskrcnn_evaluate(c: Context) -> None:
    """Score a checkpoint on COCO: inv maskrcnn.evaluate -- --job-dir DIR [--step N] [--per-category]."""
    on_master(load_cluster(), "trainer.maskrcnn.evaluate", rest())


@command(name="export")
def maskrcnn_export(c: Context) -> None:
    """Write a SavedModel or an npz: inv maskrcnn.export -- --job-dir DIR --out DIR."""
    on_master(load_cluster(), "trainer.maskrcnn.export", rest())

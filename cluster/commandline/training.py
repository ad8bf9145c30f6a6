"""Tasks that train, measure and draw, and that use what was trained."""

from typing import Any

from invoke import Context

from cluster.commandline.command import HOSTS_HELP, command, rest
from cluster.commandline.starting import (
    LOOK_HELP,
    Options,
    number_of_ranks,
    on_master,
    opened_jobs,
    train,
    train_for_scaling,
)
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
    np: str = "",
    profile: str = "",
    env: Any = None,
    dry_run: bool = False,
    detach: bool = False,
    name: str = "resnet50",
    unchecked: bool = False,
    skip_unfit: bool = False,
) -> None:
    """Train a ResNet over all slots as a job: inv train.resnet50 -- --data-dir DIR [its flags]."""
    options = Options(
        hosts=hosts,
        np=np,
        profile=profile,
        env=env,
        dry_run=dry_run,
        detach=detach,
        unchecked=unchecked,
        skip_unfit=skip_unfit,
    )
    train("trainer.resnet50", name, options)


@command(name="benchmark", help=TRAIN_HELP, iterable=["env"])
def train_benchmark(
    c: Context,
    hosts: str = "",
    np: str = "",
    profile: str = "",
    env: Any = None,
    dry_run: bool = False,
    detach: bool = False,
    unchecked: bool = False,
    skip_unfit: bool = False,
) -> None:
    """Measure images/s as tf_cnn_benchmarks does: inv train.benchmark -- --model vgg16 --num-batches 100 --fp16."""
    options = Options(
        hosts=hosts,
        np=np,
        profile=profile,
        env=env,
        dry_run=dry_run,
        detach=detach,
        unchecked=unchecked,
        skip_unfit=skip_unfit,
    )
    train("trainer.benchmark", "benchmark", options, benchmark_flags(rest()))


@command(
    name="plot",
    help={"job": "its id, a part of it, or last", "out": "picture on the master; in the job's folder by default"},
    positional=["job"],
)
def train_plot(c: Context, job: str, out: str = "") -> None:
    """Draw a job's loss, top-1, learning rate and speed."""
    cluster = load_cluster()
    with opened_jobs(cluster) as jobs:
        folder = jobs.show(job).folder
    on_master(cluster, "trainer.plot", [folder, *(["--out", out] if out else [])])


@command(
    name="scaling",
    help={
        "np": "numbers of ranks, like 1,2,4: trains with each first",
        "job": "a job that has ended, may be repeated: only reports",
        "hosts": HOSTS_HELP,
        "json": "as JSON",
    },
    iterable=["job"],
)
def train_scaling(c: Context, np: str = "", job: Any = None, hosts: str = "", json: bool = False) -> None:
    """Report images/s and efficiency over ranks: inv train.scaling --np 1,2,4 -- --synthetic --num-batches 200."""
    ranks = [number_of_ranks(n.strip()) for n in np.split(",")] if np else []
    if not (ranks or job) or None in ranks:
        raise ConfigError("give --np 1,2,4 to train with each number of ranks, or --job ID for each that has ended")
    cluster = load_cluster()
    with opened_jobs(cluster) as jobs:
        ids = [*(job or []), *(train_for_scaling(jobs, cluster, hosts, n) for n in ranks if n)]
        folders = [jobs.show(which).folder for which in ids]
    on_master(cluster, "trainer.scaling", [*folders, *(["--json"] if json else [])])


@command(name="maskrcnn", help={**TRAIN_HELP, "name": "the job's name"}, iterable=["env"])
def train_maskrcnn(
    c: Context,
    hosts: str = "",
    np: str = "",
    profile: str = "",
    env: Any = None,
    dry_run: bool = False,
    detach: bool = False,
    name: str = "maskrcnn",
    unchecked: bool = False,
    skip_unfit: bool = False,
) -> None:
    """Train Mask R-CNN over all slots as a job: inv train.maskrcnn -- DATA.BASEDIR=DIR [KEY=VALUE ...]."""
    options = Options(
        hosts=hosts,
        np=np,
        profile=profile,
        env=env,
        dry_run=dry_run,
        detach=detach,
        unchecked=unchecked,
        skip_unfit=skip_unfit,
    )
    train("trainer.maskrcnn", name, options)


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


_TF_CNN_BENCHMARKS = {"--use-fp16": "--fp16", "--init-learning-rate": "--lr"}  # its names for what we call otherwise


def benchmark_flags(words: list[str]) -> list[str]:
    """tf_cnn_benchmarks' spellings as the trainer's own: --num_batches, --use_fp16[=True], --data_dir."""
    flags: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            flags.append(word)
            continue
        name = name.replace("_", "-")
        if name == "--use-fp16" and equals:
            flags += ["--fp16"] if value.lower() in ("true", "1", "yes") else []
            continue
        flags.append(_TF_CNN_BENCHMARKS.get(name, name) + equals + value)
    return flags

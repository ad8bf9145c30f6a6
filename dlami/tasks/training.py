"""Tasks that train, measure and draw, and that use what was trained."""

from dataclasses import dataclass
from typing import Any

from invoke import Context

from cluster.errors import ConfigError
from cluster.inventory import load_cluster
from dlami.tasks.command import HOSTS_HELP, command, option, rest
from dlami.tasks.starting import (
    PYTORCH,
    TrainOptions,
    number_of_ranks,
    on_master,
    opened_jobs,
    train,
    train_for_scaling,
)


@dataclass(frozen=True, kw_only=True)
class ResNetOptions(TrainOptions):
    """The options of `inv train.resnet50`."""

    name: str = option("resnet50", "the job's name")


@dataclass(frozen=True, kw_only=True)
class TorchOptions(TrainOptions):
    """The options of `inv train.resnet50-torch`."""

    name: str = option("resnet50-torch", "the job's name")
    python: str = option(PYTORCH, "an interpreter that has PyTorch, on every host")


@dataclass(frozen=True, kw_only=True)
class MaskRcnnOptions(TrainOptions):
    """The options of `inv train.maskrcnn`."""

    name: str = option("maskrcnn", "the job's name")


@command(name="resnet50")
def train_resnet50(c: Context, given: ResNetOptions) -> None:
    """Train a ResNet over all slots as a job: inv train.resnet50 -- --data-dir DIR [its flags]."""
    train("trainer.resnet50", given.name, given)


@command(name="resnet50-torch")
def train_resnet50_torch(c: Context, given: TorchOptions) -> None:
    """Train a ResNet with PyTorch over all slots as a job: inv train.resnet50-torch -- --data-dir DIR [its flags]."""
    train("trainer.resnet50_torch", given.name, given, python=given.python)


@command(name="benchmark")
def train_benchmark(c: Context, given: TrainOptions) -> None:
    """Measure images/s as tf_cnn_benchmarks does: inv train.benchmark -- --model vgg16 --num-batches 100 --fp16."""
    train("trainer.benchmark", "benchmark", given)


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
        ids = [*(job or []), *(train_for_scaling(jobs, cluster, hosts, n, as_json=json) for n in ranks if n)]
        folders = [jobs.show(which).folder for which in ids]
    on_master(cluster, "trainer.scaling", [*folders, *(["--json"] if json else [])])


@command(name="export")
def resnet50_export(c: Context) -> None:
    """Write an ONNX file, a SavedModel or weights: inv resnet50.export -- --job-dir DIR --out FILE.onnx."""
    on_master(load_cluster(), "trainer.resnet50.export", rest())


@command(name="maskrcnn")
def train_maskrcnn(c: Context, given: MaskRcnnOptions) -> None:
    """Train Mask R-CNN over all slots as a job: inv train.maskrcnn -- DATA.BASEDIR=DIR [KEY=VALUE ...]."""
    train("trainer.maskrcnn", given.name, given)


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
    """Write a SavedModel, ONNX or an npz: inv maskrcnn.export -- --job-dir DIR --out OUT."""
    on_master(load_cluster(), "trainer.maskrcnn.export", rest())

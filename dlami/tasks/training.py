"""Tasks that train a model, measure and plot trainings, and export or evaluate checkpoints."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from invoke import Context, Exit

from cluster.errors import ConfigError
from cluster.inventory import Cluster, load_cluster
from cluster.jobs.terms import number_of_ranks
from cluster.terminal import pass_on, pass_on_to_stderr
from dlami.tasks.command import HOSTS_HELP, command, option, rest
from dlami.tasks.start_options import TrainOptions
from dlami.tasks.starting import PYTORCH, on_free, on_master, opened_jobs, train

if TYPE_CHECKING:
    from cluster.jobs.client.client import JobsClient


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
        ids = [*(job or []), *(_train_for_scaling(jobs, cluster, hosts, n, as_json=json) for n in ranks if n)]
        folders = [jobs.show(which).folder for which in ids]
    on_master(cluster, "trainer.scaling", [*folders, *(["--json"] if json else [])])


def _train_for_scaling(jobs: "JobsClient", cluster: Cluster, hosts: str, np: int, *, as_json: bool) -> str:
    """Train on this many ranks to the end. Return the job's id.

    as_json: stdout is for the answer, so the training prints to stderr.
    """
    from cluster import hostset
    from cluster.jobs.program import Program
    from cluster.jobs.spec import JobSpec
    from cluster.jobs.state import JobState

    spec = JobSpec(
        name=f"scaling-{np}",
        heal=False,  # what was interrupted measures nothing
        program=Program(trainer="trainer.resnet50", words=tuple(rest())),
        np=np,
        exclusive=True,  # nobody else is measured
        hosts=hostset.select(cluster.hosts, hosts or None, to_train=True),
    )
    job = jobs.plan(on_free(cluster, jobs, spec))
    jobs.submit(job)
    code = jobs.logs(job.id, follow=True, on_output=pass_on_to_stderr if as_json else pass_on)
    if code or jobs.show(job.id).state is not JobState.SUCCEEDED:  # Ctrl-C ends the following only
        raise Exit(
            f"{job.id} has not succeeded, so there is nothing to compare yet; when it has: "
            f"inv train.scaling --job {job.id} --job OTHER",
            code=code or 130,
        )
    return job.id


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

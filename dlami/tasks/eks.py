"""Tasks that start trainings on Kubernetes, each as an MPIJob, and tasks that list, show, follow and stop them."""

import dataclasses
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from invoke import Context, Exit

from cluster.errors import ConfigError, NothingToDo
from cluster.jobs.terms import number_of_ranks
from cluster.terminal import counted, print_json
from dlami.tasks.command import command, option, rest
from dlami.tasks.running import ProgramOptions, code_to_take
from dlami.tasks.start_options import ProfileOptions, TermOptions
from dlami.tasks.starting import PYTORCH, trainer_help, warn_of_secrets

if TYPE_CHECKING:
    from cluster.code.snapshot import Snapshot
    from cluster.jobs.program import Program
    from eks.cluster import EksCluster
    from eks.job_spec import Order

_JOB_HELP = {"job": "its id, a part of it, or last: the youngest"}


@dataclass(frozen=True, kw_only=True)
class EksTrainOptions(TermOptions, ProfileOptions):
    """Options of every task that starts a training on Kubernetes."""

    dry_run: bool = option(False, "print the MPIJob as YAML, start nothing")
    nodes: str = option("", "workers, a node each; as many as the ranks need, or the cluster file has")
    resume: str = option("", "go on with the job of this id, which has ended, in its folder")
    from_scratch: bool = option(
        False, "with --resume: no checkpoint can be read: this attempt begins at step 0 and keeps them aside"
    )
    begin_from: str = option("", "begin a new job with the newest checkpoint of the job of this id")


@dataclass(frozen=True, kw_only=True)
class EksResNetOptions(EksTrainOptions):
    """The options of `inv eks.train.resnet50`."""

    name: str = option("resnet50", "the job's name")


@dataclass(frozen=True, kw_only=True)
class EksTorchOptions(EksTrainOptions):
    """The options of `inv eks.train.resnet50-torch`."""

    name: str = option("resnet50-torch", "the job's name")
    python: str = option(PYTORCH, "an interpreter that has PyTorch, in the image")


@dataclass(frozen=True, kw_only=True)
class EksMaskRcnnOptions(EksTrainOptions):
    """The options of `inv eks.train.maskrcnn`."""

    name: str = option("maskrcnn", "the job's name")


@dataclass(frozen=True, kw_only=True)
class EksRunOptions(ProgramOptions, EksTrainOptions):
    """The options of `inv eks.train.run`."""


@command(name="resnet50")
def eks_train_resnet50(c: Context, given: EksResNetOptions) -> None:
    """Train a ResNet on Kubernetes: inv eks.train.resnet50 -- --data-dir DIR [its flags]."""
    _train("trainer.resnet50", given.name, given)


@command(name="resnet50-torch")
def eks_train_resnet50_torch(c: Context, given: EksTorchOptions) -> None:
    """Train a ResNet with PyTorch on Kubernetes: inv eks.train.resnet50-torch -- --data-dir DIR [its flags]."""
    _train("trainer.resnet50_torch", given.name, given, python=given.python)


@command(name="maskrcnn")
def eks_train_maskrcnn(c: Context, given: EksMaskRcnnOptions) -> None:
    """Train Mask R-CNN on Kubernetes: inv eks.train.maskrcnn -- DATA.BASEDIR=DIR [KEY=VALUE ...]."""
    _train("trainer.maskrcnn", given.name, given)


@command(name="benchmark")
def eks_train_benchmark(c: Context, given: EksTrainOptions) -> None:
    """Measure images/s on Kubernetes: inv eks.train.benchmark -- --model vgg16 --num-batches 100 --fp16."""
    _train("trainer.benchmark", "benchmark", given)


@command(name="run")
def eks_train_run(c: Context, given: EksRunOptions) -> None:
    """Run your own program on Kubernetes, a rank per slot: inv eks.train.run [--per node] -- python train.py."""
    from cluster.jobs.program import Program
    from eks.cluster import load_eks
    from eks.outputs import with_type

    cluster, program = with_type(load_eks()), Program.of(rest(), given.per)
    order = _order(cluster, given, given.name or program.default_name, program)
    snapshot = code_to_take(given)
    spec = dataclasses.replace(
        order.spec,
        code=snapshot.digest if snapshot else "",
        below=snapshot.below if snapshot else "",
        workdir="" if snapshot else str(Path.cwd()),
    )
    order = dataclasses.replace(order, spec=spec)
    _start(cluster, order, given, 1 if given.per == "once" else _nodes(cluster, given), snapshot)


@command(name="list", help={"json": "as JSON"})
def eks_jobs_list(c: Context, json: bool = False) -> None:
    """Show the trainings that Kubernetes knows: id, state, nodes, age, restarts of the launcher."""
    from eks.cluster import load_eks
    from eks.jobs import EksJobs, table

    found = EksJobs(load_eks()).list()
    if json:
        print_json([dataclasses.asdict(job) for job in found])
    else:
        print(table(found))


@command(name="show", help={**_JOB_HELP, "json": "as JSON"}, positional=["job"])
def eks_jobs_show(c: Context, job: str, json: bool = False) -> None:
    """Show one training: its state, how far it is, what was asked for, and what its pods do or wait for."""
    from eks.cluster import load_eks
    from eks.job_view import view
    from eks.jobs import EksJobs

    cluster = load_eks()
    jobs = EksJobs(cluster)
    found = view(jobs.kubectl, jobs.find(job).id, cluster.shared)
    if json:
        print_json(found.to_json())
    else:
        print(found)


@command(
    name="logs",
    help={
        **_JOB_HELP,
        "follow": "go on until it ends, over its attempts",
        "raw": "to a terminal, too, byte for byte: control characters of the output can steer it",
    },
    positional=["job"],
)
def eks_jobs_logs(c: Context, job: str, follow: bool = False, raw: bool = False) -> None:
    """Print a training's console; Ctrl-C ends the printing, not the job."""
    from eks.cluster import load_eks
    from eks.jobs import EksJobs

    jobs = EksJobs(load_eks())
    raise Exit(code=jobs.logs(jobs.find(job).id, follow=follow, raw=raw))


@command(
    name="stop",
    help={**_JOB_HELP, "dry_run": "say which job it would be, end nothing", "json": "as JSON"},
    positional=["job"],
)
def eks_jobs_stop(c: Context, job: str, dry_run: bool = False, json: bool = False) -> None:
    """End a training: its ranks save and leave, its pods go; its folder stays, and --resume goes on with it."""
    from eks.cluster import load_eks
    from eks.jobs import EksJobs

    cluster = load_eks()
    jobs = EksJobs(cluster)
    found = jobs.find(job)
    if found.is_over:
        raise NothingToDo(f"{found.id} has ended: {found.state}")
    if not dry_run:
        jobs.stop(found.id)
    if json:
        print_json({**dataclasses.asdict(found), "stopped": not dry_run})
    else:
        told = f"{found.id}: {found.state}, would be stopped" if dry_run else f"{found.id}: stopped"
        print(f"{told}; its folder stays: {cluster.shared}/jobs/{found.id}")


# What each trainer reads its data by: how such a word begins (argparse takes shortened flags), and what to type.
_DATA = {
    "trainer.maskrcnn": (("DATA.BASEDIR=",), "DATA.BASEDIR=DIR, a folder with annotations/ and the images"),
    "trainer.resnet50": (("--data", "--syn"), "--data-dir DIR, or --synthetic"),
    "trainer.resnet50_torch": (("--data", "--syn"), "--data-dir DIR, or --synthetic"),
}


def check_data(module: str, words: Sequence[str]) -> None:
    """Raise ConfigError for a training without data: its pods would start, fail and start again for a minute."""
    begins, remedy = _DATA.get(module, ((), ""))
    if begins and not any(word.startswith(begins) for word in words):
        raise ConfigError(f"no data is named, and nothing was started: give {remedy}, behind --")


def _train(module: str, name: str, given: EksTrainOptions, python: str = "") -> None:
    """Start a job of a trainer, and follow it.

    python: its own interpreter; "" for the image's.
    """
    from cluster.jobs.program import Program
    from eks.cluster import load_eks
    from eks.outputs import with_type

    arguments = rest()
    if {"--help", "-h"} & set(arguments):
        raise Exit(code=trainer_help(module))
    if not given.resume:
        check_data(module, arguments)
    cluster = with_type(load_eks())
    program = Program(trainer=module, words=tuple(arguments), python=python)
    _start(cluster, _order(cluster, given, name, program), given, _nodes(cluster, given))


def _order(cluster: "EksCluster", given: EksTrainOptions, name: str, program: "Program") -> "Order":
    """Return the order for the launcher, made from the typed options. Raises ConfigError."""
    import secrets

    from cluster.jobs.record import check_id, check_name
    from cluster.jobs.spec import JobSpec
    from cluster.ssh.limits import check_environment
    from eks.job_spec import Order, new_id

    warn_of_secrets(program.words)
    if given.from_scratch and not given.resume:
        raise ConfigError("--from-scratch goes with --resume ID: a new job has no checkpoint")
    if given.begin_from and given.resume:
        raise ConfigError("--begin-from is for a new job, --resume goes on with an old one: give one of them")
    spec = JobSpec(
        name=check_name(name),
        program=program,
        np=number_of_ranks(given.np),
        profile=given.profile or None,
        environment=check_environment(given.env or []),
        begins_from=check_id(given.begin_from) if given.begin_from else "",
        unchecked=given.unchecked,
        **given.terms,
    )
    spec.check(spec.np or _nodes(cluster, given) * cluster.slots)
    return Order(
        job=check_id(given.resume) if given.resume else new_id(check_name(name)),
        submission=secrets.token_hex(4),
        spec=spec,
        from_scratch=given.from_scratch,
        skip_unfit=given.skip_unfit,
        shared=cluster.shared,
        notify=cluster.file.notify,
        results=cluster.file.results,
    )


def _nodes(cluster: "EksCluster", given: EksTrainOptions) -> int:
    """Return the number of worker pods. Raises ConfigError if the cluster has fewer nodes or slots."""
    np, nodes = number_of_ranks(given.np), number_of_ranks(given.nodes, "--nodes")
    asked = nodes or min(cluster.nodes, math.ceil(np / cluster.slots) if np else cluster.nodes)
    if asked > cluster.nodes:
        raise ConfigError(
            f"{counted(asked, 'node')} asked for, nodes.workers of {cluster.folder}/cluster.toml makes "
            f"{cluster.nodes}: ask for fewer, or change it and 'inv eks.create'"
        )
    if np and np > asked * cluster.slots:
        raise ConfigError(
            f"{counted(np, 'rank')} asked for, {counted(asked, 'node')} of {cluster.instance_type} "
            f"{'has' if asked == 1 else 'have'} {counted(asked * cluster.slots, 'slot')}: "
            "give more --nodes, or a smaller --np"
        )
    return asked


def _start(
    cluster: "EksCluster", order: "Order", given: EksTrainOptions, nodes: int, snapshot: "Snapshot | None" = None
) -> None:
    """Create the job, and follow it unless --detach is given. The task ends with the job's exit code."""
    from eks.code import secret_name, secret_of
    from eks.document import text
    from eks.jobs import EksJobs
    from eks.mpijob import mpijob

    space = cluster.settings.namespace
    secrets = [secret_of(snapshot, order.job, cluster.name, space)] if snapshot else []
    job = mpijob(cluster, order, nodes, secret_name(order.job) if secrets else "")
    if given.dry_run:
        print(text([job, *secrets]), end="")
        return
    jobs = EksJobs(cluster)
    jobs.start(job, secrets)
    folder = f"{cluster.shared}/jobs/{order.job}"
    if not given.resume:
        where = order.spec.workdir or Path(folder, "code", order.spec.below)
        print(f"working directory: {where}", file=sys.stderr)
    print(f"job {order.job}: {counted(nodes, 'node')} in namespace {space}, in {folder}", file=sys.stderr)
    if given.detach:
        return
    try:
        raise Exit(code=jobs.follow(order.job))
    except KeyboardInterrupt:
        print(
            f"\ndetached; the job goes on. Its log: inv eks.jobs.logs -f {order.job}   "
            f"Its end: inv eks.jobs.stop {order.job}",
            file=sys.stderr,
        )

"""How tasks start a training or another program of the trainers: as a job over the hosts, or on the master."""

import dataclasses
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from invoke import Exit

from cluster.commandline.command import rest
from cluster.errors import ConfigError
from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.terminal import counted

if TYPE_CHECKING:
    from cluster.jobs.client import Jobs, Training
    from cluster.jobs.record import Job, JobView

LOOK_HELP = {"unchecked": "start it on hosts that nobody looked at", "skip_unfit": "train on the hosts that are fit"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every task that starts a training takes, as it was typed."""

    hosts: str = ""
    np: str = ""
    profile: str = ""
    env: list[str] = field(default_factory=list)
    dry_run: bool = False
    detach: bool = False
    unchecked: bool = False
    skip_unfit: bool = False


def opened_jobs(cluster: Cluster | None = None) -> "AbstractContextManager[Jobs]":
    """The jobs of a cluster, of the one that the tasks mean without it, for a `with`."""
    from cluster.jobs.client import opened

    return opened(cluster or load_cluster())


def on_master(cluster: Cluster, module: str, arguments: list[str]) -> None:
    """Run a module on the master, in the foreground; the task ends with its exit code."""
    from cluster.run import command

    raise Exit(code=command.on_master(cluster, module, arguments))


def number_of_ranks(np: str) -> int | None:
    """--np as it was typed; None if it was not. Raises ConfigError."""
    if not np:
        return None
    if not (np.isascii() and np.isdigit() and len(np) < 7 and int(np) > 0):
        raise ConfigError(f"--np is {np!r}, expected one number of ranks, such as 4")
    return int(np)


def train(module: str, name: str, options: Options, arguments: list[str] | None = None) -> None:
    """Start a job of a trainer on hosts that are fit, and follow it; its flags are the words after `--` by default."""
    from cluster import hostset
    from cluster.jobs.client import Training
    from cluster.jobs.record import check_name
    from cluster.ssh.limits import check_environment

    arguments = rest() if arguments is None else arguments
    if {"--help", "-h"} & set(arguments):
        raise Exit(code=trainer_help(module))
    np = number_of_ranks(options.np)
    cluster = load_cluster()
    training = Training(
        name=check_name(name),
        module=module,
        arguments=tuple(arguments),
        np=np,
        profile=options.profile or None,
        hosts=hostset.select(cluster.hosts, options.hosts or None),
        environment=check_environment(options.env),
    )
    if options.skip_unfit or not (options.unchecked or options.dry_run):
        training = on_fit_hosts(cluster, training, skip_unfit=options.skip_unfit)
    with opened_jobs(cluster) as jobs:
        start(cluster, jobs, training, None, dry_run=options.dry_run, detach=options.detach)


def trainer_help(module: str) -> int:
    """Print a trainer's own flags here, starting nothing; its exit code."""
    return subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT).returncode


def on_fit_hosts(
    cluster: Cluster, training: "Training", *, skip_unfit: bool = False, may_shrink: bool = False
) -> "Training":
    """The training on those of its hosts that may train, looked at now; raises Unfit as `fit_hosts` does.

    may_shrink: nobody asked for its number of ranks, so it gets by with the slots that are left.
    """
    from cluster.health.before_training import fit_hosts

    hosts = fit_hosts(cluster, training.hosts, np=training.np, skip_unfit=skip_unfit)
    slots = sum(h.slots for h in hosts)
    np = min(training.np, slots) if may_shrink and training.np else training.np
    return dataclasses.replace(training, hosts=hosts, np=np)


def refuse_hosts_in_use(cluster: Cluster, jobs: "Jobs", job: "Job") -> None:
    """Raises ConfigError if a host that the job wants has processes of another that goes on, whoever keeps its record.

    The jobs of this cluster's own shared folder are refused by its master; this is a look at the hosts themselves.
    """
    from cluster.hostset import fold
    from cluster.kill.kill import KnownJobs, find_leftovers
    from cluster.ssh.fanout import Reach

    listing = jobs.list()
    with Reach(cluster) as reach:
        known = KnownJobs.of(listing.jobs, listing.damaged_ids)
        found = find_leftovers(reach, cluster, job.hosts, known)
    others = {p.job for ps in found.processes.values() for p in ps if p.holds_host}
    for other in sorted(others - {job.id, *(one.id for one in listing.jobs)}):
        hosts = [h.address for h, ps in found.processes.items() if any(p.job == other and p.holds_host for p in ps)]
        raise ConfigError(
            f"hosts taken by {other}: its processes run on {fold(hosts)}; wait for it, stop it where it was started, "
            "or take others with --hosts ('inv kill --dry-run' shows them)"
        )


def train_for_scaling(jobs: "Jobs", cluster: Cluster, hosts: str, np: int) -> str:
    """The id of a job that has trained on this many ranks."""
    from cluster import hostset
    from cluster.jobs.client import Training
    from cluster.jobs.state import JobState

    job = jobs.plan(
        Training(
            name=f"scaling-{np}",
            module="trainer.resnet50",
            arguments=tuple(rest()),
            np=np,
            hosts=hostset.select(cluster.hosts, hosts or None),
        )
    )
    refuse_hosts_in_use(cluster, jobs, job)
    jobs.submit(job)
    code = jobs.logs(job.id, follow=True)
    if code or jobs.show(job.id).state is not JobState.SUCCEEDED:  # Ctrl-C ends the following only
        raise Exit(
            f"{job.id} has not succeeded, so there is nothing to compare yet; when it has: "
            f"inv train.scaling --job {job.id} --job OTHER",
            code=code or 130,
        )
    return job.id


def start(
    cluster: Cluster, jobs: "Jobs", training: "Training", resume: "JobView | None", *, dry_run: bool, detach: bool
) -> None:
    """Plan and submit a training or a job's next attempt; the task ends with its exit code unless detached."""
    from cluster.launch.mpirun import shown

    job = jobs.plan(training, resume=resume)
    if dry_run:
        print(shown(job.mpirun))
        return
    refuse_hosts_in_use(cluster, jobs, job)
    folder = jobs.submit(job)
    print(f"job {job.id}: {counted(job.np, 'rank')} on {counted(len(job.hosts), 'host')}, in {folder}", file=sys.stderr)
    if not detach:
        raise Exit(code=jobs.logs(job.id, follow=True))

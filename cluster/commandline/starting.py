"""How tasks start a training or another program of the trainers: as a job over the hosts, or on the master."""

import sys
from typing import Any

from invoke import Exit

from cluster.commandline.command import rest
from cluster.inventory import Cluster, load_cluster

LOOK_HELP = {"unchecked": "start it on hosts that nobody looked at", "skip_unfit": "train on the hosts that are fit"}


def opened_jobs(cluster: Cluster | None = None) -> Any:
    """The jobs of a cluster, of the one that the tasks mean without it, for a `with`."""
    from cluster.jobs.client import opened

    return opened(cluster or load_cluster())


def on_master(cluster: Cluster, module: str, arguments: list[str]) -> None:
    """Run a module on the master, in the foreground; the task ends with its exit code."""
    from cluster.run import command

    raise Exit(code=command.on_master(cluster, module, arguments))


def train(
    module: str,
    name: str,
    hosts: str,
    np: int,
    profile: str,
    env: list[str],
    dry_run: bool,
    detach: bool,
    unchecked: bool,
    skip_unfit: bool,
    arguments: list[str] | None = None,
) -> None:
    """Start a job of a trainer on hosts that are fit, and follow it; its flags are the words after `--` by default."""
    from cluster import hostset
    from cluster.jobs.client import Training, on_fit_hosts
    from cluster.ssh.limits import check_environment

    cluster = load_cluster()
    training = Training(
        name=name,
        module=module,
        arguments=tuple(rest() if arguments is None else arguments),
        np=np or None,
        profile=profile or None,
        hosts=hostset.select(cluster.hosts, hosts or None),
        environment=check_environment(env),
    )
    if skip_unfit or not (unchecked or dry_run):
        training = on_fit_hosts(cluster, training, skip_unfit=skip_unfit)
    with opened_jobs(cluster) as jobs:
        start(jobs, training, None, dry_run, detach)


def trained(jobs: Any, cluster: Cluster, hosts: str, np: int) -> str:
    """The id of a job that has trained on this many ranks."""
    from cluster import hostset
    from cluster.jobs.client import Training

    job = jobs.plan(
        Training(
            name=f"scaling-{np}",
            module="trainer.resnet50",
            arguments=tuple(rest()),
            np=np,
            hosts=hostset.select(cluster.hosts, hosts or None),
        )
    )
    jobs.submit(job)
    code = jobs.logs(job.id, follow=True)
    if code or jobs.call("show", job.id)["state"] != "succeeded":  # Ctrl-C ends the following only
        raise Exit(
            f"{job.id} has not succeeded, so there is nothing to compare yet; when it has: "
            f"inv train.scaling --job {job.id} --job OTHER",
            code=code or 130,
        )
    return str(job.id)


def start(jobs: Any, training: Any, resume: str | None, dry_run: bool, detach: bool) -> None:
    """Plan and submit a training or a job's next attempt; the task ends with its exit code unless detached."""
    from cluster.launch.mpirun import shown

    job = jobs.plan(training, resume=resume)
    if dry_run:
        print(shown(job.mpirun))
        return
    answer = jobs.submit(job)
    print(f"job {job.id}: {job.np} ranks on {len(job.hosts)} hosts, in {answer['folder']}", file=sys.stderr)
    if not detach:
        raise Exit(code=jobs.logs(job.id, follow=True))

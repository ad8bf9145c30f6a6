"""Start of a training or another program of the trainers, as tasks do it: as a job, or on the master."""

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from invoke import Exit

from cluster.errors import ConfigError
from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.jobs.terms import number_of_ranks
from cluster.ssh.secret_variables import masked
from cluster.terminal import counted
from dlami.tasks.command import rest
from dlami.tasks.start_options import StartOptions, TrainOptions

if TYPE_CHECKING:
    from cluster.code.snapshot import Snapshot
    from cluster.jobs.client.client import JobsClient
    from cluster.jobs.program import Program
    from cluster.jobs.record import JobView
    from cluster.jobs.spec import JobSpec
    from cluster.packages.interpreter import Interpreter

PYTORCH = "/opt/pytorch/bin/python"  # the interpreter that has PyTorch in AWS's images


def opened_jobs(cluster: Cluster | None = None) -> "AbstractContextManager[JobsClient]":
    """Return the jobs of a cluster, by default the current one, as a context manager."""
    from cluster.jobs.client.client import opened

    return opened(cluster or load_cluster())


def on_master(cluster: Cluster, module: str, arguments: list[str]) -> None:
    """Run a module on the master, in the foreground. The task ends with its exit code."""
    from cluster.run import command

    raise Exit(code=command.on_master(cluster, module, arguments))


def train(
    module: str,
    name: str,
    options: TrainOptions,
    arguments: list[str] | None = None,
    *,
    one_per_host: bool = False,
    python: str = "",
) -> None:
    """Start a trainer as a job on healthy hosts, and follow it. Its flags are by default the words after `--`.

    one_per_host: for programs that keep all cores of a host busy by themselves. python: the trainer's own interpreter.
    """
    from cluster import hostset
    from cluster.jobs.program import Program, seats

    arguments = rest() if arguments is None else arguments
    if {"--help", "-h"} & set(arguments):
        raise Exit(code=trainer_help(module))
    per = "node" if one_per_host else "gpu"
    spec = asked_for(options, name, Program(trainer=module, words=tuple(arguments), python=python, per=per))
    cluster = load_cluster()
    hosts = hostset.select(cluster.hosts, options.hosts or None, to_train=True)
    start_on_fit_hosts(cluster, dataclasses.replace(spec, hosts=seats(hosts, per)), options)


def asked_for(options: TrainOptions, name: str, program: "Program") -> "JobSpec":
    """Return the job as typed, without its hosts. Raises ConfigError."""
    from cluster.jobs.record import check_name
    from cluster.jobs.spec import JobSpec
    from cluster.ssh.limits import check_environment

    return JobSpec(
        name=check_name(name),
        program=program,
        np=number_of_ranks(options.np),
        profile=options.profile or None,
        environment=check_environment(options.env or []),
        begins_from=options.resume,
        exclusive=options.exclusive,
        unchecked=options.unchecked,
        **options.terms,
    )


def start_on_fit_hosts(
    cluster: Cluster, spec: "JobSpec", options: StartOptions, snapshot: "Snapshot | None" = None
) -> str:
    """Check the hosts' health unless --unchecked, then plan, submit and follow the job. Return its id if detached.

    snapshot: the operator's code, which a program runs.
    """
    spec = looked_at(cluster, spec, options)
    with opened_jobs(cluster) as jobs:
        return start(cluster, jobs, spec, None, options, snapshot)


def trainer_help(module: str) -> int:
    """Print a trainer's own flags, without starting it. Return the exit code."""
    return subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT).returncode


def looked_at(cluster: Cluster, spec: "JobSpec", options: StartOptions, *, may_shrink: bool = False) -> "JobSpec":
    """Return the request on hosts checked by these options. Raises UnfitHosts as `fit_hosts` does."""
    from cluster.setup.on_demand import bring_project

    needs_packages = spec.program.is_built_in and not spec.program.python
    bring_project(cluster, spec.hosts, needs_packages=needs_packages, dry_run=options.dry_run)
    if options.queue:  # they are looked at when its turn comes
        if options.skip_unfit:
            raise ConfigError(
                "--queue looks at hosts when its turn comes, and does without those that are unfit if --min-np allows "
                "it: leave --skip-unfit out"
            )
        return spec
    if options.skip_unfit or not (options.unchecked or options.dry_run):
        return on_fit_hosts(cluster, spec, skip_unfit=options.skip_unfit, may_shrink=may_shrink)
    return spec


def on_fit_hosts(cluster: Cluster, spec: "JobSpec", *, skip_unfit: bool = False, may_shrink: bool = False) -> "JobSpec":
    """Return the request on those of its hosts that may train, checked now. Raises UnfitHosts as `fit_hosts` does.

    may_shrink: use fewer ranks if slots are missing, because the operator gave no number of ranks.
    """
    from cluster.health.before_training import fit_hosts

    hosts = fit_hosts(cluster, spec.hosts, np=spec.np, skip_unfit=skip_unfit)
    slots = sum(h.slots for h in hosts)
    np = min(spec.np, slots) if may_shrink and spec.np else spec.np
    return dataclasses.replace(spec, hosts=hosts, np=np)


def on_free(cluster: Cluster, jobs: "JobsClient", spec: "JobSpec", resumed: str = "") -> "JobSpec":
    """Return the request on those of its hosts, or slots of one, that are free now. Raises ConfigError."""
    from cluster.jobs.free_slots import on_free_slots
    from cluster.ssh.fanout import Executor

    with Executor(cluster) as reach:
        return on_free_slots(reach, cluster, jobs.list(going=True), spec, resumed)


def warn_of_secrets(words: Sequence[str]) -> None:
    """Warn on stderr of program words that look like secrets."""
    if masked(words) != tuple(words):
        print(
            "warning: a word of the program looks like a secret: every user of its hosts can read it while the program "
            "runs (the job's public record has it masked); give the program a file instead",
            file=sys.stderr,
        )


def prepared(
    cluster: Cluster, spec: "JobSpec", options: StartOptions, folder: str
) -> "tuple[JobSpec, Interpreter | None]":
    """Install the program's environment on its hosts, if it has one. Return the request with it.

    folder: the program's code on the master. Raises ConfigError if the program could not begin there.
    """
    from cluster.launch.mpirun import hosts_for
    from cluster.packages.client import Packages
    from cluster.packages.recipe import recipe_of
    from cluster.ssh.fanout import Executor

    wanted, interpreter = spec.packages, None
    hosts = (cluster.master,) if options.queue else hosts_for(spec.hosts, spec.np)  # others in their turn
    with Executor(cluster) as reach:
        packages = Packages(reach, cluster)
        if wanted:
            recipe = None if wanted.id else recipe_of(wanted)  # one that was built is kept on the master
            interpreter = packages.ready(wanted, recipe, hosts, changes=not options.dry_run)
            spec = dataclasses.replace(spec, packages=interpreter.wanted)
        if folder and not (options.dry_run or options.unchecked):
            packages.check(spec.program.words, folder, interpreter, spec.environment)
    return spec, interpreter


def start(
    cluster: Cluster,
    jobs: "JobsClient",
    spec: "JobSpec",
    resume: "JobView | None",
    options: StartOptions,
    snapshot: "Snapshot | None" = None,
) -> str:
    """Plan and submit a job or its next attempt, and follow it. The task ends with its exit code then.

    Returns the job's id with --detach, "" after a dry run.
    """
    from cluster.jobs.client.client import queued
    from cluster.jobs.plan import working_directory
    from cluster.jobs.record import JobPaths
    from cluster.launch.mpirun import shown

    if not (options.dry_run or options.queue):
        spec = on_free(cluster, jobs, spec, resume.id if resume else "")
    job, folder = jobs.plan(spec, resume=resume), ""
    if not options.dry_run:
        folder = code_on_master(cluster, spec, resume, snapshot, is_read=not options.unchecked)
    spec, interpreter = prepared(cluster, spec, options, folder)
    job = jobs.plan(spec, resume=resume, interpreter=interpreter) if interpreter else job
    if options.dry_run:
        print(shown(job.plan.mpirun))
        return ""
    where = f"{counted(job.np, 'rank')} on {counted(len(job.hosts), 'host')}"
    if options.queue:
        job, where = queued(job), f"{counted(job.np, 'rank')}, in the queue"
    if job.spec.begins_from and not resume:
        print(f"copying the checkpoints of {job.spec.begins_from} on the master", file=sys.stderr)
    folder = jobs.submit(job)
    print(f"working directory: {working_directory(job, JobPaths(Path(folder)))}", file=sys.stderr)
    print(f"job {job.id}: {where}, in {folder}", file=sys.stderr)
    if not options.detach:
        raise Exit(code=jobs.logs(job.id, follow=True))
    return job.id


def code_on_master(
    cluster: Cluster, spec: "JobSpec", resume: "JobView | None", snapshot: "Snapshot | None", *, is_read: bool
) -> str:
    """Bring the code to the master, and return the folder there in which the program can be checked.

    A resumed job keeps its code. is_read: also unpack the code, for the check. Raises ClusterError.
    """
    if snapshot:
        return delivered(cluster, snapshot, is_read=is_read)
    if spec.own_disk:
        return ""
    return f"{resume.folder}/code/{spec.below}" if resume and spec.code else spec.workdir


def delivered(cluster: Cluster, snapshot: "Snapshot", *, is_read: bool) -> str:
    """Send the code to the master if it lacks it. Return the unpacked folder, "" unless `is_read`."""
    from cluster.code.deliver import deliver
    from cluster.ssh.fanout import Executor

    with Executor(cluster) as reach:
        code = deliver(reach, cluster, snapshot, is_read=is_read)
    sent = f"{code.sent_bytes:,} bytes sent" if code.sent_bytes else "nothing sent, the master has this code"
    print(f"code: {sent}", file=sys.stderr)
    return f"{code.unpacked}/{snapshot.below}" if is_read else ""

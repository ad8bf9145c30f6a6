"""How tasks start a training or another program of the trainers: as a job over the hosts, or on the master."""

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke import Exit

from cluster.errors import ConfigError
from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.ssh.secret_variables import masked
from cluster.terminal import counted, pass_on, pass_on_to_stderr
from dlami.tasks.command import HOSTS_HELP, option, rest

if TYPE_CHECKING:
    from cluster.code.snapshot import Snapshot
    from cluster.jobs.client.client import Jobs
    from cluster.jobs.program import Program, Trainer
    from cluster.jobs.record import JobView
    from cluster.jobs.training import HealingTerms, Training

LEAST_HANG_S = 5  # hosts are heard every 3 s
PYTORCH = "/opt/pytorch/bin/python"  # the interpreter that has PyTorch in AWS's images


@dataclass(frozen=True, kw_only=True)
class NumberOptions:
    """How many ranks, as it was typed."""

    np: str = option("", "ranks, one per slot by default; of a job that goes on, as before")


@dataclass(frozen=True, kw_only=True)
class WhereOptions(NumberOptions):
    """On which hosts, as it was typed."""

    hosts: str = option("", HOSTS_HELP)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """How ranks are started, as it was typed."""

    profile: str = option("", "tcp, ena or efa; by detection without it")
    env: Any = option(None, "NAME=VALUE for every rank, may be repeated", repeats=True)


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(ProfileOptions, WhereOptions):
    """How ranks are started, and on which hosts, as it was typed."""


@dataclass(frozen=True, kw_only=True)
class TermOptions(NumberOptions):
    """On what terms an attempt is started, and others follow, as it was typed."""

    dry_run: bool = option(False, "print the mpirun command, start nothing")
    detach: bool = option(False, "start it and return")
    unchecked: bool = option(False, "start it on hosts that nobody looked at")
    skip_unfit: bool = option(False, "train on the hosts that are fit")
    no_heal: bool = option(False, "one attempt; without it what fails goes on by itself, from the newest checkpoint")
    min_np: str = option("", "ranks that it may go on with while hosts are missing; all by default")
    attempts_per_hour: str = option("", "how often it may begin again by itself, 0: as often as it takes; by default 6")
    hang_after: str = option(
        "", "seconds without progress that are a hang, 0: nothing is; by default as docs/jobs.md says"
    )

    @property
    def terms(self) -> "HealingTerms":
        """On what terms it goes on by itself. Raises ConfigError."""
        from cluster.jobs.training import HealingTerms

        return self.terms_after(HealingTerms())

    def terms_after(self, before: "HealingTerms") -> "HealingTerms":
        """These terms with what was typed in the place of it. Raises ConfigError."""
        per_hour = str(self.attempts_per_hour)
        if per_hour and not (per_hour.isascii() and per_hour.isdigit() and len(per_hour) < 7):
            raise ConfigError(f"--attempts-per-hour is {per_hour}, expected a number, 0 or more")
        return dataclasses.replace(
            before,
            heal=before.heal and not self.no_heal,
            min_np=number_of_ranks(self.min_np, "--min-np") or before.min_np,
            attempts_per_hour=int(per_hour) if per_hour else before.attempts_per_hour,
        )


@dataclass(frozen=True, kw_only=True)
class StartOptions(TermOptions, WhereOptions):
    """What every task takes that starts an attempt, as it was typed."""

    queue: bool = option(False, "wait for hosts that are taken, first in, first out, instead of being refused")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(StartOptions, LaunchOptions):
    """What every task takes that starts a training."""

    resume: str = option("", "a job of yours that has ended: begin from its newest checkpoint, with today's code")
    exclusive: bool = option(
        False, "take the whole host, though it has more slots than ranks; over several hosts it does so anyway"
    )


def opened_jobs(cluster: Cluster | None = None) -> "AbstractContextManager[Jobs]":
    """The jobs of a cluster, of the one that the tasks mean without it, for a `with`."""
    from cluster.jobs.client.client import opened

    return opened(cluster or load_cluster())


def on_master(cluster: Cluster, module: str, arguments: list[str]) -> None:
    """Run a module on the master, in the foreground; the task ends with its exit code."""
    from cluster.run import command

    raise Exit(code=command.on_master(cluster, module, arguments))


def seconds(text: str, name: str, least: int) -> float | None:
    """A time as it was typed: 0, or at least so long; None if it was not. Raises ConfigError."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 7 and (int(text) >= least or int(text) == 0)):
        raise ConfigError(f"{name} is {text!r}, expected seconds: 0, or {least} and more")
    return float(text)


def ago(text: str, name: str) -> float | None:
    """How long ago, in seconds, as it was typed: 90s, 10m, 2h, 1d; None if it was not. Raises ConfigError."""
    if not text:
        return None
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    if not (text[:-1].isascii() and text[:-1].isdigit() and len(text) < 8 and text[-1] in units):
        raise ConfigError(f"{name} is {text!r}, expected a time as 90s, 10m, 2h or 1d")
    return float(int(text[:-1]) * units[text[-1]])


def number_of_ranks(np: str, name: str = "--np") -> int | None:
    """--np as it was typed; None if it was not. Raises ConfigError."""
    if not np:
        return None
    if not (np.isascii() and np.isdigit() and len(np) < 7 and int(np) > 0):
        raise ConfigError(f"{name} is {np!r}, expected one number of ranks, such as 4")
    return int(np)


def train(
    module: str,
    name: str,
    options: TrainOptions,
    arguments: list[str] | None = None,
    *,
    one_per_host: bool = False,
    python: str = "",
) -> None:
    """Start a job of a trainer on hosts that are fit, and follow it; its flags are the words after `--` by default.

    one_per_host: for programs that keep all cores of a host busy by themselves. python: the trainer's own interpreter.
    """
    from cluster import hostset
    from cluster.jobs.program import Trainer, seats

    arguments = rest() if arguments is None else arguments
    if {"--help", "-h"} & set(arguments):
        raise Exit(code=trainer_help(module))
    training = asked_for(options, name, Trainer(module=module, arguments=tuple(arguments), python=python))
    cluster = load_cluster()
    hosts = hostset.select(cluster.hosts, options.hosts or None, to_train=True)
    hosts = seats(hosts, "node") if one_per_host else hosts
    exclusive = training.exclusive or one_per_host
    start_on_fit_hosts(cluster, dataclasses.replace(training, hosts=hosts, exclusive=exclusive), options)


def asked_for(options: TrainOptions, name: str, what: "Trainer | Program") -> "Training":
    """What is to run, on the terms that were typed, on hosts that are still to be chosen. Raises ConfigError."""
    from cluster.jobs.record import check_name
    from cluster.jobs.training import Training
    from cluster.ssh.limits import check_environment

    return Training(
        name=check_name(name),
        what=what,
        np=number_of_ranks(options.np),
        profile=options.profile or None,
        environment=check_environment(options.env or []),
        terms=options.terms,
        hang_after=seconds(options.hang_after, "--hang-after", LEAST_HANG_S),
        begins_from=options.resume,
        exclusive=options.exclusive,
    )


def start_on_fit_hosts(
    cluster: Cluster, training: "Training", options: StartOptions, snapshot: "Snapshot | None" = None
) -> str:
    """Look at the hosts unless that was declined, then plan, submit and follow the job; its id if that was detached.

    snapshot: the operator's code, which a program runs.
    """
    training = looked_at(cluster, training, options)
    with opened_jobs(cluster) as jobs:
        return start(cluster, jobs, training, None, options, snapshot)


def trainer_help(module: str) -> int:
    """Print a trainer's own flags here, starting nothing; its exit code."""
    return subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT).returncode


def looked_at(cluster: Cluster, training: "Training", options: StartOptions, *, may_shrink: bool = False) -> "Training":
    """The training on hosts that were looked at as the options say; raises Unfit as `fit_hosts` does."""
    from cluster.jobs.program import Trainer
    from cluster.setup.on_demand import bring_project

    needs_packages = isinstance(training.what, Trainer) and not training.what.python
    bring_project(cluster, training.hosts, needs_packages=needs_packages, dry_run=options.dry_run)
    if options.queue:  # they are looked at when its turn comes
        if options.skip_unfit:
            raise ConfigError(
                "--queue looks at hosts when its turn comes, and does without those that are unfit if --min-np allows "
                "it: leave --skip-unfit out"
            )
        return training
    if options.skip_unfit or not (options.unchecked or options.dry_run):
        return on_fit_hosts(cluster, training, skip_unfit=options.skip_unfit, may_shrink=may_shrink)
    return training


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


def on_free(cluster: Cluster, jobs: "Jobs", training: "Training", resumed: str = "") -> "Training":
    """Return the training on those of its hosts, or slots of one, that are free now. Raises ConfigError."""
    from cluster.jobs.free_slots import on_free_slots
    from cluster.ssh.fanout import Reach

    with Reach(cluster) as reach:
        return on_free_slots(reach, cluster, jobs.list(going=True), training, resumed)


def train_for_scaling(jobs: "Jobs", cluster: Cluster, hosts: str, np: int, *, as_json: bool) -> str:
    """The id of a job that has trained on this many ranks.

    as_json: the answer will be, so the training's own words go to stderr.
    """
    from cluster import hostset
    from cluster.jobs.program import Trainer
    from cluster.jobs.state import JobState
    from cluster.jobs.training import HealingTerms, Training

    training = Training(
        name=f"scaling-{np}",
        terms=HealingTerms(heal=False),  # what was interrupted measures nothing
        what=Trainer(module="trainer.resnet50", arguments=tuple(rest())),
        np=np,
        hosts=hostset.select(cluster.hosts, hosts or None, to_train=True),
        exclusive=True,  # nobody else is measured
    )
    job = jobs.plan(on_free(cluster, jobs, training))
    jobs.submit(job)
    code = jobs.logs(job.id, follow=True, on_output=pass_on_to_stderr if as_json else pass_on)
    if code or jobs.show(job.id).state is not JobState.SUCCEEDED:  # Ctrl-C ends the following only
        raise Exit(
            f"{job.id} has not succeeded, so there is nothing to compare yet; when it has: "
            f"inv train.scaling --job {job.id} --job OTHER",
            code=code or 130,
        )
    return job.id


def warn_of_secrets(words: Sequence[str]) -> None:
    """Warn on stderr of program words that look like secrets."""
    if masked(words) != tuple(words):
        print(
            "warning: a word of the program looks like a secret: every user of its hosts can read it while the program "
            "runs (the job's public record has it masked); give the program a file instead",
            file=sys.stderr,
        )


def prepared(cluster: Cluster, training: "Training", options: StartOptions, folder: str) -> "Training":
    """The program with its environment on its hosts, if it has one, and known to be able to begin there.

    folder: its code on the master. Raises ConfigError with a sentence that says what is missing.
    """
    from cluster.jobs.program import Program
    from cluster.launch.mpirun import hosts_for
    from cluster.packages.client import Packages
    from cluster.ssh.fanout import Reach

    program = training.what
    assert isinstance(program, Program)
    hosts = (cluster.master,) if options.queue else hosts_for(training.hosts, training.np)  # others in their turn
    with Reach(cluster) as reach:
        packages, interpreter = Packages(reach, cluster), None
        if training.packages:
            interpreter = packages.ready(training.packages, training.recipe, hosts, changes=not options.dry_run)
            training = dataclasses.replace(
                training,
                packages=interpreter.wanted,
                prefix=interpreter.prefix,
                variables=interpreter.variables,
            )
        if folder and not (options.dry_run or options.unchecked):
            packages.check(program.words, folder, interpreter, training.environment)
    return training


def start(
    cluster: Cluster,
    jobs: "Jobs",
    training: "Training",
    resume: "JobView | None",
    options: StartOptions,
    snapshot: "Snapshot | None" = None,
) -> str:
    """Plan and submit a training or a job's next attempt; the task ends with its exit code, or it is detached.

    Its id then; "" if it was not to be started.
    """
    from cluster.jobs.client.client import queued
    from cluster.jobs.plan import working_directory
    from cluster.jobs.program import Program
    from cluster.jobs.record import JobPaths
    from cluster.launch.mpirun import shown

    if not (options.dry_run or options.queue):
        training = on_free(cluster, jobs, training, resume.id if resume else "")
    job, is_program = jobs.plan(training, resume=resume), isinstance(training.what, Program)
    if is_program:
        is_read, folder = not options.unchecked, ""
        if not options.dry_run:
            folder = code_on_master(cluster, training, resume, snapshot, is_read=is_read)
        training = prepared(cluster, training, options, folder)
        job = jobs.plan(training, resume=resume) if training.packages else job
    if options.dry_run:
        print(shown(job.mpirun))
        return ""
    where = f"{counted(job.np, 'rank')} on {counted(len(job.hosts), 'host')}"
    if options.queue:
        job, where = queued(job, training, unchecked=options.unchecked), f"{counted(job.np, 'rank')}, in the queue"
    if job.begins_from:
        print(f"copying the checkpoints of {job.begins_from} on the master", file=sys.stderr)
    folder = jobs.submit(job)
    print(f"working directory: {working_directory(job, JobPaths(Path(folder)))}", file=sys.stderr)
    print(f"job {job.id}: {where}, in {folder}", file=sys.stderr)
    if not options.detach:
        raise Exit(code=jobs.logs(job.id, follow=True))
    return job.id


def code_on_master(
    cluster: Cluster, training: "Training", resume: "JobView | None", snapshot: "Snapshot | None", *, is_read: bool
) -> str:
    """Return the folder on the master in which the program can be looked at, once its code is there.

    A job that is resumed keeps its code. is_read: somebody will look at it. Raises ClusterError.
    """
    if snapshot:
        return delivered(cluster, snapshot, is_read=is_read)
    if training.own_disk:
        return ""
    return f"{resume.folder}/code/{training.below}" if resume and training.code else training.workdir


def delivered(cluster: Cluster, snapshot: "Snapshot", *, is_read: bool) -> str:
    """Send the code to the master if it lacks it. Return the folder to look at it, "" unless `is_read`."""
    from cluster.code.deliver import deliver
    from cluster.ssh.fanout import Reach

    with Reach(cluster) as reach:
        code = deliver(reach, cluster, snapshot, is_read=is_read)
    sent = f"{code.sent_bytes:,} bytes sent" if code.sent_bytes else "nothing sent, the master has this code"
    print(f"code: {sent}", file=sys.stderr)
    return f"{code.unpacked}/{snapshot.below}" if is_read else ""

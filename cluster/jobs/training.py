"""Specification of a training: what to run, where and on what terms. Also made from an ended job, to resume it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster import hostset
from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.program import Program, Trainer, seats
from cluster.jobs.record import Job, JobView
from cluster.packages.interpreter import Wanted
from cluster.packages.recipe import Recipe
from cluster.terminal import counted


@dataclass(frozen=True, kw_only=True)
class HealingTerms:
    """Terms on which a job is retried after a failed attempt."""

    heal: bool = True
    min_np: int | None = None  # fewest ranks to continue with; None: all that were asked for
    attempts_per_hour: int = 6  # 0: no limit

    @classmethod
    def of(cls, job: Job) -> "HealingTerms":
        """Return the terms of a job."""
        return cls(heal=job.heal, min_np=job.min_np, attempts_per_hour=job.attempts_per_hour)

    def check(self, np: int) -> None:
        """Raise ConfigError if a training with so many ranks cannot be retried on these terms."""
        if self.min_np is not None and self.min_np > np:
            raise ConfigError(f"--min-np is {self.min_np}, and {counted(np, 'rank')} are to train: give at most {np}")


@dataclass(frozen=True, kw_only=True)
class Training:
    """Specification of a training by the operator."""

    name: str  # the job's name
    what: Trainer | Program
    hosts: tuple[Host, ...] = ()  # with one slot per rank that they may have
    idle: tuple[Host, ...] = ()  # others that it may have; without a stack they are spares
    np: int | None = None  # ranks; None: one per slot
    profile: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    terms: HealingTerms = HealingTerms()
    hang_after: float | None = None  # seconds without progress that count as a hang; 0: never; None: the default
    begins_from: str = ""  # id of the job whose checkpoints a new job begins with
    exclusive: bool = False  # it takes whole hosts, even if it has fewer ranks there than slots
    # Fields for a program, the same as in the job's record (cluster/jobs/record.py):
    slots: Mapping[str, int] = field(default_factory=dict)
    code: str = ""
    below: str = ""
    own_disk: str = ""
    workdir: str = ""
    packages: Wanted | None = None
    recipe: Recipe | None = None  # source to build its packages from; None: as before
    prefix: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def next_attempt(
    job: JobView,
    cluster: Cluster,
    hosts: str | None,
    np: int | None,
    terms: HealingTerms | None = None,
    hang_after: float | None = None,
) -> Training:
    """Return the training that resumes a job on the cluster's current hosts. Arguments left out are as before.

    Raises ConfigError if the job is still active.
    """
    if not job.state.may_resume:
        raise ConfigError(
            f"{job.id} is {job.state}: there is nothing to resume; 'inv jobs.logs {job.id} --follow' follows it"
        )
    asked = job.job
    known = {h.address: h for h in cluster.hosts}
    whole = asked.whole_hosts or asked.hosts or asked.wanted
    before = tuple(known[h.address] for h in whole if h.address in known)
    is_other = bool(hosts) or len(before) < len(whole)
    once = asked.per == "once"  # a master that does not train may run it, if it is named
    today = hostset.select(cluster.hosts, hosts, to_train=not once, for_ranks=once) if is_other else before
    return Training(
        name=asked.name,
        what=_what(asked),
        hosts=seats(today[:1] if once else today, asked.per),
        np=np or asked.whole_np or asked.np,
        profile=asked.profile,
        environment=asked.environment,
        terms=terms or HealingTerms.of(asked),
        hang_after=asked.hang_after if hang_after is None else hang_after,
        exclusive=asked.exclusive,
        slots={h.address: h.slots for h in cluster.hosts} if asked.program else {},
        code=asked.code,
        below=asked.below,
        own_disk=asked.own_disk,
        workdir=asked.workdir,
        packages=asked.packages,
        prefix=asked.prefix,
        variables=asked.variables,
    )


def with_python(training: Training, python: str) -> Training:
    """Return the training with another Python interpreter. Raises ConfigError if it is not a PyTorch trainer's."""
    if not (isinstance(training.what, Trainer) and training.what.python):
        what = f"{training.name} runs with the project's environment, or with packages of its own"
        raise ConfigError(f"--python is for PyTorch trainings: {what}")
    return dataclasses.replace(training, what=dataclasses.replace(training.what, python=python))


def from_scratch(training: Training, attempt: int) -> Training:
    """Return a training whose given attempt starts anew if no checkpoint can be read. Later attempts do not.

    Raises ConfigError for a program of the user's own.
    """
    if not isinstance(training.what, Trainer):
        raise ConfigError(f"--from-scratch is for this project's trainings: {training.name} reads its own checkpoints")
    words = (*training.what.arguments, "--from-scratch-attempt", str(attempt))
    return dataclasses.replace(training, what=dataclasses.replace(training.what, arguments=words))


def _what(job: Job) -> Trainer | Program:
    """Return the trainer or program that the job ran. Raises ConfigError if its record does not name one."""
    if job.program:
        return Program(words=job.command, per=job.per)
    try:
        module_at, folder_at = job.command.index("-m") + 1, job.command.index("--job-dir")
    except ValueError:
        raise ConfigError(f"{job.id} does not say which trainer it ran: start it anew") from None
    own = job.command[0] if job.python and job.command[0] != job.python else ""
    return Trainer(module=job.command[module_at], arguments=job.command[folder_at + 2 :], python=own)

"""Options of the tasks that start or resume a job, as typed."""

from dataclasses import dataclass
from typing import Any

from cluster.jobs.terms import FLAGS, typed_terms
from dlami.tasks.command import HOSTS_HELP, option


@dataclass(frozen=True, kw_only=True)
class NumberOptions:
    """Option for the number of ranks, as typed."""

    np: str = option("", "ranks, one per slot by default; of a job that goes on, as before")


@dataclass(frozen=True, kw_only=True)
class WhereOptions(NumberOptions):
    """Options for the hosts and the number of ranks, as typed."""

    hosts: str = option("", HOSTS_HELP)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """Options for mpirun's launch profile and the ranks' environment, as typed."""

    profile: str = option("", "tcp, ena or efa; by detection without it")
    env: Any = option(None, "NAME=VALUE for every rank, may be repeated", repeats=True)


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(ProfileOptions, WhereOptions):
    """Options for the launch profile, the ranks' environment and number, and the hosts, as typed."""


def with_terms(kind: type) -> type:
    """Add an option for each term of a job that has a flag (cluster/jobs/terms.py). Use it below `dataclass`."""
    for term in FLAGS:
        kind.__annotations__[term.name] = str
        setattr(kind, term.name, option("", term.metadata["help"]))
    return kind


@dataclass(frozen=True, kw_only=True)
@with_terms
class TermOptions(NumberOptions):
    """Terms on which an attempt is started and retried, as typed."""

    dry_run: bool = option(False, "print the mpirun command, start nothing")
    detach: bool = option(False, "start it and return")
    unchecked: bool = option(False, "start it on hosts that nobody looked at")
    skip_unfit: bool = option(False, "train on the hosts that are fit")
    no_heal: bool = option(False, "one attempt; without it what fails goes on by itself, from the newest checkpoint")

    @property
    def terms(self) -> dict[str, Any]:
        """Return the terms that were typed, as fields of the job's specification. Raises ConfigError."""
        return {**typed_terms(vars(self)), **({"heal": False} if self.no_heal else {})}


@dataclass(frozen=True, kw_only=True)
class StartOptions(TermOptions, WhereOptions):
    """Options of every task that starts an attempt, as typed."""

    queue: bool = option(False, "wait for hosts that are taken, first in, first out, instead of being refused")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(StartOptions, LaunchOptions):
    """Options of every task that starts a training."""

    resume: str = option("", "a job of yours that has ended: begin from its newest checkpoint, with today's code")
    exclusive: bool = option(
        False, "take the whole host, though it has more slots than ranks; over several hosts it does so anyway"
    )

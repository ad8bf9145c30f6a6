"""Task `train.run`, which runs the operator's own program as a job."""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke import Context

from cluster.errors import ConfigError
from cluster.inventory import Cluster, load_cluster
from dlami.tasks.command import command, option, rest
from dlami.tasks.start_options import TrainOptions
from dlami.tasks.starting import asked_for, start_on_fit_hosts, warn_of_secrets

if TYPE_CHECKING:
    from cluster.code.snapshot import Snapshot
    from cluster.hosts import Host
    from cluster.jobs.spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """Options about the program and its code, as typed."""

    per: str = option("gpu", "start it for each gpu, each node (torchrun and its like), or once, on one host")
    name: str = option("", "the job's name; as the program's by default")
    include: Any = option(
        None, "untracked code to take too: a path, a pattern, . for all; may be repeated", repeats=True
    )
    exclude: Any = option(None, "tracked code to leave out: a name or a path, may be repeated", repeats=True)
    no_code: bool = option(False, "take no code along: it runs in the folder of this name on every host")


@dataclass(frozen=True, kw_only=True)
class TrainRunOptions(ProgramOptions, TrainOptions):
    """The options of `inv train.run`."""

    requirements: str = option("", "requirements.txt, pyproject.toml or uv.lock: its packages, installed once")
    venv: str = option("", "a Python environment that is on the hosts: its folder")
    conda: str = option("", "a conda environment that is on the hosts: its name")
    container: str = option("", "an image in which ranks run: a name for docker or podman, a .sif file or docker://…")
    bind: Any = option(None, "a further folder of the hosts that the container sees, may be repeated", repeats=True)


@command(name="run")
def train_run(c: Context, given: TrainRunOptions) -> None:
    """Run your own program as a job, a rank per slot: inv train.run [--per node] -- python train.py [its flags]."""
    start_program(load_cluster(), rest(), given)


def start_program(cluster: Cluster, words: Sequence[str], given: TrainRunOptions) -> str:
    """Start the program as a job and follow it. Return its id if detached. Raises ConfigError, ClusterError."""
    snapshot = code_to_take(given)
    return start_on_fit_hosts(cluster, program_asked_for(cluster, words, given, snapshot), given, snapshot)


def code_to_take(given: ProgramOptions) -> "Snapshot | None":
    """Return a snapshot of the current folder's code, and print a summary. Return None with --no-code."""
    from cluster.code.snapshot import take

    if given.no_code:
        if given.include or given.exclude:
            raise ConfigError("--no-code takes no code along: leave --include and --exclude out")
        return None
    snapshot = take(Path.cwd(), given.include or (), given.exclude or ())
    print(snapshot.described(), file=sys.stderr)
    return snapshot


def program_asked_for(
    cluster: Cluster, words: Sequence[str], given: TrainRunOptions, snapshot: "Snapshot | None"
) -> "JobSpec":
    """Return the request for the typed program, in the snapshot's code or else in this folder's path on the hosts."""
    from cluster.jobs.program import Program
    from cluster.packages.interpreter import wanted_by
    from cluster.packages.recipe import recipe_of

    program = Program.of(words, given.per)
    warn_of_secrets(words)
    packages = wanted_by(given.requirements, given.venv, given.conda, given.container, tuple(given.bind or ()))
    if packages:
        recipe_of(packages)  # raises for a file that cannot be read, before any host is asked
    return dataclasses.replace(
        asked_for(given, given.name or program.default_name, program),
        hosts=seats_for(cluster, given.per, given.hosts),
        workdir="" if snapshot else str(Path.cwd()),
        code=snapshot.digest if snapshot else "",
        below=snapshot.below if snapshot else "",
        packages=packages,
    )


def seats_for(cluster: Cluster, per: str, hosts: str) -> "tuple[Host, ...]":
    """Return the typed hosts, or all that train, with a slot per start of the program. One start gets the first host.

    A single start may be on a master that does not train, if the operator named it: a conversion needs no GPU.
    """
    from cluster import hostset
    from cluster.jobs.program import seats

    if per == "once":
        return seats(hostset.select(cluster.hosts, hosts or None, for_ranks=True)[:1], per)
    return seats(hostset.select(cluster.hosts, hosts or None, to_train=True), per)

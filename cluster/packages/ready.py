"""Preparation of a program's environment on the hosts that will run it. Runs on the master, for every attempt."""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.errors import ConfigError
from cluster.hosts import Host, is_this_machine
from cluster.inventory import ROOT, Cluster
from cluster.packages import engines
from cluster.packages.build import EnvironmentPaths, Say, build, held, installed, is_whole, place_of
from cluster.packages.conda import conda_variables
from cluster.packages.distribute import bring, lacking, without_folder
from cluster.packages.interpreter import EnvironmentKind, EnvironmentRequest, Interpreter
from cluster.packages.onhost.env_registry import IMAGE
from cluster.packages.recipe import Recipe, image_recipe
from cluster.packages.recipes import keep, keep_installed, kept_installed, kept_recipe
from cluster.ssh.fanout import Executor
from cluster.terminal import counted

CONTAINED = ROOT / "cluster/packages/onhost/contained.py"


@dataclass(frozen=True, kw_only=True)
class Ready:
    """State of the environment on the hosts, or the state that changes would lead to."""

    interpreter: Interpreter
    is_built: bool = False  # in this call; without changes: it would be
    brought: tuple[str, ...] = ()  # addresses of hosts it was, or would be, copied to
    lacking: Mapping[str, str] = field(default_factory=dict)  # reason per host that cannot run it, by address


@dataclass(frozen=True, kw_only=True)
class _Here:
    """Context of a preparation on the master."""

    reach: Executor
    cluster: Cluster  # cluster whose master is this machine
    hosts: tuple[Host, ...]
    shared: str
    changes: bool
    say: Say


def ready(
    wanted: EnvironmentRequest,
    recipe: Recipe | None,
    hosts: Sequence[Host],
    shared: str,
    *,
    changes: bool = True,
    say: Say,
) -> Ready:
    """Build what is missing on the master, and copy it to those of these hosts that lack it.

    recipe: if None, the stored one is used. changes: if False, the result only says what would be done. Raises
    ConfigError, or ClusterError if the master cannot have it.
    """
    here = next((h for h in hosts if is_this_machine(h.address)), Host(rank=0, address="localhost", slots=1))
    everyone = (here, *(h for h in hosts if h != here))
    cluster = Cluster(name="packages", hosts=everyone, folder=Path(), shared=shared, project=str(ROOT))
    with Executor(cluster) as reach:
        seat = _Here(reach=reach, cluster=cluster, hosts=tuple(hosts), shared=shared, changes=changes, say=say)
        if wanted.kind is EnvironmentKind.VENV:
            return _of_venv(seat, wanted)
        if wanted.kind is EnvironmentKind.CONDA:
            return _of_conda(seat, wanted)
        if wanted.kind is EnvironmentKind.CONTAINER:
            return _of_container(seat, wanted)
        made = _made(seat, wanted, recipe or kept_recipe(shared, wanted.id))
        folder = made.interpreter.folder
        variables = {"PATH": f"{folder}/bin", "VIRTUAL_ENV": folder}
        return dataclasses.replace(made, interpreter=dataclasses.replace(made.interpreter, variables=variables))


def _made(seat: _Here, wanted: EnvironmentRequest, recipe: Recipe) -> Ready:
    """Build an environment on the master and copy it to the other hosts."""
    where = place_of(recipe)
    interpreter = Interpreter(wanted=dataclasses.replace(wanted, id=where.id), folder=str(where.folder))
    is_there = is_whole(where)
    lacks, failed = lacking(seat.reach, seat.hosts, where, changes=False) if is_there else (seat.hosts, {})
    if seat.changes:
        keep(seat.shared, where.id, recipe)
    if not seat.changes or (is_there and not lacks):  # without waiting for another build
        addresses = tuple(h.address for h in lacks)
        return Ready(interpreter=interpreter, is_built=not is_there, brought=addresses, lacking=failed)
    with held(where, seat.say) as lock:
        is_there = is_whole(where)
        if not is_there:
            _build(seat, where, wanted, recipe, lock)
        lacks, failed = lacking(seat.reach, seat.hosts, where, changes=True)
        if lacks:
            seat.say(f"copying it to {counted(len(lacks), 'host')}")
            failed |= bring(seat.reach, seat.cluster, lacks, where)
    came = tuple(h.address for h in lacks if h.address not in failed)
    return Ready(interpreter=interpreter, is_built=not is_there, brought=came, lacking=failed)


def _build(seat: _Here, where: EnvironmentPaths, wanted: EnvironmentRequest, recipe: Recipe, lock: int) -> None:
    seat.say(f"building the environment of {wanted.what} on the master, once; its log: {where.log}")
    build(where, recipe, kept_installed(seat.shared, where.id), lock, seat.say)
    if not recipe.is_image:
        keep_installed(seat.shared, where.id, installed(where))


def _of_venv(seat: _Here, wanted: EnvironmentRequest) -> Ready:
    folder = os.path.normpath(Path(wanted.what).expanduser())
    if not folder.startswith("/"):
        raise ConfigError(f"{wanted.option}: give its absolute path, which is the same on all hosts")
    variables = {"PATH": f"{folder}/bin", "VIRTUAL_ENV": folder}
    return _of_folder(seat, Interpreter(wanted=wanted, folder=folder, variables=variables))


def _of_conda(seat: _Here, wanted: EnvironmentRequest) -> Ready:
    variables = conda_variables(wanted.what)
    return _of_folder(seat, Interpreter(wanted=wanted, folder=variables["CONDA_PREFIX"], variables=variables))


def _of_folder(seat: _Here, interpreter: Interpreter) -> Ready:
    """Check an environment that the operator has put on the hosts."""
    failed = without_folder(seat.reach, seat.hosts, interpreter.folder)
    return Ready(interpreter=interpreter, lacking=failed)


def _of_container(seat: _Here, wanted: EnvironmentRequest) -> Ready:
    image = wanted.what
    engine, silent = engines.agreed_engine(seat.reach, seat.hosts, image)
    made = Ready(interpreter=Interpreter(wanted=wanted), lacking=silent)
    if not engine:
        return made
    if not engines.keeps_images(engine) and not engines.is_file(image):
        made = _made(seat, wanted, image_recipe(engine, engines.address_of(image)))
        image = f"{made.interpreter.folder}/{IMAGE}"
    else:
        asked = [h for h in seat.hosts if h.address not in silent]
        without = engines.without_image(seat.reach, asked, engine, image, changes=seat.changes)
        is_to_come = engines.keeps_images(engine) and not seat.changes
        made = Ready(
            interpreter=made.interpreter,
            brought=tuple(without) if is_to_come else (),
            lacking=silent if is_to_come else {**silent, **without},
        )
    binds = [w for folder in (seat.shared, *wanted.binds) for w in ("--bind", folder)]
    prefix = (sys.executable, "-I", "-S", str(CONTAINED), engine, image, *binds, "--")
    return dataclasses.replace(made, interpreter=dataclasses.replace(made.interpreter, prefix=prefix))

"""Distribution of an environment from the master to other hosts, where it is complete or counts as missing."""

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.broadcast.copy import Transfer, copy
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.packages.build import EnvironmentPaths
from cluster.packages.onhost import env_registry
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.program import ask, program

_SHELF = "cluster.packages.onhost.env_registry"
_LOOK = Limits(total_s=90)  # includes the removal of an interrupted copy of another build


def lacking(
    reach: Executor, hosts: Sequence[Host], where: EnvironmentPaths, *, changes: bool
) -> tuple[tuple[Host, ...], dict[str, str]]:
    """Return the hosts that lack the environment, and why each other host gave no answer, by address.

    changes: prepare the hosts that lack it for a copy.
    """
    record = env_registry.read_record(str(where.place), where.id)
    look = program(
        _SHELF, "look", str(where.place), where.id, record.get("build", ""), record.get("python", ""), changes
    )
    results, answers = ask(reach, hosts, look, limits=_LOOK)
    silent = {h.address: r.problem for h, r in results.items() if h not in answers}
    return tuple(h for h, said in answers.items() if not said["there"]), silent


def bring(reach: Executor, cluster: Cluster, hosts: Sequence[Host], where: EnvironmentPaths) -> Mapping[str, str]:
    """Copy the environment to hosts that lack it. Return why it is not usable, by address of the hosts where it failed.

    The cluster's master is this machine.
    """
    record = env_registry.read_record(str(where.place), where.id)
    copied = copy(reach, cluster, hosts, Transfer(src=str(where.folder), dst=str(where.folder)))
    failed = {o.host.address: str(o.error) for o in copied.failed}
    came = [o.host for o in copied.outcomes if not o.error]
    results, answers = ask(reach, came, program(_SHELF, "declare", str(where.place), where.id, record), limits=_LOOK)
    failed |= {h.address: r.problem for h, r in results.items() if h not in answers}
    return failed | {h.address: said["why"] for h, said in answers.items() if not said["there"]}


def without_folder(reach: Executor, hosts: Sequence[Host], folder: str) -> Mapping[str, str]:
    """Return why an operator's own environment is missing or does not run, by address of the hosts concerned."""
    results, answers = ask(reach, hosts, program(_SHELF, "folder", folder, ""), limits=Limits(total_s=60))
    failed = {h.address: r.problem for h, r in results.items() if h not in answers}
    return failed | {h.address: said["why"] for h, said in answers.items() if said["why"]}


def environments_on(reach: Executor, hosts: Sequence[Host], place: str) -> tuple[dict[Host, list[Any]], dict[str, str]]:
    """Return every host's environments, and why each other host gave no answer, by address."""
    results, answers = ask(reach, hosts, program(_SHELF, "list", place), limits=Limits(total_s=120))
    return answers, {h.address: r.problem for h, r in results.items() if h not in answers}


def removed(reach: Executor, hosts: Sequence[Host], place: str, ids: Sequence[str]) -> Mapping[str, str]:
    """Remove environments. Return what is left or why the host failed, by address of the hosts concerned."""
    results, answers = ask(reach, hosts, program(_SHELF, "remove", place, list(ids)), limits=Limits(total_s=300))
    failed = {h.address: r.problem for h, r in results.items() if h not in answers}
    return failed | {h.address: f"{', '.join(a['left'])} is left" for h, a in answers.items() if a["left"]}

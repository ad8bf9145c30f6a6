"""Inventory of the environments on the hosts and the jobs that use them, and their removal. Runs on the master."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster
from cluster.jobs.record import jobs_folder
from cluster.jobs.records import read_all
from cluster.packages.build import EnvironmentPaths, held, own_place
from cluster.packages.distribute import environments_on, removed
from cluster.packages.recipes import forget, kept_ids
from cluster.ssh.fanout import Executor

_DAY_S = 86400.0
_NEW_S = 600.0  # an environment used so recently may belong to a job that is just starting


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Environment, on all hosts that have it."""

    id: str
    what: str  # the file's name, or the image
    made: str  # UTC; "" if incomplete
    hosts: tuple[str, ...]  # addresses of hosts with the complete environment
    partly: tuple[str, ...]  # addresses of hosts with an incomplete one
    bytes: int  # largest size on any host
    idle_s: float  # seconds since the last use on any host
    going_on: tuple[str, ...]  # jobs that run with it now
    ended: tuple[str, ...]  # jobs on record that would build it again if they were resumed


@dataclass(frozen=True, kw_only=True)
class Stock:
    """Environments of this user, and by address the reason of each host that gave no answer."""

    place: str
    environments: tuple[Environment, ...]
    silent: Mapping[str, str]


def stock(hosts: Sequence[Host], shared: str) -> Stock:
    """Return the environments on these hosts."""
    place = str(own_place())
    with _reach(hosts, shared) as reach:
        found, silent = environments_on(reach, hosts, place)
    going_on, ended = _users(shared)
    ids = sorted({one["id"] for there in found.values() for one in there})
    environments = []
    for name in ids:
        seen = {h.address: one for h, there in found.items() for one in there if one["id"] == name}
        whole = [a for a, one in seen.items() if one["whole"]]
        first = seen[whole[0]] if whole else {}
        environments.append(
            Environment(
                id=name,
                what=str(first.get("what", "")),
                made=str(first.get("made", "")),
                hosts=tuple(whole),
                partly=tuple(a for a in seen if a not in whole),
                bytes=max(int(one["bytes"]) for one in seen.values()),
                idle_s=min(float(one["idle_s"]) for one in seen.values()),
                going_on=tuple(going_on.get(name, ())),
                ended=tuple(ended.get(name, ())),
            )
        )
    return Stock(place=place, environments=tuple(environments), silent=silent)


def chosen(have: Stock, which: str, days: float) -> tuple[Environment, ...]:
    """Return the environments that an id, its beginning, or `unused` selects. Raises ConfigError."""
    if which == "unused":
        return tuple(e for e in have.environments if not e.going_on and e.idle_s >= max(_NEW_S, days * _DAY_S))
    found = [e for e in have.environments if e.id.startswith(which)]
    if len(found) != 1 or not which:
        known = ", ".join(e.id for e in have.environments) or "none"
        raise ConfigError(f"{which!r} means {len(found)} environments; there are: {known}; or give 'unused'")
    if found[0].going_on:
        raise ConfigError(f"{found[0].id} is in use by {', '.join(found[0].going_on)}: 'inv jobs.stop' first")
    return tuple(found)


def remove(hosts: Sequence[Host], shared: str, ids: Sequence[str]) -> Mapping[str, str]:
    """Remove environments from the hosts. Return why something is left, by address of the hosts concerned.

    A recipe is removed once no job on record names it. Raises ConfigError if an environment is in use.
    """
    going_on, ended = _users(shared)
    for name in ids:
        if name in going_on:
            raise ConfigError(f"{name} is in use by {', '.join(going_on[name])} by now: nothing was removed")
    left: dict[str, str] = {}
    place = own_place()
    with _reach(hosts, shared) as reach:
        for name in ids:
            with held(EnvironmentPaths(place=place, id=name), lambda text: None):
                left |= removed(reach, hosts, str(place), [name])
    for name in kept_ids(shared):
        if name in ids and name not in ended:
            forget(shared, name)
    return left


def _users(shared: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return ids of jobs by their environment: of those that hold hosts, and of those that have ended."""
    going_on: dict[str, list[str]] = {}
    ended: dict[str, list[str]] = {}
    for job, status in read_all(jobs_folder(shared)).jobs:
        if job.spec.packages and job.spec.packages.id:
            users = going_on if status.state.holds_hosts else ended
            users.setdefault(job.spec.packages.id, []).append(job.id)
    return going_on, ended


def _reach(hosts: Sequence[Host], shared: str) -> Executor:
    return Executor(Cluster(name="packages", hosts=tuple(hosts), folder=Path(), shared=shared, project=str(ROOT)))

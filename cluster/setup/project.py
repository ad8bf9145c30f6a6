"""`inv sync`: copies this project to the nodes for the jobs' supervisors, from a checkout or an installed package."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster import hostset
from cluster.code.deliver import deliver
from cluster.code.snapshot import Snapshot, take, take_all
from cluster.code.working_copy import NotBrought, Wanted, provide
from cluster.errors import ClusterError, ConfigError
from cluster.files import IS_CHECKOUT
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.jobs.client.client import JobsClient
from cluster.last_run import last_failed, remember
from cluster.project_files import project_folder
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.program import ask, program
from cluster.terminal import counted

_LIMITS = Limits(total_s=300)


@dataclass(frozen=True)
class Synced:
    """Result of a sync on one host, or of its dry run."""

    host: Host
    error: str = ""
    changed: int = 0  # files that are new or differ
    removed: int = 0
    some: tuple[str, ...] = ()  # their names
    needs_install: bool = False  # its environment does not match these files
    services: str = ""  # of a stack's node: "missing" or "started"; "" if they were there

    def record(self) -> dict[str, Any]:
        """Return this result as a dict for JSON."""
        return {
            "host": self.host.address,
            "rank": self.host.rank,
            "error": self.error or None,
            "changed": self.changed,
            "removed": self.removed,
            "some": list(self.some),
            "needs_install": self.needs_install,
            "services": self.services or None,
        }

    def __str__(self) -> str:
        if self.error:
            return f"FAILED: {self.error}"
        services = f"; its services: {self.services}" if self.services else ""
        if not (self.changed or self.removed):
            return f"nothing changed, all there{services}"
        more = " …" if self.changed + self.removed > len(self.some) else ""
        removed = f", {self.removed} removed" if self.removed else ""
        return f"{counted(self.changed, 'file')}{removed}: {', '.join(self.some)}{more}{services}"


def sync(cluster: Cluster, which: str | None, *, dry_run: bool, force: bool) -> tuple[Synced, ...]:
    """Make the project on these hosts equal to this checkout. Return a result for each host.

    All hosts receive all files before the first file is changed. If a stack's node booted without the project, its
    services are started. Raises ConfigError before anything is changed.

    Args:
        dry_run: only report what would be changed.
        force: change the project even while jobs run.
    """
    hosts = hostset.select(cluster.hosts, which, failed=last_failed(cluster))
    with project_folder() as folder, Executor(cluster) as reach:
        snapshot = take(folder) if IS_CHECKOUT else take_all(folder)
        found = _asked(reach, cluster, hosts, snapshot)
        stale = [one.host for one in found if one.changed or one.removed or one.services]
        if dry_run or not stale:
            return found
        if not force and any(one.changed or one.removed for one in found):
            _refuse_under_jobs(reach, cluster)
        archive = deliver(reach, cluster, snapshot).archive
        lacking: dict[str, str] = {}
        try:
            provide(reach, cluster, stale, Wanted(archive=archive, content=snapshot.content))
        except NotBrought as e:
            lacking = e.why
        if cluster.master.address in lacking:
            raise ClusterError(f"the master {cluster.master}: {lacking[cluster.master.address]}")
        ready = [h for h in stale if h.address not in lacking]
        made = {one.host: one for one in _asked(reach, cluster, ready, snapshot, is_there=True)}
    remember(cluster, "", [h for h in hosts if h.address in lacking or (h in made and made[h].error)])
    failed = {one.host: Synced(one.host, lacking[one.host.address]) for one in found if one.host.address in lacking}
    return tuple(failed.get(one.host) or made.get(one.host) or one for one in found)


def lines(done: Sequence[Synced]) -> str:
    """Return one line per distinct result, with the hosts that share it."""
    same: dict[str, list[str]] = {}
    for one in done:
        same.setdefault(str(one), []).append(one.host.address)
    return "\n".join(f"{fold(hosts)} ({len(hosts)})  {text}" for text, hosts in same.items())


def what_next(cluster: Cluster, done: Sequence[Synced]) -> str:
    """Return what the operator still has to do, "" if nothing."""
    hosts = [one.host.address for one in done if one.needs_install and not one.error]
    if not hosts:
        return ""
    return f"the packages are to be installed on {fold(hosts)}: inv run -- {cluster.project}/scripts/install.sh"


def _asked(
    reach: Executor, cluster: Cluster, hosts: Sequence[Host], snapshot: Snapshot, *, is_there: bool = False
) -> tuple[Synced, ...]:
    """Return the differences on each host. With `is_there`, the hosts have the content and make the project equal."""
    content = snapshot.content if is_there else ""
    asked = program("cluster.setup.onhost.project", cluster.project, snapshot.rows, content)
    results, answers = ask(reach, hosts, asked, limits=_LIMITS)
    return tuple(_synced(h, answers.get(h) or {"error": results[h].problem}) for h in hosts)


def _synced(host: Host, said: Mapping[str, Any]) -> Synced:
    return Synced(host, **{**said, "some": tuple(said.get("some", ()))})


def _refuse_under_jobs(reach: Executor, cluster: Cluster) -> None:
    """Raise ConfigError while jobs run: their supervisors import modules of the project when they need them."""
    try:
        jobs = JobsClient(reach, cluster).list(going=True).jobs
    except ClusterError:
        return  # the project is not there yet
    if active := [job.id for job in jobs if job.state.holds_hosts]:
        raise ConfigError(
            f"{', '.join(active)} {'is' if len(active) == 1 else 'are'} supervised by the code that is there: wait, "
            "or change it under them with --force"
        )

"""Check for hosts on which a job runs or may run, by the jobs' records and by the claims on the hosts."""

from collections.abc import Mapping, Sequence

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.jobs.claim import Claimed, claims_on
from cluster.jobs.client.client import JobListing, JobsClient
from cluster.jobs.occupancy import DAMAGED, HoldingJob
from cluster.jobs.state import JobState
from cluster.ssh.fanout import Executor


def refuse_busy(reach: Executor, cluster: Cluster, hosts: Sequence[Host], purpose: str) -> Mapping[Host, str]:
    """Raise ConfigError that names the job if one may run on these hosts.

    Returns the hosts that gave no answer, with why; all others have reported that no job runs there. Raises
    ClusterError if the master gives no list of jobs.

    purpose: why they have to be free, as a sentence's end.
    """
    try:
        listing = JobsClient(reach, cluster).list(going=True)
    except ClusterError as e:
        raise ClusterError(f"cannot tell which jobs are running, so nothing was touched: {e}") from e
    _refuse_held(listing.holders, hosts, purpose)
    found, results = claims_on(reach, hosts)
    _refuse_claimed(found, listing, purpose)
    return {h: r.problem for h, r in results.items() if not r.ok}


def not_measured(unknown: Mapping[Host, str]) -> list[str]:
    """Return a line for each host that was skipped because it does not report whether a job runs there."""
    return [f"{h}: not measured, it does not say whether a job runs there: {why}" for h, why in unknown.items()]


def _refuse_held(holders: Sequence[HoldingJob], hosts: Sequence[Host], purpose: str) -> None:
    """Raise ConfigError if a record holds one of the hosts.

    Lost jobs and damaged records count: their ranks may run on.
    """
    wanted = {h.address for h in hosts}
    for one in holders:
        if held := [h.address for h in one.hosts if h.address in wanted]:
            raise ConfigError(f"{_how(one, fold(held))}: {purpose}; {_remedy(one)}, or take others with --hosts")


def _how(holder: HoldingJob, held: str) -> str:
    if holder.how == DAMAGED:
        return f"the record of {holder.job} is damaged, and it may run on {held}"
    return f"{holder.job} {'is lost, and may run' if holder.how == JobState.LOST else 'runs'} on {held}"


def _remedy(holder: HoldingJob) -> str:
    if holder.how == DAMAGED:
        return f"'inv jobs.remove {holder.job}' once it has ended"
    return f"'inv jobs.stop {holder.job}'" if holder.how == JobState.LOST else f"wait, 'inv jobs.stop {holder.job}'"


def _refuse_claimed(there: Mapping[Host, Sequence[Claimed]], listing: JobListing, purpose: str) -> None:
    """Raise ConfigError if a job has a claim on one of the hosts."""
    for by in dict.fromkeys((one.name, one.user) for claims in there.values() for one in claims):
        job, user = by
        held = fold([h.address for h, claims in there.items() if any((c.name, c.user) == by for c in claims)])
        ours = job in {*(j.id for j in listing.jobs), *listing.damaged_ids}
        end = f"'inv jobs.stop {job}'" if ours else "stop it where it was started"
        raise ConfigError(
            f"{job} (user {user}) runs on {held}, as is seen there: {purpose}; wait for it, {end}, "
            "or take others with --hosts"
        )

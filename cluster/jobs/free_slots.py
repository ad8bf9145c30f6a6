"""Free slots for a training, by the jobs' records and by the claims on the hosts themselves."""

import dataclasses
from collections.abc import Mapping, Sequence

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.claim import Claimed, claims_on
from cluster.jobs.client.client import JobListing
from cluster.jobs.host_queue import Waiting
from cluster.jobs.occupancy import HoldingJob, hosts_free_for, queue
from cluster.jobs.spec import JobSpec
from cluster.launch.mpirun import hosts_for
from cluster.ssh.fanout import Executor


def on_free_slots(reach: Executor, cluster: Cluster, listing: JobListing, spec: JobSpec, resumed: str = "") -> JobSpec:
    """Return the request, reduced to those of its hosts that are free now.

    resumed: id of the ended job whose next attempt it is.

    Raises ConfigError that names a job which holds, or waits for, what it wants.
    """
    hosts = spec.hosts if cluster.is_shared else hosts_for(spec.hosts, spec.np)  # else the master is first
    one = Waiting(
        job=resumed or spec.name,
        hosts=tuple(hosts),
        np=spec.np or sum(h.slots for h in hosts),
        exclusive=spec.shares_no_host,
    )
    known = [h for h in listing.holders if h.job != resumed]
    claims, _ = claims_on(reach, hosts, besides=resumed)
    going = [(view.job, view.status) for view in listing.jobs]
    ids = {*(view.id for view in listing.jobs), *listing.over_ids, *listing.damaged_ids}
    found = hosts_free_for(one, queue(going), [*known, *_elsewhere(claims, ids)])
    return dataclasses.replace(spec, hosts=found, idle=spec.hosts) if found else spec


def _elsewhere(claims: Mapping[Host, Sequence[Claimed]], known: set[str]) -> list[HoldingJob]:
    """Return the jobs that hold hosts or slots by the hosts' own reports but have no record in this folder."""
    return [
        HoldingJob(
            job=one.name,
            how=f"user {one.user}",
            hosts=(host,),
            slots={host.address: len(one.slots)} if one.slots else {},
            is_elsewhere=True,
        )
        for host, found in claims.items()
        for one in found
        if one.job not in known
    ]

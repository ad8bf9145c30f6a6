"""Claims of hosts by a job. A claim is held on the host itself, so jobs of other clusters and users see it."""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.jobs.onhost.claim import WAIT_S, Claim
from cluster.jobs.record import FOLDER_TAG, HOLDS_HOST, HOLDS_TAG, JOB_TAG, Job
from cluster.jobs.sweep import cluster_of_job, let_go, sweep
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from cluster.ssh.program import ask, program
from cluster.terminal import counted

NAME_VARIABLE = "DLAMI_CLAIM"  # names another socket on this machine only, so that tests do not meet its real jobs
_NAME = "dlami-job"
_ANSWER_S = 15.0


class HostsTaken(ConfigError):
    """Error: another job holds hosts that this one wants. The text names that job."""

    def __init__(self, text: str, why: Mapping[str, str]) -> None:
        super().__init__(text)
        self.why = dict(why)  # by host address


def claim_hosts(job: Job, folder: Path, kept: Collection[str] = ()) -> None:
    """Claim all of the job's hosts, or none. Hosts it already holds stay claimed. The job's sweep releases the claims.

    folder: the job's folder, as the hosts see it.
    kept: addresses of hosts that stay claimed if others cannot be had.

    If two jobs claim at the same moment, exactly one gets its hosts. Raises HostsTaken if another job holds a host,
    ClusterError if a host cannot be reached.
    """
    claim = Claim(job=job.id, attempt=job.attempt, folder=str(folder), since=time.time())
    sent = program("cluster.jobs.onhost.claim", list(claim), os.environ.get(NAME_VARIABLE, _NAME))
    tags = {JOB_TAG: job.id, FOLDER_TAG: str(folder), HOLDS_TAG: HOLDS_HOST}
    limits = Limits(total_s=WAIT_S + _ANSWER_S)
    try:
        with Reach(cluster_of_job(job.hosts, job.id)) as reach:
            results, answers = ask(reach, job.hosts, sent, environment=tags, limits=limits)
        _refuse_taken(job, {h.address: said["taken_by"] for h, said in answers.items() if said["taken_by"]})
        if unanswered := {h: r for h, r in results.items() if not r.ok}:
            lines = [f"  {h}  {r.problem}" for h, r in unanswered.items()]
            count = f"{len(unanswered)} of {counted(len(job.hosts), 'host')}"
            raise ClusterError("\n".join([f"{job.id} cannot start: {count} could not be taken for it:", *lines]))
    except BaseException:
        let_go([h for h in job.hosts if h.address not in kept], job.id)
        raise


def claim_name(host: Host) -> str:
    """Return the name of the socket that represents the claim on this host."""
    return os.environ.get(NAME_VARIABLE, _NAME) if host.is_local else _NAME


def name_of(taken: Mapping[str, Any]) -> str:
    """Return the holder that a host reports: a job's id, or a process."""
    return str(taken["job"] or f"process {taken['pid']}, which does not say for which job")


def taken_by_others(hosts: Sequence[Host], job: Job) -> dict[str, str]:
    """Return which of these hosts another job holds: address to a text naming it. Unreachable hosts are left out."""
    if not hosts:
        return {}
    sent = program("cluster.jobs.onhost.whose", job.id, os.environ.get(NAME_VARIABLE, _NAME))
    with Reach(cluster_of_job(hosts, job.id)) as reach:
        _, answers = ask(reach, hosts, sent, limits=Limits(connect_s=3, total_s=5))
    return {h.address: f"is taken by {_who(by)}" for h, said in answers.items() if (by := said["taken_by"])}


def give_back(job: Job) -> None:
    """Release the job's claims and end all of its processes on its hosts."""
    sweep(job.hosts, job.id, grace_s=1)


def _refuse_taken(job: Job, taken: dict[str, dict[str, str]]) -> None:
    """Raise HostsTaken if any host is taken. The text names the holder of the first one and all hosts that it holds."""
    if not taken:
        return
    first = next(iter(taken.values()))
    hosts = [address for address, by in taken.items() if (by["job"], by["user"]) == (first["job"], first["user"])]
    raise HostsTaken(
        f"hosts taken by {_who(first)}: {fold(hosts)}; wait for it, stop it where it was started, "
        "or take others with --hosts",
        {address: f"is taken by {_who(by)}" for address, by in taken.items()},
    )


def _who(has_it: Mapping[str, Any]) -> str:
    return f"{name_of(has_it)} (user {has_it['user']})"

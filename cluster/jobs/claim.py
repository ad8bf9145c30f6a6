"""Hosts taken for a job by a fact on the hosts themselves, so that jobs of other clusters and users see it too."""

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

NAME_VARIABLE = "DLAMI_CLAIM"  # names another socket on this machine alone, for what must not meet its real jobs
_NAME = "dlami-job"
_ANSWER_S = 15.0


class HostsTaken(ConfigError):
    """Another job has hosts that this one wants; the text names it."""

    def __init__(self, text: str, why: Mapping[str, str]) -> None:
        super().__init__(text)
        self.why = dict(why)  # by host


def claim_hosts(job: Job, folder: Path, kept: Collection[str] = ()) -> None:
    """Take the job's hosts for it, all or none; what it holds already stays its own. The job's sweep gives them back.

    folder: of its record, as the hosts see it. kept: addresses of hosts that stay the job's though others cannot be
    had. Of two jobs that claim in the same moment exactly one gets its hosts. Raises HostsTaken, ClusterError if a host
    cannot be asked.
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
    """The name of the socket by which a host is taken, as it is looked for from here."""
    return os.environ.get(NAME_VARIABLE, _NAME) if host.is_local else _NAME


def name_of(taken: Mapping[str, Any]) -> str:
    """What a host says that has it: a job's id, or a process."""
    return str(taken["job"] or f"process {taken['pid']}, which does not say for which job")


def taken_by_others(hosts: Sequence[Host], job: Job) -> dict[str, str]:
    """Those of these hosts that another job has, whoever keeps its record, and which; silence is another's care."""
    if not hosts:
        return {}
    sent = program("cluster.jobs.onhost.whose", job.id, os.environ.get(NAME_VARIABLE, _NAME))
    with Reach(cluster_of_job(hosts, job.id)) as reach:
        _, answers = ask(reach, hosts, sent, limits=Limits(connect_s=3, total_s=5))
    return {h.address: f"is taken by {_who(by)}" for h, said in answers.items() if (by := said["taken_by"])}


def give_back(job: Job) -> None:
    """End the job's claims, and whatever else of it is on its hosts."""
    sweep(job.hosts, job.id, grace_s=1)


def _refuse_taken(job: Job, taken: dict[str, dict[str, str]]) -> None:
    """Raises HostsTaken that names who has the first of these hosts, and which others."""
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

"""Claims of hosts and their slots by a job, held on the host itself, so jobs of other clusters and users see them."""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.jobs.cleanup import cluster_of_job, release, sweep
from cluster.jobs.host_queue import WHOLE
from cluster.jobs.onhost.claim import WAIT_S, Claim
from cluster.jobs.record import FOLDER_TAG, HOLDS_HOST, HOLDS_TAG, JOB_TAG, Job
from cluster.launch.mpirun import SLOTS, with_variables
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.program import ask, program
from cluster.ssh.result import FanOut
from cluster.terminal import counted

NAME_VARIABLE = "DLAMI_CLAIM"  # names another socket on this machine only, so that tests do not meet its real jobs
_NAME = "dlami-job"
_ANSWER_S = 15.0
_LOOK_S = 10.0  # a process that holds a claim and does not answer is waited for on the host


class HostsTaken(ConfigError):
    """Error: another job holds hosts that this one wants. The text names that job."""

    def __init__(self, text: str, why: Mapping[str, str]) -> None:
        super().__init__(text)
        self.why = dict(why)  # by host address


def claim_hosts(job: Job, folder: Path, kept: Collection[str] = ()) -> Job:
    """Claim the job's slots on all of its hosts, or none. Slots that it holds already stay claimed until its cleanup.

    folder: the job's folder, as the hosts see it.
    kept: addresses of hosts that stay claimed if others cannot be had.

    Returns the job with the slots that it has. If two jobs claim at the same moment, exactly one gets its hosts. Raises
    HostsTaken if another job holds what it wants, ClusterError if a host cannot be reached.
    """
    since = time.time()
    claims = {h.address: list(_claim_of(job, h, str(folder), since)) for h in job.hosts}
    sent = program("cluster.jobs.onhost.claim", claims, os.environ.get(NAME_VARIABLE, _NAME))
    tags = {JOB_TAG: job.id, FOLDER_TAG: str(folder), HOLDS_TAG: HOLDS_HOST}
    limits = Limits(total_s=WAIT_S + _ANSWER_S)
    try:
        with Executor(cluster_of_job(job.hosts, job.id)) as reach:
            results, answers = ask(reach, job.hosts, sent, lambda h: [h.address], environment=tags, limits=limits)
        _refuse_taken(job, {h.address: said["taken_by"] for h, said in answers.items() if said["taken_by"]})
        if unanswered := {h: r for h, r in results.items() if not r.ok}:
            lines = [f"  {h}  {r.problem}" for h, r in unanswered.items()]
            count = f"{len(unanswered)} of {counted(len(job.hosts), 'host')}"
            raise ClusterError("\n".join([f"{job.id} cannot start: {count} could not be taken for it:", *lines]))
    except BaseException:
        release([h for h in job.hosts if h.address not in kept], job.id)
        raise
    return with_slots(job, answers)


def _claim_of(job: Job, host: Host, folder: str, since: float) -> Claim:
    """Return the job's claim of a host: of as many slots as it has ranks there, or of the whole host."""
    slots = (0, 0) if job.takes_whole(host) else (job.need, job.slots_of(host))
    return Claim(job.id, job.attempt, folder, since, *slots)


def with_slots(job: Job, answers: Mapping[Host, Mapping[str, Any]]) -> Job:
    """Return the job with the slots that its hosts gave it, which its ranks get as environment variables.

    answers: of each host, its slots ([] for all) and the port for a rendezvous on it.
    """
    claimed = {h.address: tuple(said["slots"]) or tuple(range(job.slots_of(h))) for h, said in answers.items()}
    job = job.planned(claimed=claimed)
    if job.takes_whole(job.hosts[0]):
        return job
    first = answers[job.hosts[0]]
    told = {SLOTS: f"{','.join(map(str, first['slots']))}/{job.slots_of(job.hosts[0])}", "MASTER_PORT": first["port"]}
    return job.planned(mpirun=tuple(with_variables(job.plan.mpirun, told)))


def claim_name(host: Host) -> str:
    """Return the name of the socket that represents the claim on this host."""
    return os.environ.get(NAME_VARIABLE, _NAME) if host.is_local else _NAME


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """Valid claim of a job on a host, as the host reports it."""

    job: str  # its id; "" if the process that holds the claim does not answer
    user: str
    pid: int
    slots: tuple[int, ...] = ()  # () is the whole host

    @property
    def name(self) -> str:
        """Return the job's id, or the process."""
        return self.job or f"process {self.pid}, which does not say for which job"

    def __str__(self) -> str:
        return f"{self.name} (user {self.user})"


def claims_on(
    reach: Executor, hosts: Sequence[Host], besides: str = ""
) -> tuple[dict[Host, tuple[Claimed, ...]], FanOut]:
    """Return the valid claims on each host that answers, and each host's result.

    besides: a job whose claims are left out.
    """
    sent = program("cluster.jobs.onhost.whose", besides)
    results, answers = ask(reach, hosts, sent, lambda h: [claim_name(h)], limits=Limits(connect_s=3, total_s=_LOOK_S))
    return {h: tuple(_claimed(one) for one in said["held"]) for h, said in answers.items()}, results


def taken_by_others(hosts: Sequence[Host], job: Job) -> dict[str, str]:
    """Return on which of these hosts another job holds what this one wants: address to a text naming that job.

    Unreachable hosts are left out.
    """
    if not hosts:
        return {}
    with Executor(cluster_of_job(hosts, job.id)) as reach:
        found, _ = claims_on(reach, hosts, besides=job.id)
    return {h.address: f"is taken by {by}" for h, claims in found.items() if (by := in_the_way(job, h, claims))}


def in_the_way(job: Job, host: Host, claims: Sequence[Claimed]) -> Claimed | None:
    """Return a claim that keeps the job from its slots on the host, or None if they are free."""
    if not claims:
        return None
    used = sum(len(c.slots) or WHOLE for c in claims)
    return None if not job.takes_whole(host) and job.slots_of(host) - used >= job.need else claims[0]


def give_back(job: Job) -> None:
    """Release the job's claims and end all of its processes on its hosts."""
    sweep(job.hosts, job.id, grace_s=1)


def _claimed(said: Mapping[str, Any]) -> Claimed:
    return Claimed(job=said["job"], user=said["user"], pid=said["pid"], slots=tuple(said.get("slots", ())))


def _refuse_taken(job: Job, taken: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise HostsTaken if any host is taken. The text names the holder of the first one and all hosts that it holds."""
    if not taken:
        return
    by = {address: _claimed(said) for address, said in taken.items()}
    first = next(iter(by.values()))
    hosts = [address for address, one in by.items() if (one.job, one.user) == (first.job, first.user)]
    raise HostsTaken(
        f"hosts taken by {first}: {fold(hosts)}; wait for it, stop it where it was started, "
        "or take others with --hosts",
        {address: f"is taken by {one}" for address, one in by.items()},
    )

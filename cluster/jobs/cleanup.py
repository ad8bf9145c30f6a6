"""Cleanup of what a job left on its hosts: end its processes, and report those that cannot be ended."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.record import ATTEMPT_TAG, HOLDS_HOST, HOLDS_TAG, JOB_TAG
from cluster.launch.mpirun import session_folders
from cluster.ssh import tagged_processes
from cluster.ssh.failure import Reason
from cluster.ssh.fanout import Executor
from cluster.ssh.launcher import launcher
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import marked, output_between_marks, trouble
from cluster.ssh.result import FanOut, Result

_HOLDS = f"{HOLDS_TAG}={HOLDS_HOST}"
WRAPPER = "dlami-rank"  # `cluster/launch/onhost/rank.py`: ends the daemons of an operator's program
_HERE = Host(rank=-1, address="localhost", slots=1)


@dataclass(frozen=True, kw_only=True)
class CleanupResult:
    """Result of a cleanup: what is left of a job's processes, with their hosts."""

    processes: tuple[str, ...] = ()  # processes that could not be ended
    unanswered: tuple[str, ...] = ()  # hosts that could not be checked, with the reason

    @property
    def left(self) -> tuple[str, ...]:
        """Return the remaining processes and the hosts that could not be checked."""
        return (*self.processes, *self.unanswered)


def sweep(
    hosts: Iterable[Host], job_id: str, grace_s: int = 2, attempt: int | None = None, *, keeps_hosts: bool = False
) -> CleanupResult:
    """End the processes with the job's id on these hosts and on this one. Remove its files in memory and in /tmp.

    attempt: only this attempt's processes. keeps_hosts: keep the hosts' claims.
    """
    also, but = f"{ATTEMPT_TAG}={attempt}" if attempt is not None else "", _HOLDS if keeps_hosts else ""
    script = (
        f"{tagged_processes.end_script(JOB_TAG, job_id, grace_s, also, but, WRAPPER)}\n{_remove_files(job_id, attempt)}"
    )
    limits = Limits(total_s=grace_s + 20)
    results = dict(on_all(hosts, job_id, script, limits))
    where = launcher()
    if again := [h for h, r in results.items() if where.may_be_gone(_reason(r))]:
        results |= on_all(again, job_id, script, limits)
    unanswered = [(h, why) for h, r in results.items() if (why := trouble(r)) and not where.is_gone(_reason(r))]
    return CleanupResult(
        processes=tuple(
            f"{h}: {line}" for h, r in results.items() if r.ok for line in (output_between_marks(r) or "").splitlines()
        ),
        unanswered=tuple(f"{h}: {why}" for h, why in unanswered),
    )


def release(hosts: Sequence[Host], job_id: str) -> None:
    """Release the job's claims on these hosts. Its other processes keep running, and unreachable hosts are ignored."""
    if hosts:
        script = tagged_processes.end_script(JOB_TAG, job_id, 1, _HOLDS)
        with Executor(cluster_of_job(hosts, job_id)) as reach:
            reach.run(hosts, script, limits=Limits(connect_s=5, total_s=20))


def _reason(result: Result) -> Reason | None:
    return result.failure.reason if result.failure else None


def stopped_processes(hosts: Iterable[Host], job_id: str) -> tuple[str, ...]:
    """Return the job's processes that are stopped (SIGSTOP, a debugger) and handle no signal, with their hosts."""
    results = on_all(hosts, job_id, tagged_processes.list_script(JOB_TAG, job_id), Limits(connect_s=5, total_s=8))
    lines = [
        (h, line.split(None, 2)) for h, r in results.items() for line in (output_between_marks(r) or "").splitlines()
    ]
    return tuple(f"{h}: {words[0]}" for h, words in lines if len(words) > 1 and words[1].startswith(("T", "t")))


def _remove_files(job_id: str, attempt: int | None) -> str:
    """Return shell commands that remove the ranks' heartbeat files (`dlami/heartbeat.py`) and Open MPI's folders."""
    folders = f"{session_folders(job_id)}.{'*' if attempt is None else f'{attempt}.*'}"
    names = f"dlami-beat-$(id -u)-{shlex.quote(job_id)}-{'' if attempt is None else f'{attempt}-'}[0-9]*"
    return f'rm -f /dev/shm/{names} "${{TMPDIR:-/tmp}}"/{names}; rm -rf {folders} 2>/dev/null || true'


def cluster_of_job(hosts: Sequence[Host], job_id: str) -> Cluster:
    """Return these hosts as a cluster that is reached from the master as the job's own user, with its own keys."""
    return Cluster(name=job_id, hosts=tuple(hosts), folder=Path(), shared="", project="")


def on_all(hosts: Iterable[Host], job_id: str, script: str, limits: Limits) -> FanOut:
    """Run a script on these hosts and on this one. Return the results."""
    reached = (_HERE, *(h for h in hosts if not h.is_local))
    with Executor(cluster_of_job(reached, job_id)) as reach:
        return reach.run(reached, marked(script), limits=limits)

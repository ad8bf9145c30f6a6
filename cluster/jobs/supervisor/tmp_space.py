"""Check for free space where Open MPI keeps its files, made when mpirun did not report what it lacked."""

from cluster.jobs.cleanup import cluster_of_job
from cluster.jobs.record import Job
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import marked, output_between_marks

_ANSWER_S = 10.0
_LEAST_KB = 64


def hosts_without_room(job: Job) -> tuple[str, ...]:
    """Return the addresses of the hosts that answer and have under 64 KiB free in /tmp or /dev/shm."""
    hosts = [h for h in job.hosts if not h.is_local]
    if not hosts:
        return ()
    command = marked("df -k --output=avail /tmp /dev/shm 2>/dev/null || true")
    with Executor(cluster_of_job(hosts, job.id)) as reach:
        results = reach.run(hosts, command, limits=Limits(connect_s=5, total_s=_ANSWER_S))
    return tuple(h.address for h, r in results.items() if _is_full(output_between_marks(r) or ""))


def _is_full(df: str) -> bool:
    return any(word.isdigit() and int(word) < _LEAST_KB for word in df.split())

"""Jobs whose folder is on the master's own disk: copy what ranks need of it to their hosts, and remove it again.

The record, the lease, logs and checkpoints stay on the master. Rank 0, which writes them, runs there.
"""

import contextlib
import shlex
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cluster import scratch
from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.jobs.record import Job, JobPaths, read_job
from cluster.jobs.sweep import cluster_of_job
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from cluster.ssh.marked import marked, trouble

_GIVE_S, _TAKE_S = 300.0, 20.0


class NotStarted(Exception):
    """Error: an attempt cannot start.

    mpirun is missing, its console is not writable, or a host lacks the job's code.
    """


def give_to_hosts(job: Job, paths: JobPaths) -> None:
    """Copy the code and hostfiles to the attempt's hosts that do not share the folder. Raises NotStarted."""
    hosts = _others(job)
    if job.is_shared or not hosts:
        return
    folder, logs = shlex.quote(str(paths.folder)), shlex.quote(str(paths.rank_logs(job.attempt)))
    unpack = marked(f"mkdir -p {logs} {shlex.quote(str(paths.checkpoints))} && tar -x -C {folder} -f -")
    with _packed(paths) as archive, Reach(cluster_of_job(hosts, job.id)) as reach:
        results = reach.run(hosts, unpack, stdin=archive, limits=Limits(total_s=_GIVE_S))
    if failed := {h.address: why for h, r in results.items() if (why := trouble(r))}:
        first = next(iter(failed.values()))
        raise NotStarted(f"the job's code could not be brought to {fold(failed)}: {first}")


def take_from_hosts(paths: JobPaths) -> None:
    """Remove these copies from the hosts. Hosts on which that fails are ignored."""
    with contextlib.suppress(ClusterError):
        job = read_job(paths)
        if not job.is_shared and (hosts := _others(job)):
            with Reach(cluster_of_job(hosts, job.id)) as reach:
                reach.run(
                    hosts, f"rm -rf {shlex.quote(str(paths.folder))}", limits=Limits(connect_s=5, total_s=_TAKE_S)
                )


def _others(job: Job) -> list[Host]:
    """Return the hosts other than the master."""
    return [h for h in job.all_hosts if h.rank != 0 and not h.is_local]


@contextlib.contextmanager
def _packed(paths: JobPaths) -> Iterator[Path]:
    """Yield an archive of the files in the job's folder that ranks read."""
    with tempfile.TemporaryDirectory(prefix="job-", dir=scratch.folder()) as folder:
        archive = Path(folder) / "job.tar"
        with tarfile.open(archive, "w") as tar:
            for part in (paths.code, paths.lib, paths.rank_program, paths.nodes, paths.workers, paths.hostfile):
                if part.exists():
                    tar.add(part, part.relative_to(paths.folder))
        yield archive

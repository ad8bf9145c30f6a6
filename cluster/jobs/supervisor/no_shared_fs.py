"""Files of a job on hosts that do not share its folder: what ranks need of it, at the same paths.

The record, the lease, logs and checkpoints stay on the master. Rank 0, which writes them, runs there.
"""

from collections.abc import Iterable
from pathlib import Path

from cluster.code.job_code import archived
from cluster.code.onhost.store import FOLDER, OLD_COPIES
from cluster.code.working_copy import Wanted, provide
from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.jobs.cleanup import cluster_of_job
from cluster.jobs.record import Job, JobPaths
from cluster.ssh.fanout import Executor
from cluster.ssh.onhost import trusted_files

_HERE = Host(rank=-1, address="localhost", slots=1)


class NotStarted(Exception):
    """Error: an attempt cannot start.

    mpirun is missing, its console is not writable, or a host lacks the job's code.
    """


def give_to_hosts(job: Job, paths: JobPaths) -> None:
    """Give the attempt's hosts what they lack of the code, and the hostfiles. Raises NotStarted."""
    spec, is_shared = job.spec, job.plan.is_shared
    hosts = job.hosts if spec.own_disk else () if is_shared else _others(job.hosts)
    if not hosts:
        return
    try:
        archive, content = archived(paths.folder) if spec.code or spec.program.is_built_in else ("", "")
        wanted = Wanted(
            archive=str(archive),
            content=content,
            folder=own_disk_folder(job) if spec.own_disk else str(paths.code),
            files={} if is_shared else _files(paths),
            folders=() if is_shared else (str(paths.rank_logs(job.attempt)), str(paths.checkpoints)),
        )
        cluster = cluster_of_job((_HERE, *hosts), job.id)
        with Executor(cluster) as reach:
            provide(reach, cluster, hosts, wanted)
    except (ClusterError, OSError) as e:
        raise NotStarted(str(e)) from e


def own_disk_folder(job: Job) -> str:
    """Return the working directory of a job that an older version started on its hosts' own disks."""
    return f"{FOLDER}/{OLD_COPIES}/{job.id}"


def _others(hosts: Iterable[Host]) -> list[Host]:
    """Return the hosts other than the master."""
    return [h for h in hosts if h.rank != 0 and not h.is_local]


def _files(paths: JobPaths) -> dict[str, str]:
    """Return the job's small files that ranks read, by path. The record is not among them."""
    single = (paths.rank_program, paths.nodes, paths.workers, paths.hostfile)
    found: list[Path] = [p for p in single if p.exists()]
    return {str(p): trusted_files.read_file(p).decode() for p in (*found, *paths.lib.rglob("*.py"))}

"""Cleanup of a job's data on its hosts' own disks: checkpoint replicas (`trainer/copies.py`), a program's code."""

import contextlib
import os
import shlex
from collections.abc import Iterable, Mapping

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.jobs.record import Job
from cluster.jobs.sweep import cluster_of_job, on_all
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from cluster.ssh.marked import trouble
from cluster.sync.onhost.own_disk import FOLDER
from cluster.sync.own_disk import keep

DISKS = ("/opt/dlami/nvme", "/var/tmp")
DISK = "DLAMI_LOCAL_DISK"  # ranks' environment variable that names another disk
_LIMITS = Limits(connect_s=5, total_s=60)


def remove_copies(hosts: Iterable[Host], job_id: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Remove the job's data on the disks of these hosts and of this one. Return a line for each host that failed."""
    places = [f"{disk}/dlami-checkpoints-{os.getuid()}" for disk in (*DISKS, environment.get(DISK)) if disk]
    code = f"{FOLDER.removeprefix('~/')}/jobs/{job_id}"  # only large code is kept on the hosts' disks
    script = f"""own() {{ [ -O "$1" ] && [ ! -L "$1" ]; }}
rm -rf -- "$HOME"/{shlex.quote(code)} || exit 1
for place in {" ".join(map(shlex.quote, places))}; do
  copies="$place"/{shlex.quote(job_id)}
  if own "$place" && own "$copies"; then rm -rf -- "$copies" || exit 1; fi
done"""
    results = on_all(hosts, job_id, script, _LIMITS)
    return tuple(f"{host}: {why}" for host, result in results.items() if (why := trouble(result)))


def keep_code(job: Job) -> None:
    """Have the hosts of an ended job cache its large code for the next job. Hosts that fail to do so are ignored."""
    if job.own_disk:
        with contextlib.suppress(ClusterError), Reach(cluster_of_job(job.hosts, job.id)) as reach:
            keep(reach, job.hosts, job.own_disk, job.id)

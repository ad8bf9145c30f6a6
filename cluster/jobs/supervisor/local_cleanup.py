"""Cleanup of a job's data on its hosts' own disks: checkpoint replicas, copies of its code."""

import os
import shlex
from collections.abc import Iterable, Mapping

from cluster.code.onhost.store import FOLDER, OLD_COPIES
from cluster.hosts import Host
from cluster.jobs.cleanup import on_all
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import trouble

DISKS = ("/opt/dlami/nvme", "/var/tmp")
DISK = "DLAMI_LOCAL_DISK"  # ranks' environment variable that names another disk
_LIMITS = Limits(connect_s=5, total_s=60)


def remove_copies(
    hosts: Iterable[Host], job_id: str, environment: Mapping[str, str], folder: str = ""
) -> tuple[str, ...]:
    """Remove the job's data on the disks of these hosts and of this one. Return a line for each host that failed.

    folder: the job's folder, if each host has its own one.
    """
    places = [f"{disk}/dlami-checkpoints-{os.getuid()}" for disk in (*DISKS, environment.get(DISK)) if disk]
    code = f"{FOLDER.removeprefix('~/')}/{OLD_COPIES}/{job_id}"
    script = f"""own() {{ [ -O "$1" ] && [ ! -L "$1" ]; }}
rm -rf -- "$HOME"/{shlex.quote(code)} {shlex.quote(folder) if folder else ""} || exit 1
for place in {" ".join(map(shlex.quote, places))}; do
  copies="$place"/{shlex.quote(job_id)}
  if own "$place" && own "$copies"; then rm -rf -- "$copies" || exit 1; fi
done"""
    results = on_all(hosts, job_id, script, _LIMITS)
    return tuple(f"{host}: {why}" for host, result in results.items() if (why := trouble(result)))

"""Lease on a job's record: the one attempt and process that may write. Its holder renews it while it lives.

Every writer checks it first: the supervisor before each write to the record, the trainers' checkpoint writer by its
DLAMI_ATTEMPT. An attempt that is older than the lease is fenced.
"""

import contextlib
import dataclasses
import os
import time
from dataclasses import dataclass

from cluster.errors import ClusterError
from cluster.files import write_json
from cluster.jobs.lock import time_in
from cluster.jobs.process import ProcessId
from cluster.jobs.record import DamagedRecord, JobPaths, load
from cluster.ssh.onhost import trusted_files

RENEW_S = 5.0  # how often the holder renews it
EXPIRES_S = 30.0  # an unrenewed lease of another machine's process is void after this


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Lease on a job's record: one attempt's right to write."""

    attempt: int
    holder: ProcessId
    renewed: float  # seconds since 1970, by its holder's clock

    def may_live(self, paths: JobPaths) -> bool:
        """Return True if the holder may still run.

        A process of this machine's current boot is looked up here. Any other is judged by the lease's age. If the age
        is unknown, returns True: a folder that cannot be written proves nothing.
        """
        if self.holder.is_of_this_boot:
            return self.holder.is_alive
        if (age_s := unrenewed_s(paths)) is None:
            return True
        return age_s < EXPIRES_S and not self.holder.is_of_an_earlier_boot(time.time() - age_s)


class Fenced(ClusterError):
    """Error: another attempt or process holds the lease, so this one must not write any more."""


def read_lease(paths: JobPaths) -> Lease | None:
    """Return the job's lease, or None if no readable one exists."""
    with contextlib.suppress(DamagedRecord):
        return load(paths.lease, Lease)
    return None


def unrenewed_s(paths: JobPaths) -> float | None:
    """Return the seconds since the job's lease was renewed, or None if that is unknown.

    Both times are by the clock that dates the folder's files, since two machines' clocks may be minutes apart. The
    kernel's own date of the last change counts as well: the file's owner can give it any other date.
    """
    if (now := time_in(paths.folder.parent)) is None:
        return None
    # Opened, because that makes a file server's client refresh the date.
    with contextlib.suppress(OSError), os.fdopen(trusted_files.open_file(paths.lease), "rb") as file:
        found = os.fstat(file.fileno())
        return now - min(found.st_mtime, found.st_ctime)
    return None


def take_lease(paths: JobPaths, attempt: int, holder: ProcessId) -> Lease:
    """Give the lease to this process, or renew it. The caller must hold the lock of the jobs' folder, or the lease."""
    lease = Lease(attempt=attempt, holder=holder, renewed=round(time.time(), 1))
    write_json(paths.lease, dataclasses.asdict(lease))
    return lease


def check_lease(paths: JobPaths, attempt: int, holder: ProcessId) -> None:
    """Raise Fenced if another process or attempt holds the lease. An unreadable lease never raises it."""
    lease = read_lease(paths)
    if lease and (lease.attempt, lease.holder) != (attempt, holder):
        raise Fenced(
            f"{paths.folder.name}: attempt {attempt} of process {holder.pid} on {holder.host} is not the one that may "
            f"write any more; attempt {lease.attempt} of process {lease.holder.pid} on {lease.holder.host} is"
        )

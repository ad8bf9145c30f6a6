"""Who may write for a job: one attempt, held by one process, kept in the job's folder and renewed while it lives.

Whatever writes for a job looks here first: the supervisor before each word of its record, the trainers' checkpoint
writer by its DLAMI_ATTEMPT. An attempt that is older than the lease is fenced.
"""

import contextlib
import dataclasses
import time
from dataclasses import dataclass

from cluster.errors import ClusterError
from cluster.files import write_json
from cluster.jobs.process import ProcessId
from cluster.jobs.record import DamagedRecord, JobPaths, load

RENEW_S = 5.0  # how often the holder renews it
EXPIRES_S = 30.0  # after so long without that, a holder on a machine that cannot be looked at from here is gone


@dataclass(frozen=True, kw_only=True)
class Lease:
    """One attempt's right to write for its job."""

    attempt: int
    holder: ProcessId
    renewed: float  # seconds since 1970

    def may_live(self, now: float) -> bool:
        """Whether its holder may still run: looked at on this machine since its boot, by the clock on any other."""
        if self.holder.is_of_this_boot:
            return self.holder.is_alive
        if self.holder.is_of_an_earlier_boot(self.renewed):
            return False
        return abs(now - self.renewed) < EXPIRES_S


class Fenced(ClusterError):
    """Another attempt or process holds the lease: this one must not write any more."""


def read_lease(paths: JobPaths) -> Lease | None:
    """The job's lease; None where there is none that can be read."""
    with contextlib.suppress(DamagedRecord):
        return load(paths.lease, Lease)
    return None


def take_lease(paths: JobPaths, attempt: int, holder: ProcessId) -> Lease:
    """Give the lease to this process, or renew it. The caller holds the lock of the jobs' folder, or the lease."""
    lease = Lease(attempt=attempt, holder=holder, renewed=round(time.time(), 1))
    write_json(paths.lease, dataclasses.asdict(lease))
    return lease


def check_lease(paths: JobPaths, attempt: int, holder: ProcessId) -> None:
    """Raises Fenced unless this process holds the lease, or nobody's can be read."""
    lease = read_lease(paths)
    if lease and (lease.attempt, lease.holder) != (attempt, holder):
        raise Fenced(
            f"{paths.folder.name}: attempt {attempt} of process {holder.pid} on {holder.host} is not the one that may "
            f"write any more; attempt {lease.attempt} of process {lease.holder.pid} on {lease.holder.host} is"
        )

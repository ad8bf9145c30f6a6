"""Running jobs of a cluster, which a task reports before it ends their hosts."""

from cfn.progress import Show
from cluster.errors import ClusterError, ConfigError
from cluster.inventory import Cluster, load_cluster
from cluster.jobs.client.client import opened
from cluster.jobs.record import JobView
from cluster.jobs.state import JobState
from cluster.locate import cluster_file


def running_jobs(cluster: Cluster) -> tuple[JobView, ...]:
    """Return the jobs of all users that are running.

    Raises ClusterError with the remedy if the master does not answer.
    """
    try:
        with opened(cluster) as jobs:
            return tuple(j for j in jobs.list().jobs if j.state.is_going and j.state is not JobState.QUEUED)
    except ClusterError as e:
        raise ClusterError(
            f"which jobs run cannot be asked: {e}\nmend that, or add --unsaved: what runs is ended as it is"
        ) from e


def refuse_running(path: str, show: Show, address: str = "") -> None:
    """Raise ConfigError if a job runs on the cluster, or on the host with this address.

    If the jobs cannot be listed, only a message is shown: an unreachable cluster must still be repairable and
    deletable.
    """
    try:
        running = running_jobs(load_cluster(str(cluster_file(path).resolve().parent)))
    except ClusterError as e:
        show(f"which jobs run is not known: {e}".split("\n")[0])
        return
    there = [j for j in running if not address or address in {h.address for h in j.job.all_hosts}]
    if there:
        names = ", ".join(f"{j.id} ({j.owner}, {j.state})" for j in there)
        raise ConfigError(
            f"{names} runs{f' on {address}' if address else ''}, and would be ended without a checkpoint; nothing was "
            f"changed: save it by 'inv jobs.stop {there[0].id}' first, or add --unsaved"
        )

"""`inv metrics`: one snapshot of the cluster, printed or written atomically to a file for a node exporter."""

import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.errors import ClusterError, ConfigError
from cluster.files import write_atomically
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.client.client import JobsClient
from cluster.metrics.families import families
from cluster.metrics.text import text_of
from cluster.ssh.fanout import Executor
from cluster.top.collector import one_frame
from cluster.top.snapshot import ClusterSnapshot


def tell_metrics(cluster: Cluster, hosts: Sequence[Host], to: Path | None) -> None:
    """Print the metrics, or write them atomically to a file. Raises ConfigError, ClusterError."""
    if to:
        check_target(to)
    with Executor(cluster, fanout=max(64, len(hosts))) as reach:
        frame = one_frame(reach, cluster, hosts)
        text = text_of(families(frame, _ettr(JobsClient(reach, cluster), frame)))
    for one in frame.hosts:
        if not one.is_seen:
            print(f"{one.host}: {one.sight}: {one.why}", file=sys.stderr)
    if to is None:
        sys.stdout.write(text)
        return
    try:
        write_atomically(to, text, mode=0o644)
    except OSError as e:
        raise ClusterError(f"--to {to}: {e.strerror}") from e


def check_target(to: Path) -> None:
    """Raise ConfigError if a node exporter would not read the file."""
    if to.suffix != ".prom":
        raise ConfigError(f"--to {to}: the node exporter reads files whose names end with .prom")
    if not to.parent.is_dir():
        raise ConfigError(f"--to {to}: there is no folder {to.parent}")


def _ettr(jobs: JobsClient, frame: ClusterSnapshot) -> dict[str, float]:
    """Return the useful share of time (ETTR) per active job. Jobs without an account are left out."""
    found = {}
    for job in frame.jobs:
        try:
            account = jobs.show(job.id).account
        except ClusterError as e:
            print(f"{job.id}: its time is not known: {e}", file=sys.stderr)
            continue
        if account and account.ettr is not None:
            found[job.id] = round(account.ettr, 4)
    return found

"""Baseline rates: measurements of earlier runs of the same kind of cluster, kept on the shared folder."""

import datetime
import json
import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.health.history import write_command
from cluster.inventory import Cluster
from cluster.launch.facts import HostFacts
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import marked, output_between_marks

RUNS = 9  # kept runs: their median is the baseline


@dataclass(frozen=True, kw_only=True)
class ClusterKind:
    """Properties that determine how fast a cluster can be. Runs are compared only if all of them are equal."""

    instance: str  # EC2 type, or "no-ec2"
    ami: str
    ranks: int
    hosts: int
    versions: tuple[str, ...]

    @property
    def file(self) -> str:
        """Return a file name made of all fields."""
        words = (self.instance, self.ami, f"{self.hosts}x{self.ranks}", *self.versions)
        return re.sub(r"[^A-Za-z0-9._-]+", "_", "--".join(words)) + ".json"


def kind_of(instance: Mapping[str, str], facts: HostFacts | None, hosts: int, ranks: int) -> ClusterKind:
    """Return the kind of a cluster, from its size and from the data of its first host that trains."""
    versions = (
        ()
        if facts is None
        else (
            *tuple(f"{name}-{facts.packages.get(name, 'none')}" for name in ("tensorflow", "horovod")),
            f"openmpi-{facts.mpirun_version}",
        )
    )
    return ClusterKind(
        instance=instance.get("instance-type", "no-ec2"),
        ami=instance.get("ami-id", "no-ami"),
        hosts=hosts,
        ranks=ranks,
        versions=versions,
    )


def read(reach: Executor, cluster: Cluster, kind: ClusterKind) -> list[dict[str, float]]:
    """Return the rates of earlier runs without problems, oldest first: name -> bytes per second."""
    path = shlex.quote(f"{cluster.shared}/health/baselines/{kind.file}")
    # Others may write there: only this user's own file counts, and root's.
    is_trusted = f'[ -f {path} ] && [ ! -L {path} ] && {{ [ -O {path} ] || [ "$(stat -c %u {path})" = 0 ]; }}'
    command = marked(f"{is_trusted} && head -c 1000000 {path}")
    result = reach.run([cluster.master], command, limits=Limits(connect_s=5, total_s=5))[cluster.master]
    try:
        return (
            [dict(run["rates"]) for run in json.loads(output_between_marks(result) or "")["runs"]] if result.ok else []
        )
    except (ValueError, KeyError, TypeError):
        return []


def add(
    reach: Executor,
    cluster: Cluster,
    kind: ClusterKind,
    earlier: Sequence[Mapping[str, float]],
    now: Mapping[str, float],
) -> bool:
    """Add the rates of a run without problems. Return True if they could be written."""
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    runs = [{"time": at, "rates": dict(r)} for r in (*earlier, now)][-RUNS:]
    write = write_command(cluster.shared, "health/baselines", kind.file)
    return reach.run(
        [cluster.master],
        write,
        stdin=json.dumps({"kind": vars(kind), "runs": runs}).encode(),
        limits=Limits(connect_s=5, total_s=5),
    )[cluster.master].ok


def middle(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of earlier runs, per name."""
    return {name: statistics.median(r[name] for r in runs if name in r) for name in {n for r in runs for n in r}}

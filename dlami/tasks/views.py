"""Tasks that show the cluster's current state: a live table, and metrics for Prometheus."""

from dataclasses import dataclass

from invoke import Context, Exit

from cluster.inventory import load_cluster
from dlami.tasks.command import HOSTS_HELP, command, option


@dataclass(frozen=True, kw_only=True)
class TopOptions:
    """The options of `inv top`."""

    hosts: str = option("", HOSTS_HELP)
    once: bool = option(False, "one frame; exit code 1 if a host is not seen")
    json: bool = option(False, "as JSON, a line per frame")
    watch: float = option(1.0, "seconds from one frame to the next")
    sort: str = option("host", "host, odd, cpu, memory, gpu, network, ping or img/s")
    ranks: bool = option(False, "a line per rank, too")


@command(name="top")
def top(c: Context, given: TopOptions) -> None:
    """Watch all hosts and the running jobs: GPUs, processors, network, steps, images/s; the odd one out is marked."""
    from cluster import hostset
    from cluster.top.command import TopRequest, show_top, sort_named
    from cluster.top.table import View

    cluster = load_cluster()
    view = View(sort=sort_named(given.sort), by_rank=given.ranks)
    request = TopRequest(once=given.once, as_json=given.json, every_s=given.watch, view=view)
    raise Exit(code=show_top(cluster, hostset.select(cluster.hosts, given.hosts or None), request))


@command(
    name="metrics",
    help={"hosts": HOSTS_HELP, "to": "a file that ends with .prom in the node exporter's textfile folder"},
)
def metrics(c: Context, hosts: str = "", to: str = "") -> None:
    """Print hosts, GPUs, jobs and ranks as numbers for Prometheus, or write them to a file, whole at every moment."""
    from pathlib import Path

    from cluster import hostset
    from cluster.metrics.command import tell_metrics

    cluster = load_cluster()
    tell_metrics(cluster, hostset.select(cluster.hosts, hosts or None), Path(to).resolve() if to else None)

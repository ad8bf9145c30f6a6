"""Hosts as a person reads them."""

from collections.abc import Sequence

from cluster.hosts import Host
from cluster.lab.record import LabHost


def host_table(hosts: Sequence[Host]) -> str:
    """Rank, address and slots, a host per line."""
    width = max(len(h.address) for h in hosts)
    lines = [f"{h.rank:>4}  {h.address:<{width}}  {h.slots:>5}{'  master' if h.rank == 0 else ''}" for h in hosts]
    return "\n".join(
        [f"rank  {'address':<{width}}  slots", *lines, f"{len(hosts)} hosts, {sum(h.slots for h in hosts)} slots"]
    )


def lab_table(statuses: Sequence[tuple[LabHost, str]]) -> str:
    """A lab's hosts and how each is."""
    return "\n".join(
        f"{host.rank:>4}  {host.name:<12}  {host.address:<15}  slots={host.slots}  {state}" for host, state in statuses
    )

"""Survey of the hosts, queried in parallel, and a check that they agree."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from typing import Any

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.program import ask, program
from cluster.ssh.result import FanOut

_SURVEY = "cluster.launch.onhost.survey"


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """Facts about one host, from its survey."""

    kernel: str
    python: str
    packages: Mapping[str, str]  # name -> version
    mpirun: str | None  # absolute path
    mpirun_version: str | None
    interface: str | None  # the network device that has the host's address
    network: str | None  # the network of that address, like 10.0.1.0/24
    cores: int
    gpus: int | None  # None: the driver does not answer
    has_efa: bool
    shared: str  # "yes", or why the shared folder cannot be written
    is_root: bool
    own_address: str = ""  # address of that device, if the hostfile has a name
    free_port: int = 0  # free port outside the ephemeral range; 0: not known


def survey(reach: Executor, cluster: Cluster, hosts: Sequence[Host]) -> tuple[FanOut, dict[Host, HostFacts]]:
    """Return every host's facts, and the raw results. A host that failed is only in the results."""
    # Not isolated: it lists installed packages
    sent = program(_SURVEY, cluster.shared, python=cluster.python, is_isolated=False)
    results, answers = ask(reach, hosts, sent, limits=Limits(total_s=40))
    return results, {h: read_facts(h, said) for h, said in answers.items()}


def read_facts(host: Host, raw: Mapping[str, Any]) -> HostFacts:
    """Parse the survey's JSON for this host."""
    interface, network, own_address = _interface_of(host.address, raw["interfaces"])
    return HostFacts(
        kernel=raw["kernel"],
        python=raw["python"],
        packages=raw["packages"],
        mpirun=raw["mpirun"],
        mpirun_version=raw["mpirun_version"],
        interface=interface,
        network=network,
        cores=raw["cores"],
        gpus=None if raw["gpus"] is None else len(raw["gpus"]),
        has_efa=raw["efa"],
        shared=raw["shared"],
        is_root=raw["is_root"],
        own_address=own_address,
        free_port=raw["free_port"],
    )


def agreed(facts: Mapping[Host, HostFacts], what: str, of: Callable[[HostFacts], Any]) -> Any:
    """Return the one value that all hosts have. Raises ClusterError that names the hosts that differ."""
    counts = Counter(of(f) for f in facts.values())
    if len(counts) == 1:
        return next(iter(counts))
    usual, _ = counts.most_common(1)[0]
    odd = {v: fold(h.address for h, f in facts.items() if of(f) == v) for v in counts if v != usual}
    raise ClusterError(
        f"{what} differs between the hosts: {usual} on {counts[usual]} of {len(facts)}, but "
        + "; ".join(f"{value} on {hosts}" for value, hosts in odd.items())
    )


def _interface_of(address: str, interfaces: Mapping[str, Any]) -> tuple[str | None, str | None, str]:
    """Return the device with the address, its network and its own address; (None, None, "") without such a device."""
    for name, link in interfaces.items():
        for with_prefix in link["addresses"]:
            interface = ip_interface(with_prefix)
            if str(interface.ip) == address:
                return name, str(interface.network), address
    try:
        ip_address(address)
    except ValueError:  # a host name: take the first device that is not the loopback
        for name, link in interfaces.items():
            if name != "lo" and link["addresses"]:
                interface = ip_interface(link["addresses"][0])
                return name, str(interface.network), str(interface.ip)
    return None, None, ""

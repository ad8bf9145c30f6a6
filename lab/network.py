"""Network of a lab: a bridge, a cable to each host, and simulated faults of a cable."""

import json
import subprocess
from collections.abc import Iterable
from ipaddress import IPv4Network

from cluster.errors import ClusterError, ConfigError
from lab.record import Lab, LabHost

CANDIDATES = tuple(IPv4Network(f"10.{b}.{c}.0/22") for b in range(231, 255) for c in range(0, 256, 4))


def ip(*words: str) -> str:
    """Run `ip` and return its output. Raises ClusterError with its message."""
    return _tool("ip", *words)


def ip_batch(lines: Iterable[str]) -> None:
    """Run many `ip` commands in one process. Raises ClusterError at the first that fails."""
    _tool("ip", "-batch", "-", stdin="\n".join(lines) + "\n")


def free_network(taken: Iterable[IPv4Network] | None = None) -> IPv4Network:
    """Return the first candidate that overlaps no route or address of this machine (or none of `taken`)."""
    used = list(taken) if taken is not None else networks_in_use()
    for candidate in CANDIDATES:
        if not any(candidate.overlaps(n) for n in used):
            return candidate
    raise ClusterError("no free network between 10.231.0.0 and 10.254.255.255 on this machine: take a lab down first")


def networks_in_use() -> list[IPv4Network]:
    """Return every IPv4 network that this machine routes or has an address in, except the default route."""
    routes = [r["dst"] for r in json.loads(ip("-j", "-4", "route", "show", "table", "all")) if r["dst"] != "default"]
    addresses = [
        f"{a['local']}/{a['prefixlen']}"
        for link in json.loads(ip("-j", "-4", "addr"))
        for a in link["addr_info"]
        if "local" in a
    ]
    return [IPv4Network(n, strict=False) for n in routes + addresses if n[0].isdigit()]


def make_bridge(lab: Lab) -> None:
    """Create the lab's bridge and this machine's address on it."""
    prefix = IPv4Network(lab.network).prefixlen
    ip_batch(
        [
            f"link add {lab.bridge} type bridge",
            f"addr add {lab.bridge_address}/{prefix} dev {lab.bridge}",
            f"link set {lab.bridge} up",
        ]
    )


def plug_in(lab: Lab, pids: dict[LabHost, int]) -> None:
    """Connect the network namespace of each host's first process to the bridge, by a cable that is eth0 in the host.

    Its hardware address follows from the IP address, because the other hosts cache the pair for half a minute. So a
    host that boots again is reached at once.
    """
    ip_batch(
        line
        for host, pid in pids.items()
        for line in (
            f"link add {lab.cable(host)} type veth peer name eth0 address {_hardware_address(host)} netns {pid}",
            f"link set {lab.cable(host)} master {lab.bridge} up",
        )
    )


def _hardware_address(host: LabHost) -> str:
    return "02:00:" + ":".join(f"{int(part):02x}" for part in host.address.split("."))


def links() -> set[str]:
    """Return the names of this machine's network devices."""
    return {link["ifname"] for link in json.loads(ip("-j", "link"))}


def unplug(lab_name: str, hosts: Iterable[str] = (), *, all_of_it: bool = False) -> None:
    """Remove cables by name, or all cables and the bridge, without waiting for the namespaces to end."""
    ours = {
        n
        for n in links()
        if n in set(hosts) or (all_of_it and (n.startswith(f"lab{lab_name}.") or n == f"lab-{lab_name}"))
    }
    if ours:
        _tool("ip", "-force", "-batch", "-", stdin="".join(f"link del {n}\n" for n in sorted(ours)), check=False)


def cut(cable: str) -> None:
    """Drop all packets to and from the host, without a notice to either side."""
    ip("link", "set", cable, "down")


def mend(cable: str, pid: int) -> None:
    """Set the cable up and remove its speed limits."""
    ip("link", "set", cable, "up")
    for tc, device in _ends(cable, pid):
        _tool(*tc, "qdisc", "del", "dev", device, "root", check=False)


def slow(cable: str, pid: int, *, mbit: float | None, delay_ms: float | None) -> None:
    """Limit a host's link: `mbit` Mbit/s and `delay_ms` in each direction. Raises ConfigError if neither is given."""
    if not mbit and not delay_ms:
        raise ConfigError("say how slow: --mbit 100, --delay-ms 20, or both")
    mend(cable, pid)
    for tc, device in _ends(cable, pid):
        parent = ["root"]
        if delay_ms:
            _tool(
                *tc,
                "qdisc",
                "add",
                "dev",
                device,
                *parent,
                "handle",
                "1:",
                "netem",
                "delay",
                f"{delay_ms}ms",
                "limit",
                "100000",
            )
            parent = ["parent", "1:"]
        if mbit:
            _tool(
                *tc,
                "qdisc",
                "add",
                "dev",
                device,
                *parent,
                "tbf",
                "rate",
                f"{mbit}mbit",
                "burst",
                f"{max(32, int(mbit))}kb",
                "latency",
                "100ms",
            )


def _ends(cable: str, pid: int) -> list[tuple[list[str], str]]:
    """Return the `tc` command and device name for each end of a cable: on this machine, and inside the host."""
    return [(["tc"], cable), (["nsenter", "--net", "--target", str(pid), "tc"], "eth0")]


def _tool(*words: str, stdin: str | None = None, check: bool = True) -> str:
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=60)
    if check and done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        if "qdisc kind is unknown" in done.stderr:
            raise ClusterError("this kernel has no such packet scheduler: --mbit needs tbf, --delay-ms needs netem")
        raise ClusterError(f"{' '.join(words)}: {said[0] if said else f'exited {done.returncode}'}")
    return done.stdout

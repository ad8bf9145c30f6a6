"""Judges that compare all hosts: they name the hosts that differ from the rest, and failures between two hosts."""

import json
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cluster.health import clocks
from cluster.health.onhost.trust import AUTHORITY
from cluster.health.verdict import Problem, Severity, Unreadable, unknown
from cluster.hosts import Host
from cluster.terminal import counted

Found = dict[Host, list[Problem]]
_OF_EVERYBODY = ("our own code", "Python")
BUSY_TIMES = 3.0  # the load of the others' median, and above the cores; ours


def odd_ones(
    what: str,
    values: Mapping[Host, str | None],
    master: Host,
    *,
    check: str = "versions",
    means: str = "ranks with other software fail or compute otherwise",
    do: str,
    command: str,
    unfit: bool = True,
    verdict: Severity = Severity.RESTART_JOB,
) -> Found:
    """Return a problem for each host whose value differs from most hosts'. In a tie the master's value counts."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return {}
    usual = max(counts, key=lambda v: (counts[v], v == values.get(master)))
    return {
        h: [
            Problem(
                check=check,
                what=f"{what} is {v or 'missing'}; {counts[usual]} of {counted(len(values), 'host')} have "
                f"{usual or 'none'}",
                means=means,
                verdict=verdict,
                do=do,
                unfit=unfit,
                command=command.replace("{usual}", str(usual)),
            )
        ]
        for h, v in values.items()
        if v != usual
    }


def version_problems(texts: Mapping[Host, str], master: Host, project: str) -> Found:
    """Compare each version that any host reports between all hosts.

    A master that does not train is compared only by our own code and by Python.
    """
    versions: dict[Host, dict[str, str]] = {h: json.loads(t) for h, t in texts.items()}
    names = sorted({name for v in versions.values() for name in v})
    found: Found = {}
    for name in names:
        compared = {h: v.get(name) for h, v in versions.items() if h.slots > 0 or name in _OF_EVERYBODY}
        command = "inv run --hosts {ranks} -- " + (
            f"rsync -a --exclude .venv {master.address}:{project}/ {project}/"
            if name == "our own code"
            else f"'cd {project} && scripts/install.sh'"
        )
        _merge(
            found,
            odd_ones(
                name,
                compared,
                master,
                command=command,
                do="copy the master's" if name == "our own code" else "install what the lock file says",
            ),
        )
    return found


def kernel_problems(kernels: Mapping[Host, str], master: Host) -> Found:
    """Compare the hosts' kernels: drivers and EFA are built for one of them."""
    return odd_ones(
        "the kernel",
        {h: k.strip() for h, k in kernels.items()},
        master,
        check="kernel",
        unfit=False,
        do="boot the one that the others run (install it first)",
        verdict=Severity.WATCH,
        command="inv run --hosts {ranks} --sudo -- reboot",
    )


def shared_problems(mounts: Mapping[Host, str], shared: str, master: Host) -> Found:
    """Compare the type of the file system under the shared folder: it differs where nothing is mounted.

    A host that serves the folder to others has it on its own disk, which counts as mounted.
    """
    rows = {host: _row_of(text, shared) for host, text in mounts.items()}
    kinds: dict[Host, str | None] = {host: row[2] for host, row in rows.items()}
    served = {server: row[2] for row in rows.values() for server in _servers(row)}
    return odd_ones(
        f"what is mounted on {shared}",
        kinds | {host: served[host.address] for host in kinds if host.address in served},
        master,
        check="mounts",
        do="mount it",
        means="its jobs would write where nobody else sees it",
        command=f"inv run --hosts {{ranks}} --sudo -- mount {shared}",
    )


def _row_of(mounts: str, path: str) -> list[str]:
    """Return the fields of the mount that contains the path."""
    under = [line.split() for line in mounts.splitlines() if _is_above(line.split()[1], path)]
    if not under:
        raise Unreadable("no root in /proc/self/mounts")
    return max(enumerate(under), key=lambda n: (len(n[1][1]), n[0]))[1]


def _servers(row: Sequence[str]) -> set[str]:
    """Return the server of a mount: its name from `ADDRESS:/path`, and the address that the kernel resolved."""
    server, is_served, _ = row[0].partition(":/")
    options = dict(option.partition("=")[::2] for option in row[3].split(","))
    return {server.strip("[]"), options.get("addr", "")} - {""} if is_served else set()


def load_problems(texts: Mapping[Host, tuple[str, int]]) -> Found:
    """Return the hosts whose load exceeds their cores and is far above the others'. Needs three hosts.

    The load is the smaller of the last minute's and the last five minutes'. The first jumps with every burst, and the
    second still contains processes that ended minutes ago.
    """
    loads = {h: min(map(float, text.split()[:2])) / cores for h, (text, cores) in texts.items()}
    if len(loads) < 3:
        return {}
    usual = statistics.median(loads.values())
    return {
        h: [
            Problem(
                check="load",
                what=f"load is {load:.1f} per core, {usual:.1f} on the others",
                unfit=False,
                means="all ranks wait for the slowest host",
                verdict=Severity.WATCH,
                do="see what it runs",
                command="inv run --hosts {ranks} -- 'ps aux --sort -pcpu | head -4'",
            )
        ]
        for h, load in loads.items()
        if load > 1 and load > BUSY_TIMES * usual
    }


def mtu_problems(texts: Mapping[Host, str], master: Host) -> Found:
    """Compare the MTU of the card that has the host's address, read from `ip -j addr`."""
    sizes: dict[Host, str | None] = {}
    card = "eth0"
    for host, text in texts.items():
        links = [link for link in json.loads(text) if any(a.get("local") == host.address for a in link["addr_info"])]
        if links:
            sizes[host], card = str(links[0]["mtu"]), links[0]["ifname"]
    return odd_ones(
        "the largest frame (MTU)",
        sizes,
        master,
        check="frames",
        do="set what the others have",
        means="large messages to it may get lost",
        command=f"inv run --hosts {{ranks}} --sudo -- ip link set {card} mtu {{usual}}",
    )


def ssh_problems(text: str, hosts: Mapping[str, Host], master: Host) -> Found:
    """Judge the master's SSH to each worker, as mpirun uses it: connection, full-size frames, and clock."""
    found: Found = {}
    offsets: dict[Host, tuple[float, float]] = {}
    again = f"inv run --hosts {master.rank} -- 'for h in {{addresses}}; do ssh $h hostname; done'"
    for address, said in json.loads(text).items():
        host, state = hosts[address], said["state"]
        if state == "late":
            what = "there was no time to ssh from the master to it"
            found[host] = [unknown("ssh", what, command="inv health --hosts {ranks}")]
        elif state == "failed":
            why = said["error"].removeprefix("ssh: ").replace(f"{address} ", "") or "it ended without a word"
            found[host] = [
                Problem(
                    check="ssh",
                    what=f"the master cannot ssh to it: {why[:90]}",
                    means="mpirun starts its ranks that way",
                    verdict=Severity.RESTART_JOB,
                    do="see why, and open the way (its key there, the host's key here, port 22)",
                    command=again,
                )
            ]
        elif state == "stalled":
            found[host] = [
                Problem(
                    check="frames",
                    what="full-size frames between it and the master get lost",
                    means="large messages would hang",
                    verdict=Severity.RESTART_JOB,
                    do="compare its MTU with the others'",
                    command="inv run --hosts {ranks} -- ip link",
                )
            ]
        else:
            offsets[host] = clocks.offset_of(said["exchanges"])
    return found | clocks.clock_problems(offsets, master)


def trust_problems(texts: Mapping[Host, str], reached: Mapping[Host, Collection[str]] = {}) -> Found:
    """Compare each host's known_hosts with the host keys that the others have.

    Args:
        reached: addresses that each host's SSH has just reached. Their keys are not compared.
    """
    trusts: dict[Host, dict[str, Any]] = {h: json.loads(t) for h, t in texts.items()}
    found: Found = {}
    for host, mine in trusts.items():
        wrong = [
            other.address
            for other, theirs in trusts.items()
            if other is not host
            and theirs["shows"]
            and other.address not in reached.get(host, ())
            and not _is_known(mine["expects"].get(other.address, ()), theirs["shows"])
        ]
        if wrong:
            some = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
            found[host] = [
                Problem(
                    check="ssh",
                    what=f"it does not know the SSH host key of {some}",
                    means="it cannot ssh there" + (": mpirun starts ranks that way" if host.rank == 0 else ""),
                    verdict=Severity.RESTART_JOB if host.rank == 0 else Severity.WATCH,
                    unfit=host.rank == 0,
                    do="give it the known_hosts of a host that knows all",
                    command=f"inv run --hosts {{ranks}} -- scp {_donor(trusts)}:.ssh/known_hosts .ssh/",
                )
            ]
    return found


def _is_known(expects: Collection[str], shows: Collection[str]) -> bool:
    """Return True if known_hosts has one of the host's keys, or an authority for its name.

    Only SSH itself can find out whether the authority has signed the host's key.
    """
    return bool({*expects} & {*shows}) or any(key.startswith(AUTHORITY) for key in expects)


def _donor(trusts: Mapping[Host, dict[str, Any]]) -> str:
    """Return the address of the host whose known_hosts knows the most others."""
    return max(trusts, key=lambda h: (sum(1 for keys in trusts[h]["expects"].values() if keys), -h.rank)).address


def _is_above(folder: str, path: str) -> bool:
    return folder == "/" or path == folder or path.startswith(f"{folder}/")


def _merge(found: Found, more: Found) -> None:
    for host, problems in more.items():
        found.setdefault(host, []).extend(problems)

"""Judges that compare all hosts: the one that differs from the rest is named, and so is what fails between two."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cluster.health.onhost.trust import AUTHORITY
from cluster.health.system import CLOCK_FAILS_S, CLOCK_WARNS_S
from cluster.health.verdict import Problem, Unreadable, Verdict, unknown
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
    verdict: Verdict = Verdict.RESTART_JOB,
) -> Found:
    """The hosts whose value is not what most hosts have. In a tie the master's value counts."""
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
    """Every version that any host names, compared between all; of a master that does not train the code and Python."""
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
    """Kernels that differ: drivers and EFA are built for one."""
    return odd_ones(
        "the kernel",
        {h: k.strip() for h, k in kernels.items()},
        master,
        check="kernel",
        unfit=False,
        do="boot the one that the others run (install it first)",
        verdict=Verdict.WATCH,
        command="inv run --hosts {ranks} --sudo -- reboot",
    )


def shared_problems(mounts: Mapping[Host, str], shared: str, master: Host) -> Found:
    """The kind of file system under the shared folder: where it is not mounted, it is another.

    A host that serves it to others has it on a disk of its own, which is as good as mounted.
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
    """The fields of the mount that the path is in."""
    under = [line.split() for line in mounts.splitlines() if _is_above(line.split()[1], path)]
    if not under:
        raise Unreadable("no root in /proc/self/mounts")
    return max(enumerate(under), key=lambda n: (len(n[1][1]), n[0]))[1]


def _servers(row: Sequence[str]) -> set[str]:
    """Who serves a mount, as `ADDRESS:/path` names it, and by the address that the kernel found for a name."""
    server, is_served, _ = row[0].partition(":/")
    options = dict(option.partition("=")[::2] for option in row[3].split(","))
    return {server.strip("[]"), options.get("addr", "")} - {""} if is_served else set()


def load_problems(texts: Mapping[Host, tuple[str, int]]) -> Found:
    """Hosts with more to run than they have cores, and far more than the others. Needs three hosts.

    The load is the smaller of the last minute's and the last five minutes': the first jumps with every burst, and the
    second still shows what ended minutes ago.
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
                verdict=Verdict.WATCH,
                do="see what it runs",
                command="inv run --hosts {ranks} -- 'ps aux --sort -pcpu | head -4'",
            )
        ]
        for h, load in loads.items()
        if load > 1 and load > BUSY_TIMES * usual
    }


def mtu_problems(texts: Mapping[Host, str], master: Host) -> Found:
    """Reads `ip -j addr`: the largest frame of the card that has the host's address, compared over all."""
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
    """The master's SSH to each worker, as mpirun uses it: whether it works, whether full frames pass, and its clock."""
    found: Found = {}
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
                    verdict=Verdict.RESTART_JOB,
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
                    verdict=Verdict.RESTART_JOB,
                    do="compare its MTU with the others'",
                    command="inv run --hosts {ranks} -- ip link",
                )
            ]
        elif problem := _clock_problem(said["exchanges"]):
            found[host] = [problem]
    return found


def _clock_problem(exchanges: list[list[float]]) -> Problem | None:
    """The offset by the quickest exchange, which is uncertain by half its duration. Only what exceeds that counts."""
    sent, said, got = min(exchanges, key=lambda e: e[2] - e[0])
    offset, doubt = said - (sent + got) / 2, (got - sent) / 2
    if math.isnan(offset):
        raise Unreadable("a clock that says no number")
    least = abs(offset) - doubt
    if least <= CLOCK_WARNS_S:
        return None
    fails = least > CLOCK_FAILS_S
    return Problem(
        check="clock",
        what=f"its clock is {offset:+.2f} s from the master's (to {doubt:.3f} s)",
        unfit=fails,
        means="logs, leases and make's time stamps do not fit",
        do="set it",
        verdict=Verdict.RESTART_JOB if fails else Verdict.WATCH,
        command="inv run --hosts {ranks} --sudo -- 'systemctl restart chrony*; chronyc makestep'",
    )


def trust_problems(texts: Mapping[Host, str], reached: Mapping[Host, Collection[str]] = {}) -> Found:
    """Each host's known_hosts against the keys that the others really show.

    reached: addresses at which a host's SSH has just arrived, whatever its files say.
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
                    verdict=Verdict.RESTART_JOB if host.rank == 0 else Verdict.WATCH,
                    unfit=host.rank == 0,
                    do="give it the known_hosts of a host that knows all",
                    command=f"inv run --hosts {{ranks}} -- scp {_donor(trusts)}:.ssh/known_hosts .ssh/",
                )
            ]
    return found


def _is_known(expects: Collection[str], shows: Collection[str]) -> bool:
    """By one of its keys, or by an authority that vouches for its name: whether it has, only SSH itself finds out."""
    return bool({*expects} & {*shows}) or any(key.startswith(AUTHORITY) for key in expects)


def _donor(trusts: Mapping[Host, dict[str, Any]]) -> str:
    """The host whose known_hosts knows the most others."""
    return max(trusts, key=lambda h: (sum(1 for keys in trusts[h]["expects"].values() if keys), -h.rank)).address


def _is_above(folder: str, path: str) -> bool:
    return folder == "/" or path == folder or path.startswith(f"{folder}/")


def _merge(found: Found, more: Found) -> None:
    for host, problems in more.items():
        found.setdefault(host, []).extend(problems)

"""Judges of the routes between hosts: each host reported how it reaches the others."""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from cluster.health.verdict import Problem, Severity, unknown
from cluster.hosts import Host
from cluster.terminal import counted

LOST_LEAST = 3  # retransmitted packets of one host that are more than chance; ours

# ssh's messages for failures of the network, not of a key: the host may have been down for a moment.
_NETWORK = re.compile(
    r"no route to host|network is unreachable|timed out|connection (?:refused|reset|closed)", re.IGNORECASE
)

Found = dict[Host, list[Problem]]


def link_problems(texts: Mapping[Host, str]) -> Found:
    """Report pairs of hosts between which TCP fails, in one direction or both.

    The host with more broken pairs than its partners is named for all of them. If only one pair is broken, the host
    whose own system refuses is named, or else the one of higher rank. The problem names the other end.
    """
    said: dict[Host, dict[str, dict[str, str]]] = {h: json.loads(t) for h, t in texts.items()}
    known = {h.address: h for h in said}
    broken = {
        (h, known[a]): how
        for h, ways in said.items()
        for a, how in ways.items()
        if a in known and how["state"] != "answers"
    }
    left = {frozenset(pair) for pair in broken}
    found: Found = {}
    while left:
        count = Counter(h for pair in left for h in pair)
        refusing = {a for (a, b), how in broken.items() if how["state"] == "refused here" and frozenset((a, b)) in left}
        worst = max(count, key=lambda h: (count[h], h in refusing, h.rank))
        others = sorted(h for pair in left if worst in pair for h in pair if h != worst)
        why = next((broken[way]["why"] for o in others for way in ((worst, o), (o, worst)) if way in broken), "")
        found[worst] = [_no_way(others, why)]
        left = {pair for pair in left if worst not in pair}
    return {**_lossy(said, known, set(found)), **found}


def _lossy(said: Mapping[Host, Mapping[str, Any]], known: Mapping[str, Host], named: Collection[Host]) -> Found:
    """Report hosts whose packets get lost: those with the most retransmitted packets, at both ends together.

    A single one is no sign: that happens on networks that are well.
    """
    lost: Counter[frozenset[Host]] = Counter()
    for host, ways in said.items():
        for address, how in ways.items():
            if address in known and not {host, known[address]} & set(named):
                lost[frozenset((host, known[address]))] += int(how.get("again", 0))
    found: Found = {}
    while lost:
        count = Counter({h: sum(n for pair, n in lost.items() if h in pair) for pair in lost for h in pair})
        worst = max(count, key=lambda h: (count[h], h.rank))
        if count[worst] < LOST_LEAST:
            break
        others = sorted(h for pair, n in lost.items() if worst in pair and n for h in pair if h != worst)
        found[worst] = [
            Problem(
                check="links",
                what=f"packets between it and {_some([h.address for h in others])} get lost: "
                f"{counted(count[worst], 'packet')} had to be sent again",
                means="connections stall for seconds, and all-reduce with them",
                verdict=Severity.WATCH,
                do="look again; if it stays, see its card's errors, and replace it",
                command="inv run --hosts {ranks} -- 'ip -s link; nstat -az TcpRetransSegs'",
                unfit=False,
            )
        ]
        lost = Counter({pair: n for pair, n in lost.items() if worst not in pair})
    return found


def _no_way(others: list[Host], why: str) -> Problem:
    return Problem(
        check="links",
        what=f"no TCP between it and {_some([h.address for h in others])}: {why}",
        means="ranks there cannot exchange data: MPI hangs",
        verdict=Severity.RESTART_JOB,
        do="compare routes and firewalls of both ends",
        command="inv run --hosts {ranks} -- 'ip route; ip rule'",
    )


def node_problems(texts: Mapping[Host, str], known: Collection[Host], besides: Collection[Host] = ()) -> Found:
    """Report failures of SSH from host to host.

    Hosts in `besides` are left out, because other problems name them already. Unknown host keys are left out, too: the
    check `trust` finds them for all pairs.
    """
    to = {h.address: h for h in known if h not in besides}
    found: Found = {}
    for host, text in texts.items():
        ways: dict[str, dict[str, Any]] = json.loads(text)
        failed: dict[str, list[str]] = {}
        for address, said in ways.items():
            if host in besides or address not in to or said["state"] == "whole" or "host key" in said["error"].lower():
                continue
            why = said["error"].removeprefix("ssh: ").replace(f"{address} ", "").replace(f"@{address}", "")
            why = "late" if said["state"] == "late" else why or "it ended in the middle"
            failed.setdefault(why, []).append(address)
        found[host] = [_no_ssh(addresses, why) for why, addresses in failed.items()]
    return {h: problems for h, problems in found.items() if problems}


def _no_ssh(addresses: list[str], why: str) -> Problem:
    if why == "late":
        return unknown("ssh", f"there was no time to ssh from it to {_some(addresses)}")
    do = "give it the key and the ssh settings that the others have"
    command = "inv run --hosts {ranks} -- 'ls -l .ssh /etc/ssh/ssh_config.d'"
    if _NETWORK.search(why):
        do, command = "look again; if it stays, compare routes and firewalls of both ends", "inv health"
    return Problem(
        check="ssh",
        what=f"it cannot ssh to {_some(addresses)}: {why[:80]}",
        means="mpirun starts ranks from the master, but whoever goes from node to node fails",
        verdict=Severity.WATCH,
        unfit=False,
        do=do,
        command=command,
    )


def _some(addresses: list[str]) -> str:
    return ", ".join(addresses[:3]) + (f" and {len(addresses) - 3} more" if len(addresses) > 3 else "")

"""`inv data.status`: compares the data in a folder between hosts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.program import ask, program
from cluster.ssh.result import FanOut, Result
from cluster.terminal import counted

_LOOK = "cluster.stage.onhost.look"


def status(
    reach: Executor, cluster: Cluster, hosts: Sequence[Host], folder: str
) -> tuple[FanOut, dict[Host, dict[str, Any]]]:
    """Return the fan-out's results, and the data that each host has in a folder, as `look` reports it."""
    return ask(reach, hosts, program(_LOOK, folder, python=cluster.python), limits=Limits(total_s=600))


def status_lines(results: FanOut, found: Mapping[Host, Mapping[str, Any]]) -> tuple[str, bool]:
    """Return a line for each group of hosts with equal data, and True if all hosts have the same, complete data."""
    same: dict[str, list[str]] = {}
    usual = Counter(v["sample"] for v in found.values()).most_common(1)
    for host, result in results.items():
        same.setdefault(_status_text(found.get(host), result, usual[0][0] if usual else ""), []).append(host.address)
    fine = len(same) == 1 and all(v["there"] and not v["unfinished"] for v in found.values()) and bool(found)
    return "\n".join(f"{fold(hosts)} ({len(hosts)})  {text}" for text, hosts in same.items()), fine


def _status_text(has: Mapping[str, Any] | None, result: Result, usual: str) -> str:
    if has is None:
        return f"unknown: {result.problem}"
    if not has["there"]:
        return "nothing there"
    odd = "" if has["sample"] == usual else "   <- not what most hosts have"
    unfinished = f", {has['unfinished']} unfinished" if has["unfinished"] else ""
    counts = f"{counted(has['files'], 'file')}, {counted(has['shards'], 'shard')}, {counted(has['bytes'], 'byte')}"
    return f"{counts}, sample {has['sample']}{unfinished}{odd}"

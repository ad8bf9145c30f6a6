"""Node settings that health checks, applied on request: GPU persistence mode, clocks and power, MTU, sysctl values."""

import dataclasses
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.program import ask, program

LIMIT_S = 120.0
_ONHOST = "cluster.setup.onhost.settings"
# Minimum values of kernel settings; larger ones are kept.
KERNEL = {
    "net.core.somaxconn": 4096,  # connections waiting for accept: all ranks connect to the first one at once
    "net.core.rmem_max": 16_777_216,  # bytes of a TCP socket: a 10 Gbit/s stream with 10 ms needs 12.5 MB
    "net.core.wmem_max": 16_777_216,
}
# Page migration causes faults in the ranks' memory; NVIDIA's DGX images turn it off.
KERNEL_OFF = ("kernel.numa_balancing",)


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    """Change of one setting on one host."""

    what: str
    before: str
    after: str
    command: tuple[str, ...]  # command that makes the change, run as root
    why_not: str = ""  # why it failed
    is_done: bool = False

    def __str__(self) -> str:
        text = f"{self.what}: {self.before} -> {self.after}"
        if self.why_not:
            return f"{text}  FAILED, {self.why_not}"
        return text if self.is_done else f"{text}  ({shlex.join(self.command)})"

    def record(self, host: Host) -> dict[str, Any]:
        """Return the change as JSON data."""
        return {"host": host.address, "rank": host.rank, **vars(self), "command": list(self.command)}


def gpu_changes(gpus: Sequence[Mapping[str, str]]) -> list[SettingChange]:
    """Return changes for persistence mode on, the highest application clocks, and the default power limit.

    A value that a GPU or its driver does not have reads `[N/A]` and is left alone.
    """
    changes = []
    for gpu in gpus:
        number = gpu["index"]
        smi = ("nvidia-smi", "-i", number)
        if gpu["persistence_mode"] == "Disabled":
            changes.append(_change(f"GPU {number} persistence mode", "off", "on", *smi, "-pm", "1"))
        clocks = [gpu[f"clocks.{kind}.{of}"] for kind in ("applications", "max") for of in ("memory", "graphics")]
        if all(c.isdigit() for c in clocks) and clocks[:2] != clocks[2:]:
            before, after = ",".join(clocks[:2]), ",".join(clocks[2:])
            changes.append(_change(f"GPU {number} application clocks, MHz", before, after, *smi, "-ac", after))
        power, usual = gpu["power.limit"], gpu["power.default_limit"]
        if _is_number(power) and _is_number(usual) and float(power) != float(usual):
            changes.append(_change(f"GPU {number} power limit, W", power, usual, *smi, "-pl", usual))
    return changes


def kernel_changes(now: Mapping[str, str]) -> list[SettingChange]:
    """Return changes for kernel settings that are below their minimum, or on and should be off."""
    low = {n: least for n, least in KERNEL.items() if n in now and now[n].isdigit() and int(now[n]) < least}
    wanted = {**low, **{n: 0 for n in KERNEL_OFF if now.get(n, "0") != "0"}}
    return [_change(n, now[n], str(value), "sysctl", "-w", f"{n}={value}") for n, value in wanted.items()]


def mtu_changes(cards: Mapping[Host, Sequence[Any]]) -> dict[Host, SettingChange]:
    """Return changes of the MTU to that of most hosts, on hosts with another. In a tie the lowest rank's MTU counts."""
    counts = Counter(int(cards[host][1]) for host in sorted(cards))
    usual = counts.most_common(1)[0][0] if counts else 0  # in a tie the one of the lowest rank
    return {
        host: _change(f"MTU of {name}", str(mtu), str(usual), "ip", "link", "set", name, "mtu", str(usual))
        for host, (name, mtu) in cards.items()
        if int(mtu) != usual
    }


def find_changes(
    reach: Executor, cluster: Cluster, hosts: Sequence[Host]
) -> tuple[dict[Host, list[SettingChange]], dict[Host, str]]:
    """Return the changes that each of these hosts needs, and why hosts or some of their GPUs gave no answer.

    All hosts of the cluster are queried, because they are compared.
    """
    sent = program(_ONHOST, "now", [*KERNEL, *KERNEL_OFF])
    results, told = ask(reach, cluster.hosts, sent, lambda host: [host.address], limits=Limits(total_s=LIMIT_S))
    mtu = mtu_changes({h: said["card"] for h, said in told.items() if said["card"]})
    found = {
        h: [*gpu_changes(told[h]["gpus"]), *([mtu[h]] if h in mtu else []), *kernel_changes(told[h]["kernel"])]
        for h in hosts
        if h in told
    }
    silent = {h: told[h].get("gpus_unread", "") if h in told else results[h].problem for h in hosts}
    return found, {h: why for h, why in silent.items() if why}


def apply_changes(reach: Executor, changes: Mapping[Host, Sequence[SettingChange]]) -> dict[Host, list[SettingChange]]:
    """Apply the changes, and return each with its result."""
    hosts = [h for h, some in changes.items() if some]
    results, told = ask(
        reach,
        hosts,
        program(_ONHOST, "change"),
        lambda host: [[list(c.command) for c in changes[host]]],
        limits=Limits(total_s=LIMIT_S),
        sudo=True,
    )
    return {
        h: [
            dataclasses.replace(c, is_done=not why, why_not=why)
            for c, why in zip(changes[h], told.get(h, [results[h].problem] * len(changes[h])), strict=True)
        ]
        for h in hosts
    }


def _change(what: str, before: str, after: str, *command: str) -> SettingChange:
    return SettingChange(what=what, before=before, after=after, command=command)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

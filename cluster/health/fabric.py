"""Judges of what joins GPUs and hosts: NVLink, the fabric manager, EFA."""

import json
import re

from cluster.health.check import About
from cluster.health.verdict import Problem, Unreadable, Verdict
from cluster.health.xid import ACTION

_GPU = re.compile(r"^GPU (\d+): ")


def nvlink_problems(text: str, about: About) -> list[Problem]:
    """Reads `nvidia-smi nvlink -s`: links that are inactive while others of the host are not, or slower than those."""
    rates: dict[str, list[float | None]] = {}
    gpu = ""
    for line in text.splitlines():
        if found := _GPU.match(line):
            gpu = found[1]
            rates[gpu] = []
        elif found := re.match(r"\s*Link \d+: (?:([\d.]+) GB/s|(<inactive>))", line):
            rates[gpu].append(float(found[1]) if found[1] else None)
        elif line.strip() and "inActive" not in line:
            raise Unreadable(f"{line.strip()[:60]!r}")
    if not rates:
        raise Unreadable("no GPU in it")
    fastest = max((r for links in rates.values() for r in links if r), default=None)
    if fastest is None:
        return (
            [_problem("nvlink", "no NVLink is up", "GPUs reach each other only over PCIe", Verdict.RESET_GPU)]
            if about.instance and about.instance.nvswitch
            else []
        )
    most = max(sum(1 for r in links if r) for links in rates.values())
    bad = [
        f"GPU {i}: {sum(1 for r in links if r)} of {most} NVLinks up"
        for i, links in rates.items()
        if sum(1 for r in links if r) < most
    ]
    slow = [
        f"GPU {i}: an NVLink at {r:g} of {fastest:g} GB/s"
        for i, links in rates.items()
        for r in links
        if r and r < fastest
    ]
    return [
        _problem("nvlink", what, "all-reduce on the host is slower", Verdict.RESET_GPU) for what in [*bad, *slow[:1]]
    ]


def nvlink_error_problems(text: str, about: About) -> list[Problem]:
    """Reads `nvidia-smi nvlink -e`: recoveries mean that a link went down; replays and CRC errors are watched."""
    found = re.findall(r"Link (\d+): (\w+) Errors: (\d+)", text)
    if not found and not _GPU.match(text):
        raise Unreadable("no link and no GPU in it")
    counts = {kind: sum(int(n) for _, k, n in found if k == kind) for kind in ("Recovery", "Replay", "CRC")}
    if counts["Recovery"]:
        return [
            _problem(
                "nvlink-errors",
                f"NVLink: {counts['Recovery']} recoveries",
                "a link went down and came back",
                Verdict.RESET_GPU,
            )
        ]
    few = {k: n for k, n in counts.items() if n}
    return (
        [
            _problem(
                "nvlink-errors",
                f"NVLink: {', '.join(f'{n} {k} errors' for k, n in few.items())}",
                "a link sends data again",
                Verdict.WATCH,
                unfit=False,
            )
        ]
        if few
        else []
    )


def manager_problems(text: str, about: About) -> list[Problem]:
    """Reads `systemctl show -p LoadState,ActiveState,SubState nvidia-fabricmanager`."""
    said = dict(line.split("=", 1) for line in text.strip().splitlines())
    if said["LoadState"] == "not-found":
        return [
            Problem(
                check="fabric-manager",
                what="the fabric manager is not installed",
                verdict=Verdict.RESTART_JOB,
                means="CUDA will refuse to start on GPUs behind an NVSwitch (error 802)",
                do="install the driver's own",
                command="inv run --hosts {ranks} --sudo -- apt-get install nvidia-fabricmanager",
            )
        ]
    if said["ActiveState"] == "active" and said["SubState"] == "running":
        return []
    return [
        Problem(
            check="fabric-manager",
            what=f"the fabric manager is {said['ActiveState']} ({said['SubState']})",
            means="CUDA will refuse to start (error 802); its version must be the driver's",
            do="start it, or see why not",
            verdict=Verdict.RESTART_JOB,
            command="inv run --hosts {ranks} --sudo -- 'systemctl restart nvidia-fabricmanager || "
            "journalctl -u nvidia-fabricmanager -n 5'",
        )
    ]


def efa_problems(text: str, about: About) -> list[Problem]:
    """Reads `fi_info -p efa`: a provider per card; what it prints on failure counts as well."""
    cards = set(re.findall(r"domain: (\S+?)-(?:rdm|dgrm)\b", text))
    expected = about.instance.efa if about.instance else 0
    if not cards:
        if "fi_getinfo" not in text and "provider:" not in text:
            raise Unreadable(f"{text.strip()[:60]!r}")
        return [
            Problem(
                check="efa",
                what=f"libfabric finds no EFA card, the type has up to {expected}",
                unfit=True,
                means="NCCL would use TCP, a tenth as fast, or refuse",
                verdict=Verdict.REPLACE,
                do="see that the launch template asks for EFA interfaces, then replace the host",
                command="inv run --hosts {ranks} -- 'ls /sys/class/infiniband; fi_info -p efa'",
            )
        ]
    if len(cards) < expected:
        return [
            _problem(
                "efa",
                f"{len(cards)} EFA cards of the type's {expected}",
                "less bandwidth between hosts",
                Verdict.WATCH,
                unfit=False,
            )
        ]
    return []


def efa_port_problems(text: str, about: About) -> list[Problem]:
    """Reads /sys/class/infiniband/*/ports/1/state: JSON of path -> a text like `4: ACTIVE`."""
    states = {path.split("/")[4]: state.strip() for path, state in json.loads(text).items()}
    if not states:
        raise Unreadable("no EFA card in sysfs")
    down = {card: state for card, state in states.items() if "ACTIVE" not in state}
    return [
        _problem("efa-ports", f"EFA port {card} is {state}", "NCCL cannot use it", Verdict.REBOOT)
        for card, state in down.items()
    ]


def _problem(check: str, what: str, means: str, verdict: Verdict, *, unfit: bool = True) -> Problem:
    do, command = ACTION[verdict]
    return Problem(check=check, what=what, means=means, verdict=verdict, do=do, command=command, unfit=unfit)

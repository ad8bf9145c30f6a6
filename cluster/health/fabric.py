"""Judges of the links between GPUs and hosts: NVLink, the fabric manager, EFA."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from cluster.health.check import About
from cluster.health.known_faults import ACTION, NVLINK_ERRORS, SOURCES
from cluster.health.line_count import counted_lines
from cluster.health.verdict import Problem, Severity, Unreadable
from cluster.hosts import Host
from cluster.terminal import counted

MEMLOCK_LEAST = 1 << 30  # bytes; ours: NCCL's buffers of all ranks' connections are below it on small clusters only
_CARD = re.compile(r"domain: (\S+?)-(?:rdm|dgrm)\b")
_GPU = re.compile(r"GPU (\d+): .+ \(UUID: \S+\)")
_LINK = re.compile(r"Link (\d+): (.+)")
_NO_LINKS = SOURCES["nvlink"]["no_links"]


def _links(text: str, about: About) -> list[dict[int, list[str]]]:
    """Return nvidia-smi's report of each link of each GPU, in the order of GPUs. Empty if it prints nothing.

    Current drivers print nothing and exit with 0 if no GPU has an NVLink. An answer that was truncated on its way does
    not get here. Raises Unreadable unless the report covers all GPUs and all their links, with the same fields for
    each.
    """
    if not text:
        return []
    gpus: list[dict[int, list[str]]] = []
    linkless: set[int] = set()
    for line in filter(None, map(str.strip, text.splitlines())):
        if found := _GPU.fullmatch(line):
            if int(found[1]) != len(gpus):
                raise Unreadable(f"GPU {found[1]} after {counted(len(gpus), 'GPU')}")
            gpus.append({})
        elif gpus and line == _NO_LINKS:
            linkless.add(len(gpus))
        elif gpus and (found := _LINK.fullmatch(line)):
            gpus[-1].setdefault(int(found[1]), []).append(found[2])
        else:
            raise Unreadable(f"{line[:60]!r}")
    _refuse_gaps(gpus, linkless, about)
    return gpus


def _refuse_gaps(gpus: list[dict[int, list[str]]], linkless: set[int], about: About) -> None:
    if about.instance and len(gpus) != about.instance.gpus:
        raise Unreadable(f"{counted(len(gpus), 'GPU')}, its type has {about.instance.gpus}")
    if not gpus:
        raise Unreadable("no GPU in it")
    most = max(len(links) for links in gpus)
    for i, links in enumerate(gpus):
        if bool(links) == (i + 1 in linkless) or (links and list(links) != list(range(most))):
            raise Unreadable(f"GPU {i} has the links {', '.join(map(str, links)) or 'none'}; another one has {most}")


def nvlink_problems(text: str, about: About) -> list[Problem]:
    """Read `nvidia-smi nvlink -s`: links that are inactive or slower than the host's other links."""
    rates = {i: [_rate(said) for said in links.values()] for i, links in enumerate(_links(text, about))}
    fastest = max((r for links in rates.values() for r in links if r), default=None)
    if fastest is None:
        return (
            [_problem("nvlink", "no NVLink is up", "GPUs reach each other only over PCIe", Severity.RESET_GPU)]
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
        _problem("nvlink", what, "all-reduce on the host is slower", Severity.RESET_GPU) for what in [*bad, *slow[:1]]
    ]


def nvlink_error_problems(text: str, about: About) -> list[Problem]:
    """Read `nvidia-smi nvlink -e`: recoveries mean that a link was down. Replays and CRC errors are watched."""
    counts = dict.fromkeys(NVLINK_ERRORS, 0)
    names: set[tuple[str, ...]] = set()
    for said in (said for links in _links(text, about) for said in links.values()):
        fields = [field.rpartition(": ")[::2] for field in said]
        if fields == [("", "<inactive>")]:
            continue
        names.add(tuple(name for name, _ in fields))
        for kind in counts:
            counts[kind] += sum(int(value) for name, value in fields if name == f"{kind} Errors")
    if len(names) > 1 or any("" in of_link for of_link in names):
        raise Unreadable("it does not say the same of every link")
    if counts["Recovery"]:
        verdict, means = NVLINK_ERRORS["Recovery"]
        return [_problem("nvlink-errors", f"NVLink: {counts['Recovery']} recoveries", means, verdict)]
    few = {k: n for k, n in counts.items() if n}
    return (
        [
            _problem(
                "nvlink-errors",
                f"NVLink: {', '.join(counted(n, f'{k} error') for k, n in few.items())}",
                NVLINK_ERRORS["Replay"][1],
                NVLINK_ERRORS["Replay"][0],
                unfit=False,
            )
        ]
        if few
        else []
    )


def _rate(said: list[str]) -> float | None:
    """Return the rate of one link from `nvlink -s` in GB/s, None if it is inactive."""
    found = re.fullmatch(r"([\d.]+) GB/s|<inactive>", said[0])
    if len(said) != 1 or not found:
        raise Unreadable(f"a link that says {'; '.join(said)!r}")
    return float(found[1]) if found[1] else None


def manager_problems(text: str, about: About) -> list[Problem]:
    """Read `systemctl show -p LoadState,ActiveState,SubState nvidia-fabricmanager`."""
    said = dict(line.split("=", 1) for line in text.splitlines())
    if sorted(said) != ["ActiveState", "LoadState", "SubState"] or not text.endswith("\n"):
        raise Unreadable(f"{text.strip()[-60:]!r}")
    if said["LoadState"] == "not-found":
        return [
            Problem(
                check="fabric-manager",
                what="the fabric manager is not installed",
                verdict=Severity.RESTART_JOB,
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
            verdict=Severity.RESTART_JOB,
            command="inv run --hosts {ranks} --sudo -- 'systemctl restart nvidia-fabricmanager || "
            "journalctl -u nvidia-fabricmanager -n 5'",
        )
    ]


def efa_problems(text: str, about: About) -> list[Problem]:
    """Read `fi_info -p efa`: a provider per card. Its output on failure is read, too."""
    text = "\n".join(counted_lines(text))
    cards = set(_CARD.findall(text))
    expected = about.instance.efa if about.instance else 0
    if not cards:
        if "fi_getinfo" not in text and "provider:" not in text:
            raise Unreadable(f"{text.strip()[:60]!r}")
        return [_NO_CARD if not about.efas_on_bus else _CARD_UNUSED]
    if len(cards) < expected:
        return [
            _problem(
                "efa",
                f"{len(cards)} EFA cards of the type's {expected}",
                "less bandwidth between hosts",
                Severity.WATCH,
                unfit=False,
            )
        ]
    return []


_NO_CARD = Problem(
    check="efa",
    what="it has no EFA interface, though its type can have one",
    unfit=False,
    means="trainings use TCP (profile ena), a tenth as fast between hosts",
    verdict=Severity.WATCH,
    do="for EFA launch it with EFA interfaces, as the stack's launch template does",
    command="inv run --hosts {ranks} -- 'ls /sys/class/infiniband; fi_info -p efa'",
)
_CARD_UNUSED = Problem(
    check="efa",
    what="libfabric finds no EFA card, though the PCI bus has one",
    means="the profile efa would be chosen, and NCCL refuse to start",
    verdict=Severity.REPLACE,
    do="install the EFA driver and libfabric (EFA installer), or start it from the Deep Learning AMI",
    command="inv run --hosts {ranks} -- 'ls /sys/class/infiniband; fi_info -p efa; lsmod | grep efa'",
)


def card_problems(texts: Mapping[Host, str], types: Mapping[Host, str]) -> dict[Host, list[Problem]]:
    """Return a problem for each host without an EFA card if another host of its type has one.

    A training over both would use TCP on all hosts.
    """
    cards = {h: len(set(_CARD.findall(text))) for h, text in texts.items() if types.get(h)}
    found = {}
    for host, count in cards.items():
        with_cards = sum(1 for h, n in cards.items() if n and types[h] == types[host])
        if not count and with_cards:
            what = f"it has no EFA interface, {counted(with_cards, 'other host')} of its type {types[host]} "
            what += "has one" if with_cards == 1 else "have one"
            means = "a training with it uses TCP on all hosts, a tenth as fast"
            found[host] = [
                replace(_NO_CARD, what=what, means=means, verdict=Severity.REPLACE, unfit=True, do="replace it")
            ]
    return found


def memlock_problems(text: str, about: About) -> list[Problem]:
    """Read /proc/self/limits of a shell started over SSH, as ranks are: EFA locks its transfer buffers."""
    limits = json.loads(text)["/proc/self/limits"]
    found = re.search(r"^Max locked memory +(\S+) +(\S+) +bytes", limits, re.MULTILINE)
    if not found:
        raise Unreadable("no limit of locked memory in it")
    if found[1] == "unlimited":
        return []
    is_little = int(found[1]) < MEMLOCK_LEAST
    return [
        Problem(
            check="memlock",
            what=f"a rank may lock {int(found[1]) >> 10:,} KiB of memory (ulimit -l), not unlimited",
            means="EFA cannot register its buffers, and NCCL fails" if is_little else "EFA may run out of it",
            verdict=Severity.RESTART_JOB if is_little else Severity.WATCH,
            do="raise the limit, then let new connections begin with it: inv disconnect",
            command="inv run --hosts {ranks} --sudo -- "
            "\"printf '* - memlock unlimited\\n' >/etc/security/limits.d/90-efa.conf\"",
            unfit=is_little,
        )
    ]


def efa_port_problems(text: str, about: About) -> list[Problem]:
    """Read /sys/class/infiniband/*/ports/1/state: JSON of path -> a text like `4: ACTIVE`."""
    states = {path.split("/")[4]: state.strip() for path, state in json.loads(text).items()}
    if not states:
        raise Unreadable("no EFA card in sysfs")
    down = {card: state for card, state in states.items() if "ACTIVE" not in state}
    return [
        _problem("efa-ports", f"EFA port {card} is {state}", "NCCL cannot use it", Severity.REBOOT)
        for card, state in down.items()
    ]


def _problem(check: str, what: str, means: str, verdict: Severity, *, unfit: bool = True) -> Problem:
    do, command = ACTION[verdict]
    return Problem(check=check, what=what, means=means, verdict=verdict, do=do, command=command, unfit=unfit)

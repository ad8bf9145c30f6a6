"""The kernel log: Xid and SXid events of the NVIDIA driver, their meaning and action, and other hardware trouble.

Source of the table: NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), column
"immediate action"; where it says to contact support, the host is replaced, as the hardware is not ours.
"""

import re
from dataclasses import dataclass

from cluster.health.check import About
from cluster.health.verdict import Problem, Unreadable, Verdict
from cluster.terminal import counted

COMMAND = r"""{ dmesg 2>/dev/null || sudo -n dmesg 2>/dev/null || journalctl -k -b -o short-monotonic --no-pager; } |
awk '/NVRM|SXid|Out of memory: Killed|I\/O error|Remounting filesystem read-only|[Mm]achine [Cc]heck|Hardware Error/ {
print; n++ } END { print "-- " n + 0 " of " NR " lines" }'"""

APPLICATION = Verdict.RESTART_JOB
XIDS: dict[int, tuple[Verdict, str]] = {
    13: (APPLICATION, "a kernel of the job made an illegal access"),
    31: (APPLICATION, "the job touched an address that is not mapped"),
    32: (APPLICATION, "the driver got a broken command stream"),
    43: (APPLICATION, "the job's channel was stopped after its own error"),
    45: (APPLICATION, "the driver ended the job's work after another error"),
    46: (Verdict.RESET_GPU, "the GPU stopped processing"),
    48: (Verdict.RESET_GPU, "a double-bit memory error, which cannot be corrected"),
    61: (Verdict.RESET_GPU, "the GPU's microcontroller stopped"),
    62: (Verdict.RESET_GPU, "the GPU's microcontroller halted"),
    63: (Verdict.WATCH, "a bad memory row was marked for repair at the next reset"),
    64: (Verdict.REPLACE, "a bad memory row could not be repaired"),
    68: (APPLICATION, "the video decoder failed"),
    69: (APPLICATION, "the graphics engine refused a command"),
    74: (Verdict.RESET_GPU, "an NVLink failed"),
    79: (Verdict.REBOOT, "the GPU has fallen off the bus"),
    92: (Verdict.WATCH, "many correctable memory errors"),
    94: (APPLICATION, "a memory error that hit one job only"),
    95: (Verdict.RESET_GPU, "a memory error that may have hit any job"),
    109: (Verdict.RESET_GPU, "a context switch did not end"),
    110: (Verdict.REBOOT, "a security fault"),
    119: (Verdict.REBOOT, "the GPU's system processor does not answer; tools hang"),
    120: (Verdict.REBOOT, "the GPU's system processor failed; tools hang"),
    136: (Verdict.RESET_GPU, "link training failed"),
    140: (Verdict.RESET_GPU, "memory errors that the GPU could not recover from"),
    143: (Verdict.REBOOT, "the GPU could not be initialised"),
    **dict.fromkeys(range(144, 151), (Verdict.RESET_GPU, "an NVLink failed")),
    155: (Verdict.RESET_GPU, "an NVLink went down"),
    156: (Verdict.WATCH, "a resource was retired"),
    158: (Verdict.RESET_GPU, "the GPU did not answer in time"),
    171: (Verdict.WATCH, "where a memory error was (beside Xid 48 or 94)"),
    172: (Verdict.WATCH, "where an SRAM error was (beside Xid 48 or 94)"),
}
HANGS = ("): 119,", "): 120,", "): 79,", "fallen off the bus")  # the driver's tools may not come back any more
RECENT_S = 3600.0

_EVENT = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): (?P<code>\d+),? ?(?P<text>.*)")
_SXID = re.compile(r"SXid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): (?P<code>\d+), (?P<text>.*)")
_STAMP = re.compile(r"^\[\s*(?P<s>\d+\.\d+)\]")

ACTION = {
    Verdict.WATCH: ("look again after the next job", "inv health --hosts {ranks}"),
    Verdict.RESTART_JOB: ("start the job again; look at its log if it ends so again", "inv jobs.resume last"),
    Verdict.RESET_GPU: ("reset its GPUs while no job runs", "inv run --hosts {ranks} --sudo -- nvidia-smi --gpu-reset"),
    Verdict.REBOOT: ("reboot it; replace it if that comes back", "inv run --hosts {ranks} --sudo -- reboot"),
    Verdict.REPLACE: (
        "end the instance, its group starts another",
        "inv run --hosts {ranks} --sudo -- shutdown -h now",
    ),
    Verdict.UNKNOWN: ("look it up in NVIDIA's Xid catalog", "inv run --hosts {ranks} --sudo -- 'dmesg | grep -i xid'"),
}


@dataclass(frozen=True)
class Event:
    """One Xid in the kernel log."""

    gpu: str  # PCI address
    code: int
    text: str
    at_s: float | None  # since boot


def read_events(log: str) -> list[Event]:
    """The Xid events of a kernel log; a card that fell off the bus without one counts as Xid 79."""
    events = []
    for line in log.splitlines():
        stamp = _STAMP.match(line)
        at_s = float(stamp["s"]) if stamp else None
        if found := _EVENT.search(line):
            events.append(Event(found["gpu"], int(found["code"]), found["text"], at_s))
        elif "fallen off the bus and is not responding" in line:
            events.append(Event("?", 79, line, at_s))
    return events


def kernel_problems(log: str, about: About) -> list[Problem]:
    """Reads COMMAND's output: some lines of `dmesg` or `journalctl -k`, and how many there are of how many in all."""
    *lines, last = log.splitlines() or [""]
    count = re.fullmatch(r"-- (\d+) of (\d+) lines", last)
    if not count or int(count[1]) != len(lines):
        raise Unreadable(f"{counted(len(lines), 'line')} of it, and it ends with {last[:60]!r}")
    if int(count[2]) < 2:
        raise Unreadable("the kernel log is empty, or this user may not read it: members of the group adm may")
    problems = [*_xid_problems(read_events(log), about), *_switch_problems(log)]
    problems += [
        Problem(
            check="kernel-log",
            what=f"kernel: {line.partition('] ')[2] or line}"[:110],
            verdict=verdict,
            means=means,
            do=do,
            command=command,
            unfit=False,
        )
        for line in log.splitlines()
        for pattern, verdict, means, do, command in _OTHERS
        if re.search(pattern, line) and _is_recent(line, log)
    ]
    return list({p.kind: p for p in problems}.values())


_OTHERS = (
    (
        "Out of memory: Killed",
        Verdict.WATCH,
        "the host ran out of memory and ended a process",
        "give the job smaller batches or fewer input workers",
        "inv run --hosts {ranks} -- free -g",
    ),
    (
        r"I/O error, dev (?!fd0|sr0|loop)|Remounting filesystem read-only",
        Verdict.REPLACE,
        "a disk does not read or write any more",
        *ACTION[Verdict.REPLACE],
    ),
    (
        "[Mm]achine [Cc]heck|Hardware Error",
        Verdict.WATCH,
        "the processor or its memory reported a fault",
        *ACTION[Verdict.WATCH],
    ),
)


def _is_recent(line: str, log: str) -> bool:
    """Of the log's last hour; an old death by memory says nothing of today. A line without a time counts."""
    stamps = [float(s["s"]) for s in map(_STAMP.match, log.splitlines()) if s]
    stamp = _STAMP.match(line)
    return not stamp or "Out of memory" not in line or float(stamp["s"]) > max(stamps) - RECENT_S


def _xid_problems(events: list[Event], about: About) -> list[Problem]:
    problems = []
    for code in dict.fromkeys(e.code for e in events):
        of_code = [e for e in events if e.code == code]
        new = [e for e in of_code if about.seen_until_s is None or e.at_s is None or e.at_s > about.seen_until_s]
        verdict, means = (
            _advice(of_code[-1])
            if code == 154
            else XIDS.get(code, (Verdict.UNKNOWN, "an Xid that our table does not have"))
        )
        if verdict is APPLICATION and not new:
            continue  # the job it hit is over
        if verdict is Verdict.RESET_GPU and not new and about.needs_no_reset:
            verdict, means = Verdict.WATCH, f"{means}; since then nothing waits for a reset any more"
        where = ", ".join(dict.fromkeys(e.gpu for e in of_code))
        since = "" if about.seen_until_s is None else f", {len(new)} new since the last look"
        do, command = ACTION[verdict]
        problems.append(
            Problem(
                check="xid",
                what=f"Xid {code} on {where} ({len(of_code)} since boot{since})",
                means=means,
                do=do,
                verdict=verdict,
                command=command,
                unfit=verdict in (Verdict.RESET_GPU, Verdict.REBOOT, Verdict.REPLACE),
            )
        )
    return problems


def _advice(event: Event) -> tuple[Verdict, str]:
    """Xid 154 says itself what to do: `GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)`."""
    said = re.search(r"to 0x\w+ \((.+)\)", event.text)
    if not said:
        raise Unreadable(f"Xid 154 without an action: {event.text!r}")
    words = said[1].lower()
    verdict = (
        Verdict.WATCH
        if words == "none"
        else Verdict.REBOOT
        if "reboot" in words
        else Verdict.RESET_GPU
        if "reset" in words or "flr" in words or "drain" in words
        else Verdict.UNKNOWN
    )
    return verdict, f"the driver itself asks for: {said[1]}"


def _switch_problems(log: str) -> list[Problem]:
    problems = []
    for found in map(_SXID.search, log.splitlines()):
        if found:
            fatal = found["text"].startswith("Fatal")
            do, command = ACTION[Verdict.REBOOT if fatal else Verdict.WATCH]
            problems.append(
                Problem(
                    check="xid",
                    what=f"SXid {found['code']} on NVSwitch {found['gpu']}: {found['text'][:60]}",
                    means="an NVSwitch failed, GPUs may not reach each other"
                    if fatal
                    else "an NVSwitch recovered from an error",
                    verdict=Verdict.REBOOT if fatal else Verdict.WATCH,
                    do=do,
                    command=command,
                    unfit=fatal,
                )
            )
    return problems

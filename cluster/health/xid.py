"""Judge of the kernel log: the NVIDIA driver's Xid and SXid events with their remedies, and other hardware faults."""

import re
from dataclasses import dataclass

from cluster.health.check import About
from cluster.health.known_faults import ACTION, KERNEL_LINES, SOURCES, KnownFault, advice_of_154, codes_in, xid_table
from cluster.health.verdict import Problem, Severity, Unreadable
from cluster.terminal import counted

COMMAND = (
    "{ dmesg 2>/dev/null || sudo -n dmesg 2>/dev/null || journalctl -k -b -o short-monotonic --no-pager; } |\n"
    f"awk '/{SOURCES['kernel']['filter']}/ {{\n"
    'print; n++ } END { print "-- " n + 0 " of " NR " lines" }\''
)
XIDS = xid_table()
HANGS = ("): 119,", "): 120,", "): 79,", "fallen off the bus")  # events after which the driver's tools may hang
RECENT_S = 3600.0

_EVENT = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): (?P<code>\d+),? ?(?P<text>.*)")
_SXID = re.compile(r"SXid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): (?P<code>\d+), (?P<text>.*)")
_OFF_BUS = re.compile(r"NVRM: .*fallen off the bus")
_ADDRESS = re.compile(r"\b[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\b")
_STAMP = re.compile(r"^\[\s*(?P<s>\d+\.\d+)\]")
_SEVERITY = re.compile(r"\b(Fatal|Non-?fatal)\b", re.IGNORECASE)
_SAY_SEVERITY = frozenset(codes_in(SOURCES["xid"]["says_itself"]["codes"]))


@dataclass(frozen=True)
class XidEvent:
    """Xid event in the kernel log."""

    gpu: str  # PCI address
    code: int
    text: str
    at_s: float | None  # since boot


def read_events(log: str) -> list[XidEvent]:
    """Return the Xid events of a kernel log. A card that fell off the bus without an Xid counts as Xid 79."""
    events = []
    for line in log.splitlines():
        stamp = _STAMP.match(line)
        at_s = float(stamp["s"]) if stamp else None
        if found := _EVENT.search(line):
            events.append(XidEvent(found["gpu"], int(found["code"]), found["text"], at_s))
        elif _OFF_BUS.search(line):
            address = _ADDRESS.search(line)
            events.append(XidEvent(address[0] if address else "?", 79, line, at_s))
    return _without_doubles(events)


def _without_doubles(events: list[XidEvent]) -> list[XidEvent]:
    """Return the events without the copy of a fall off the bus that has no address, if an Xid 79 reports one, too."""
    named = {e.gpu for e in events if e.code == 79 and e.gpu != "?"}
    return [e for e in events if not (e.code == 79 and e.gpu == "?" and named)]


def kernel_problems(log: str, about: About) -> list[Problem]:
    """Read the output of COMMAND: selected lines of `dmesg` or `journalctl -k`, and how many of how many lines."""
    *lines, last = log.splitlines() or [""]
    count = re.fullmatch(r"-- (\d+) of (\d+) lines", last)
    if not count or int(count[1]) != len(lines):
        raise Unreadable(f"{counted(len(lines), 'line')} of it, and it ends with {last[:60]!r}")
    if int(count[2]) < 2:
        raise Unreadable("the kernel log is empty, or this user may not read it: members of the group adm may")
    problems = [*_xid_problems(read_events(log), about), *_switch_problems(log)]
    problems += [
        fault.problem("kernel-log", f"kernel: {line.partition('] ')[2] or line}"[:110], unfit=bool(fault.unfit))
        for line in lines
        for fault in KERNEL_LINES
        if fault.text.search(line) and _counts(fault, line, log)
    ]
    return list({p.kind: p for p in problems}.values())


def _counts(fault: KnownFault, line: str, log: str) -> bool:
    """Return False for an old line of a fault that matters only in the last hour. A line without a time counts."""
    stamp = _STAMP.match(line)
    if not stamp or not fault.recent:
        return True
    stamps = [float(s["s"]) for s in map(_STAMP.match, log.splitlines()) if s]
    return float(stamp["s"]) > max(stamps) - RECENT_S


def _xid_problems(events: list[XidEvent], about: About) -> list[Problem]:
    """Return a problem for each code and verdict. Of Xid 154's recovery advice only each GPU's last one counts."""
    last_advice = {e.gpu: e for e in events if e.code == 154}
    groups: dict[tuple[int, Severity, str], list[XidEvent]] = {}
    for i, event in enumerate(events):
        if event.code == 154 and event is not last_advice[event.gpu]:
            continue
        verdict, means = _judged(event)
        if verdict is Severity.RESET_GPU and _is_reset_later(events[i + 1 :], event.gpu):
            verdict, means = Severity.WATCH, f"{means}; since then the driver has withdrawn what it asked for"
        groups.setdefault((event.code, verdict, means), []).append(event)
    found = [_problem(code, verdict, means, of, about) for (code, verdict, means), of in groups.items()]
    return [problem for problem in found if problem]


def _problem(code: int, verdict: Severity, means: str, events: list[XidEvent], about: About) -> Problem | None:
    new = [e for e in events if about.seen_until_s is None or e.at_s is None or e.at_s > about.seen_until_s]
    if verdict is Severity.RESTART_JOB and not new:
        return None  # the job that it affected has ended
    if verdict is Severity.RESET_GPU and not new and about.needs_no_reset:
        verdict, means = Severity.WATCH, f"{means}; since then nothing waits for a reset any more"
    where = ", ".join(dict.fromkeys(e.gpu for e in events))
    since = "" if about.seen_until_s is None else f", {len(new)} new since the last look"
    do, command = ACTION[verdict]
    return Problem(
        check="xid",
        what=f"Xid {code} on {where} ({len(events)} since boot{since})",
        means=means,
        do=do,
        verdict=verdict,
        command=command,
        unfit=verdict in (Severity.RESET_GPU, Severity.REBOOT, Severity.REPLACE),
    )


def _judged(event: XidEvent) -> tuple[Severity, str]:
    """Return the verdict and the meaning of an event: from its line if that has a severity, else from the table."""
    if event.code == 154:
        return _advice(event)
    verdict, means = XIDS.get(event.code, (Severity.UNKNOWN, "an Xid that our table does not have"))
    said = _SEVERITY.search(event.text) if event.code in _SAY_SEVERITY else None
    if said:
        severity = "Fatal" if said[1].lower() == "fatal" else "Nonfatal"
        return Severity(SOURCES["xid"]["says_itself"][severity]), f"{means}, {severity.lower()} by its own word"
    return verdict, means


def _is_reset_later(events: list[XidEvent], gpu: str) -> bool:
    """Return True if the driver's last advice for this GPU is None, because it was reset."""
    later = [e for e in events if e.code == 154 and e.gpu == gpu]
    return bool(later) and _advice(later[-1])[0] is Severity.WATCH


def _advice(event: XidEvent) -> tuple[Severity, str]:
    """Return the verdict of an Xid 154, whose text has the recovery action.

    Example: `GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)`.
    """
    said = re.search(r"to 0x\w+ \((.+)\)", event.text)
    if not said:
        raise Unreadable(f"Xid 154 without an action: {event.text!r}")
    return advice_of_154(said[1]), f"the driver itself asks for: {said[1]}"


def _switch_problems(log: str) -> list[Problem]:
    problems = []
    for found in map(_SXID.search, log.splitlines()):
        if found:
            fatal = found["text"].startswith("Fatal")
            name, means = SOURCES["nvlink"]["switch"]["Fatal" if fatal else ""]
            do, command = ACTION[Severity(name)]
            problems.append(
                Problem(
                    check="xid",
                    what=f"SXid {found['code']} on NVSwitch {found['gpu']}: {found['text'][:60]}",
                    means=means,
                    verdict=Severity(name),
                    do=do,
                    command=command,
                    unfit=fatal,
                )
            )
    return problems

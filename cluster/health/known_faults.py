"""Known faults of NVIDIA's driver and tools and of the kernel log, read from faults.json with their sources."""

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.health.verdict import Problem, Severity

ACTION = {
    Severity.WATCH: ("look again after the next job", "inv health --hosts {ranks}"),
    Severity.RESTART_JOB: ("start the job again; look at its log if it ends so again", "inv jobs.resume last"),
    Severity.RESET_GPU: (
        "reset its GPUs while no job runs",
        "inv run --hosts {ranks} --sudo -- nvidia-smi --gpu-reset",
    ),
    Severity.REBOOT: ("reboot it; replace it if that comes back", "inv run --hosts {ranks} --sudo -- reboot"),
    Severity.REPLACE: (
        "end the instance, its group starts another",
        "inv run --hosts {ranks} --sudo -- shutdown -h now",
    ),
    Severity.UNKNOWN: ("look it up in NVIDIA's Xid catalog", "inv run --hosts {ranks} --sudo -- 'dmesg | grep -i xid'"),
}
SOURCES: dict[str, Any] = json.loads(Path(__file__).with_name("faults.json").read_text())


@dataclass(frozen=True, kw_only=True)
class KnownFault:
    """Message of a tool or the kernel that shows a fault, with its meaning and remedy."""

    text: re.Pattern[str]
    verdict: Severity
    means: str
    code: int | None = None  # the tool's exit code that means the same
    do: str = ""  # replaces the usual action for the verdict
    command: str = ""
    unfit: bool | None = None  # None: the verdict decides
    recent: bool = False  # counts only in the last hour of the log

    def problem(self, check: str, what: str, *, unfit: bool | None = None) -> Problem:
        """Return the problem of a host that shows this fault."""
        do, command = ACTION[self.verdict]
        given = self.unfit if unfit is None else unfit
        return Problem(
            check=check,
            what=what,
            means=self.means,
            verdict=self.verdict,
            do=self.do or do,
            command=self.command or command,
            unfit=self.verdict.rank > Severity.UNKNOWN.rank if given is None else given,
        )


def _faults(rows: list[dict[str, Any]]) -> tuple[KnownFault, ...]:
    return tuple(
        KnownFault(**{**row, "text": re.compile(row["text"]), "verdict": Severity(row["verdict"])}) for row in rows
    )


SMI_FAILURES = _faults(SOURCES["nvidia-smi"]["failures"])
SILENT_FIELDS = {words: Severity(verdict) for words, verdict in SOURCES["nvidia-smi"]["silent"].items()}
ABSENT_FIELDS = frozenset(SOURCES["nvidia-smi"]["absent"])
KERNEL_LINES = _faults(SOURCES["kernel"]["lines"])
NVLINK_ERRORS = {kind: (Severity(verdict), means) for kind, (verdict, means) in SOURCES["nvlink"]["errors"].items()}


def failure_of_smi(code: int | None, said: str) -> tuple[KnownFault, str] | None:
    """Return the fault that nvidia-smi's output shows, and the matching line.

    If no line matches, the exit code decides. None if neither is known.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for fault in SMI_FAILURES:
        for line in lines:
            if fault.text.search(line):
                return fault, line
    by_code = next((f for f in SMI_FAILURES if code and f.code == code), None)
    return (by_code, lines[0] if lines else f"it exited {code}") if by_code else None


def codes_in(spans: str) -> list[int]:
    """Expand codes written as `8 11 31-32`."""
    ends = [span.partition("-") for span in spans.split()]
    return [code for first, _, last in ends for code in range(int(first), int(last or first) + 1)]


@functools.cache
def xid_table() -> dict[int, tuple[Severity, str]]:
    """Return verdict and meaning of each Xid in NVIDIA's catalog. Codes that it lists as unused are left out."""
    table, found = SOURCES["xid"], {}
    for action, spans in table["actions"].items():
        for code in codes_in(spans):
            verdict = table["ours"].get(str(code), [table["verdicts"][action]])[0]
            found[code] = (Severity(verdict), table["means"].get(str(code), "an Xid that NVIDIA lists as unused"))
    return {code: row for code, row in sorted(found.items()) if row[0] is not Severity.UNKNOWN}


def advice_of_154(words: str) -> Severity:
    """Return the verdict for a recovery action of the driver, such as `Node Reboot Required`."""
    known = SOURCES["xid"]["advice"]["words"]
    asked = [Severity(known[word]) for word in known if word in words.lower()]
    return max(asked, key=lambda v: v.rank, default=Severity.UNKNOWN)

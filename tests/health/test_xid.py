"""Every Xid of NVIDIA's published catalog: its immediate action beside what the judge says of a host."""

import re
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from cluster.health import known_faults, xid
from cluster.health.check import About, Answer, finding_of
from cluster.health.quick_check import about_host
from cluster.health.verdict import Problem, Severity
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster
from tests.walking import walked

ABOUT = About(host=Host(rank=0, address="10.0.0.1", slots=8))
# NVIDIA's published catalog for Ampere and newer GPUs, read 2025-10-29: column "Immediate Action" -> codes.
CATALOG = {
    "RESTART_APP": "8 11 13 25 31 32 39-41 60 68-72 75-77 80 82-86 88 89 94 96-105 126-135 139",
    "RESET_GPU": "46 62 64 95 109 110 119 120 136 140 143 155 156 158",
    "IGNORE": "14 37 38 43 44 63 66 67 92 93 106-108 121 137 141 152 153 157 160 161",
    "RESTART_BM": "79",
    "RESTART_VM": "151",
    "CHECK_MECHANICALS": "54",
    "UPDATE_SWFW": "78",
    "CHECK_UVM": "159",
    "CONTACT_SUPPORT": "142",  # and every code that it lists as unused
    "WORKFLOW_XID_45": "45",
    "WORKFLOW_XID_48": "48",
    "WORKFLOW_NVLINK_ERR": "74",
    "WORKFLOW_NVLINK5_ERR": "144-150",
    "": "162-172",
}
VERDICT_OF = {
    "RESTART_APP": Severity.RESTART_JOB,
    "RESET_GPU": Severity.RESET_GPU,
    "IGNORE": Severity.WATCH,
    "RESTART_BM": Severity.REBOOT,
    "RESTART_VM": Severity.REBOOT,
    "CHECK_MECHANICALS": Severity.REPLACE,
    "UPDATE_SWFW": Severity.WATCH,
    "CHECK_UVM": Severity.WATCH,
    "CONTACT_SUPPORT": Severity.REPLACE,
    "WORKFLOW_XID_45": Severity.RESTART_JOB,
    "WORKFLOW_XID_48": Severity.RESET_GPU,
    "WORKFLOW_NVLINK_ERR": Severity.RESET_GPU,
    "WORKFLOW_NVLINK5_ERR": Severity.RESET_GPU,
    "": Severity.WATCH,
}
# Where we differ: 43's job has ended; 61 is in the list for older GPUs; 119 and 120 hang nvidia-smi, which cannot reset.
OURS = {43: Severity.RESTART_JOB, 61: Severity.RESET_GPU, 119: Severity.REBOOT, 120: Severity.REBOOT}
SAYS_ITSELF = 154
MUST_NOT = {Severity.RESET_GPU, Severity.REBOOT, Severity.REPLACE}
TABLE = {
    code: (verdict, verdict in MUST_NOT)
    for code, verdict in sorted(
        (
            {c: VERDICT_OF[action] for action, spans in CATALOG.items() for c in known_faults.codes_in(spans)} | OURS
        ).items()
    )
}


def problems(*events: str, seen_until_s: float | None = None, needs_no_reset: bool = False) -> list[Problem]:
    """What is said of a kernel log with these lines of the driver, a second apart."""
    lines = [f"[{n + 1:5d}.000000] NVRM: Xid (PCI:0000:10:1c): {event}" for n, event in enumerate(events)]
    log = "".join(f"{line}\n" for line in [*lines, f"-- {len(lines)} of 2000 lines"])
    return xid.kernel_problems(log, replace(ABOUT, seen_until_s=seen_until_s, needs_no_reset=needs_no_reset))


@walked("code", [c for c in range(1, 200) if c != SAYS_ITSELF])
def test_every_xid_has_its_verdict(code: Any) -> None:
    """Those of the table; any other is unknown, and bars no host."""
    (problem,) = problems(f"{code}, pid=1, name=python3, something")

    assert TABLE.get(code, (Severity.UNKNOWN, False)) == (problem.verdict, problem.unfit)
    assert f"Xid {code} on 0000:10:1c (1 since boot)" == problem.what
    assert problem.do and problem.command


def test_the_table_has_no_other_xid() -> None:
    """And none is missing in it."""
    assert set(TABLE) == set(xid.XIDS) - {SAYS_ITSELF}


@pytest.mark.parametrize(
    ("action", "verdict", "is_unfit"),
    [
        ("None", Severity.WATCH, False),
        ("GPU Reset Required", Severity.RESET_GPU, True),
        ("Node Reboot Required", Severity.REBOOT, True),
        ("Drain P2P", Severity.RESET_GPU, True),
        ("Drain and Reset", Severity.RESET_GPU, True),
        ("FLR", Severity.RESET_GPU, True),
        ("Something New", Severity.UNKNOWN, False),
    ],
)
def test_xid_154_says_itself_what_to_do(action: Any, verdict: Any, is_unfit: Any) -> None:
    """The driver's own word counts; of one GPU the last one, if it said several."""
    said = f"154, GPU recovery action changed from 0x0 (None) to 0x2 ({action})"
    before = "154, GPU recovery action changed from 0x0 (None) to 0x1 (Reboot)"

    assert [(verdict, is_unfit)] == [(p.verdict, p.unfit) for p in problems(said)]
    assert [(verdict, is_unfit)] == [(p.verdict, p.unfit) for p in problems(before, said)]


@walked("code", sorted(TABLE))
def test_only_a_jobs_own_error_is_over_with_the_job(code: Any) -> None:
    """After a look has seen it, it is said no more; what is the GPU's own stays until the host is booted again."""
    left = problems(f"{code}, pid=1, name=python3", seen_until_s=10.0)

    assert ([] if TABLE[code][0] is Severity.RESTART_JOB else [TABLE[code][0]]) == [p.verdict for p in left]


@walked("code", sorted(TABLE))
def test_a_reset_that_nothing_asks_for_any_more_is_done(code: Any) -> None:
    """The kernel log keeps the Xid; what is newer than the last look, or wants more than a reset, stays."""
    verdict, is_unfit = TABLE[code]
    expected = [] if verdict is Severity.RESTART_JOB else [(verdict, is_unfit)]
    event = f"{code}, pid=1, name=python3"
    is_reset = verdict is Severity.RESET_GPU

    done = problems(event, seen_until_s=10.0, needs_no_reset=True)
    assert ([(Severity.WATCH, False)] if is_reset else expected) == [(p.verdict, p.unfit) for p in done]
    assert expected == [(p.verdict, p.unfit) for p in problems(event, seen_until_s=10.0)]
    for seen_until_s in (None, 0.5):
        new = problems(event, seen_until_s=seen_until_s, needs_no_reset=True)
        assert [(verdict, is_unfit)] == [(p.verdict, p.unfit) for p in new]


@pytest.mark.parametrize(
    ("recorded", "is_done"),
    [
        ("smi/p4d.24xlarge-535.54.03-healthy", True),
        ("smi/p6-b200.48xlarge-590.44.01-healthy", True),
        ("smi/vm-h100-580.159.04-healthy", True),
        ("smi/g4dn.xlarge-470.103.01-healthy", False),  # a driver that tells of no reset
        ("gpu-ecc/p4d.24xlarge-535.54.03-sram", False),
        ("gpu-ecc/p4d.24xlarge-535.54.03-cut-off", False),
        ("gpu-repair/p4d.24xlarge-535.54.03-remap-pending", False),
        ("gpu-recovery/p4d.24xlarge-535.54.03-reset", False),
        ("gpu-recovery/p4d.24xlarge-535.54.03-drain", False),
        ("gpu-recovery/p6-b200.48xlarge-590.44.01-reboot", False),
    ],
)
def test_the_driver_says_whether_a_reset_is_done(recorded: str, is_done: bool) -> None:
    """By what it asks for, by the errors since the last reset, by what waits for the next; silence is no yes."""
    log = re.sub(r"^# .*\n", "", (ROOT / f"tests/recorded/{recorded}.txt").read_text(), flags=re.MULTILINE)
    cluster = Cluster(name="x", hosts=(ABOUT.host,), folder=ROOT, shared="/efs", project="/opt/x")
    answers = {"smi": Answer(status="ok", out=log)}

    assert is_done == about_host(cluster, ABOUT.host, answers, {}, ()).needs_no_reset
    assert not about_host(cluster, ABOUT.host, {"smi": Answer(status="timeout")}, {}, ()).needs_no_reset


def test_verdicts_are_ordered_by_how_deep_the_remedy_goes() -> None:
    """The worst of several is a check's verdict, and comes first in a report."""
    order = ["ok", "not-applicable", "watch", "unknown", "restart-job", "reset-gpu", "reboot", "replace"]

    assert order == [v.value for v in sorted(Severity, key=lambda v: v.rank)]
    codes = ["63, x", "54, x", "79, x", "48, x", "13, x"]
    assert Severity.REPLACE is finding_of(problems(*codes)).verdict is finding_of(problems(*reversed(codes))).verdict
    assert Severity.REBOOT is finding_of([p for p in problems(*codes) if p.verdict is not Severity.REPLACE]).verdict


def on_gpus(*events: tuple[str, str]) -> set[tuple[Severity, bool, str]]:
    """What is said of Xids on GPUs, each given by its bus number: verdict, unfit, and where."""
    lines = [f"[{n + 1:5d}.000000] NVRM: Xid (PCI:0000:{bus}:00): {event}" for n, (bus, event) in enumerate(events)]
    found = xid.kernel_problems("".join(f"{line}\n" for line in [*lines, f"-- {len(lines)} of 2000 lines"]), ABOUT)
    return {(p.verdict, p.unfit, p.what.partition(" (")[0]) for p in found}


def changed(before: str, after: str) -> str:
    return f"154, GPU recovery action changed from 0x0 ({before}) to 0x2 ({after})"


def test_each_gpu_has_its_own_recovery_advice() -> None:
    """The last one of each counts, and the worst of them for the host: another GPU's return to None takes nothing back."""
    reboot, reset = changed("None", "Node Reboot Required"), changed("None", "GPU Reset Required")
    none = changed("GPU Reset Required", "None")

    assert {
        (Severity.REBOOT, True, "Xid 154 on 0000:01:00"),
        (Severity.WATCH, False, "Xid 154 on 0000:02:00"),
    } == on_gpus(("01", reboot), ("02", none))
    assert {
        (Severity.REBOOT, True, "Xid 154 on 0000:01:00"),
        (Severity.RESET_GPU, True, "Xid 154 on 0000:02:00"),
    } == on_gpus(("01", reboot), ("02", reset))


def test_what_a_gpu_had_before_its_reset_is_over() -> None:
    """A reset shows as a return of its own advice to None; what came after it, and other GPUs' errors, count."""
    none = changed("GPU Reset Required", "None")

    assert (Severity.WATCH, False, "Xid 95 on 0000:01:00") in on_gpus(("01", "95, x"), ("01", none))
    assert (Severity.RESET_GPU, True, "Xid 95 on 0000:02:00") in on_gpus(("02", "95, x"), ("01", none))
    assert (Severity.RESET_GPU, True, "Xid 95 on 0000:01:00") in on_gpus(("01", none), ("01", "95, x"))
    assert (Severity.REBOOT, True, "Xid 79 on 0000:01:00") in on_gpus(("01", "79, x"), ("01", none))


@pytest.mark.parametrize("code", range(144, 151))
def test_nvlink_5_errors_name_their_severity(code: int) -> None:
    """A line with Nonfatal bars no host; without a severity the catalog counts."""
    line = "NETIR_LINK_EVT {} XC0 i0 Link 07 (0x004505c6 0x00000000 0x00000000 0x00000000)"

    assert {(Severity.WATCH, False, f"Xid {code} on 0000:04:00")} == on_gpus(
        ("04", f"{code}, {line.format('Nonfatal')}")
    )
    assert {(Severity.RESET_GPU, True, f"Xid {code} on 0000:04:00")} == on_gpus(
        ("04", f"{code}, {line.format('Fatal')} ")
    )
    both = on_gpus(("04", f"{code}, {line.format('Nonfatal')}"), ("05", f"{code}, {line.format('Fatal')}"))
    assert {(Severity.WATCH, False), (Severity.RESET_GPU, True)} == {(verdict, unfit) for verdict, unfit, _ in both}


@pytest.mark.parametrize(
    ("line", "verdict", "is_unfit"),
    [
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", Severity.REBOOT, True),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0x40:2424)", Severity.REBOOT, True),
        ("NVRM: API mismatch: the client has the version 535.183.01, but", Severity.REBOOT, True),
        ("Memory cgroup out of memory: Killed process 9 (python) total-vm:1kB", Severity.WATCH, False),
        ("EXT4-fs error (device nvme0n1p1): ext4_find_entry:1455", Severity.REPLACE, False),
        ("md/raid0:md0: Disk failure on nvme1n1, failing array.", Severity.REPLACE, False),
        ("nvme nvme1: I/O 12 QID 4 timeout, reset controller", Severity.WATCH, False),
        ("pcieport 0000:00:1c.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=x", Severity.REBOOT, False),
        ("watchdog: BUG: soft lockup - CPU#7 stuck for 26s! [python:411]", Severity.WATCH, False),
        ("INFO: task python:411 blocked for more than 120 seconds.", Severity.WATCH, False),
        ("CPU3: Core temperature is above threshold, cpu clock is throttled (total events = 4)", Severity.WATCH, False),
        ("pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer", None, False),
        ("I/O error, dev loop3, sector 8", None, False),
    ],
)
def test_other_lines_of_the_kernel_log(line: str, verdict: Any, is_unfit: bool) -> None:
    """The question's own filter lets each through to the judge that knows it."""
    script = xid.COMMAND.partition("|\n")[2]
    filtered = subprocess.run(
        ["sh", "-c", script], input=f"[ 1.0] Linux\n[ 2.0] {line}\n", capture_output=True, text=True
    )
    found = xid.kernel_problems(filtered.stdout, ABOUT)

    assert ([(verdict, is_unfit)] if verdict else []) == [(p.verdict, p.unfit) for p in found]


def test_the_tables_say_where_they_are_from() -> None:
    """Each with its source, its version and its date; the Xids are all of the catalog's."""
    for table in known_faults.SOURCES.values():
        assert table["source"]
        assert table["version"]
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", table["date"])
    assert [*range(1, 173)] == sorted(
        code for spans in known_faults.SOURCES["xid"]["actions"].values() for code in known_faults.codes_in(spans)
    )


def test_the_documentation_has_the_same_table() -> None:
    """docs/health.md: `| 46, 144 to 150 | reset-gpu |`."""
    page = (ROOT / "docs/health.md").read_text()
    table = page[page.index("| Xid | verdict |") : page.index("| SXid |")]
    said: dict[int, Severity] = {}
    for codes, verdict in re.findall(
        r"^\| (\d[^|]*) \| (restart-job|reset-gpu|reboot|replace|watch)", table, re.MULTILINE
    ):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", codes):
            said |= dict.fromkeys(range(int(first), int(last or first) + 1), Severity(verdict))

    assert {code: verdict for code, (verdict, _) in xid.XIDS.items()} == said

"""Every Xid in one table, as NVIDIA's catalog has it: what it means for the host, beside what the judge says."""

import re
from dataclasses import replace
from typing import Any

import pytest

from cluster.health import xid
from cluster.health.check import About, Answer, finding_of
from cluster.health.look import about_host
from cluster.health.verdict import Problem, Verdict
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster

ABOUT = About(host=Host(rank=0, address="10.0.0.1", slots=8))
# verdict -> codes, and whether the host may still train. Column "immediate action" of the catalog.
MAY_TRAIN = {
    Verdict.RESTART_JOB: {13, 31, 32, 43, 45, 68, 69, 94},
    Verdict.WATCH: {63, 92, 156, 171, 172},
}
MUST_NOT = {
    Verdict.RESET_GPU: {46, 48, 61, 62, 74, 95, 109, 136, 140, *range(144, 151), 155, 158},
    Verdict.REBOOT: {79, 110, 119, 120, 143},
    Verdict.REPLACE: {64},
}
SAYS_ITSELF = 154
TABLE = {
    code: (v, is_unfit) for t, is_unfit in ((MAY_TRAIN, False), (MUST_NOT, True)) for v, cs in t.items() for code in cs
}


def problems(*events: str, seen_until_s: float | None = None, needs_no_reset: bool = False) -> list[Problem]:
    """What is said of a kernel log with these lines of the driver, a second apart."""
    lines = [f"[{n + 1:5d}.000000] NVRM: Xid (PCI:0000:10:1c): {event}" for n, event in enumerate(events)]
    log = "".join(f"{line}\n" for line in [*lines, f"-- {len(lines)} of 2000 lines"])
    return xid.kernel_problems(log, replace(ABOUT, seen_until_s=seen_until_s, needs_no_reset=needs_no_reset))


@pytest.mark.parametrize("code", [c for c in range(1, 200) if c != SAYS_ITSELF])
def test_every_xid_has_its_verdict(code: Any) -> None:
    """Those of the table; any other is unknown, and bars no host."""
    (problem,) = problems(f"{code}, pid=1, name=python3, something")

    assert TABLE.get(code, (Verdict.UNKNOWN, False)) == (problem.verdict, problem.unfit)
    assert f"Xid {code} on 0000:10:1c (1 since boot)" == problem.what
    assert problem.do and problem.command


def test_the_table_has_no_other_xid() -> None:
    """And none is missing in it."""
    assert set(TABLE) == set(xid.XIDS)


@pytest.mark.parametrize(
    ("action", "verdict", "is_unfit"),
    [
        ("None", Verdict.WATCH, False),
        ("GPU Reset Required", Verdict.RESET_GPU, True),
        ("Node Reboot Required", Verdict.REBOOT, True),
        ("Drain P2P", Verdict.RESET_GPU, True),
        ("Drain and Reset", Verdict.RESET_GPU, True),
        ("FLR", Verdict.RESET_GPU, True),
        ("Something New", Verdict.UNKNOWN, False),
    ],
)
def test_xid_154_says_itself_what_to_do(action: Any, verdict: Any, is_unfit: Any) -> None:
    """The driver's own word counts; the last one, if it said several."""
    said = f"154, GPU recovery action changed from 0x0 (None) to 0x2 ({action})"
    before = "154, GPU recovery action changed from 0x0 (None) to 0x1 (Reboot)"

    assert [(verdict, is_unfit)] == [(p.verdict, p.unfit) for p in problems(said)]
    assert [(verdict, is_unfit)] == [(p.verdict, p.unfit) for p in problems(before, said)]


@pytest.mark.parametrize("code", sorted(TABLE))
def test_only_a_jobs_own_error_is_over_with_the_job(code: Any) -> None:
    """After a look has seen it, it is said no more; what is the GPU's own stays until the host is booted again."""
    left = problems(f"{code}, pid=1, name=python3", seen_until_s=10.0)

    assert ([] if TABLE[code][0] is Verdict.RESTART_JOB else [TABLE[code][0]]) == [p.verdict for p in left]


@pytest.mark.parametrize("code", sorted(TABLE))
def test_a_reset_that_nothing_asks_for_any_more_is_done(code: Any) -> None:
    """The kernel log keeps the Xid; what is newer than the last look, or wants more than a reset, stays."""
    verdict, is_unfit = TABLE[code]
    expected = [] if verdict is Verdict.RESTART_JOB else [(verdict, is_unfit)]
    event = f"{code}, pid=1, name=python3"
    is_reset = verdict is Verdict.RESET_GPU

    done = problems(event, seen_until_s=10.0, needs_no_reset=True)
    assert ([(Verdict.WATCH, False)] if is_reset else expected) == [(p.verdict, p.unfit) for p in done]
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

    assert order == [v.value for v in sorted(Verdict, key=lambda v: v.rank)]
    codes = ["63, x", "64, x", "79, x", "48, x", "13, x"]
    assert Verdict.REPLACE is finding_of(problems(*codes)).verdict is finding_of(problems(*reversed(codes))).verdict
    assert Verdict.REBOOT is finding_of([p for p in problems(*codes) if p.verdict is not Verdict.REPLACE]).verdict


def test_the_documentation_has_the_same_table() -> None:
    """docs/health.md: `| 46, 144 to 150 | reset-gpu |`."""
    page = (ROOT / "docs/health.md").read_text()
    table = page[page.index("| Xid | verdict |") : page.index("| SXid |")]
    said: dict[int, Verdict] = {}
    for codes, verdict in re.findall(
        r"^\| (\d[^|]*) \| (restart-job|reset-gpu|reboot|replace|watch)", table, re.MULTILINE
    ):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", codes):
            said |= dict.fromkeys(range(int(first), int(last or first) + 1), Verdict(verdict))

    assert {code: verdict for code, (verdict, _) in xid.XIDS.items()} == said

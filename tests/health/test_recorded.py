"""Every check on outputs of the real tools: the healthy are well, each fault has its verdict and its words.

A few were recorded on a real host with a GPU, which was well; faults are rebuilt from public documentation and bug
reports, which each names.
"""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.clusterfile.instance_types import hardware_of
from cluster.health import checks, compare, deep, fabric, gpu, pairing, places, questions, stray_processes, system
from cluster.health.check import About, Answer, Check, finding_on
from cluster.health.onhost import peers, probe
from cluster.health.questions import read_answers
from cluster.health.quick_check import LIMITS, about_host
from cluster.health.verdict import Severity
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster
from tests.walking import walked

RECORDED = Path(__file__).parent.parent / "recorded"
SMI = "smi"  # the folder of GPUs that are well: every check that reads `nvidia-smi -q -x` has to say so
CHECKS: dict[str, Check] = {c.name.partition(":")[0]: c for c in (*checks.quick_checks("/shared"), *deep.CHECKS)}
CHECKS["place"] = next(c for c in checks.place_checks("/efs") if c.name == "place:/efs")

CLUSTER = Cluster(name="x", hosts=(), folder=ROOT, shared="/efs", project="/opt/x")


@dataclass(frozen=True)
class Case:
    """An output, and the check that judges it."""

    check: str
    path: Path

    def __str__(self) -> str:
        return f"{self.check}/{self.path.stem}"


def _checks_of(folder: str) -> list[str]:
    return [name for name, check in CHECKS.items() if check.question == "smi"] if folder == SMI else [folder]


FILES = sorted(RECORDED.glob("*/*.txt"))
CASES = [Case(check, path) for path in FILES for check in _checks_of(path.parent.name)]
each_case = walked("case", CASES)


def read(path: Path) -> tuple[dict[str, str], str]:
    """The header's fields, and the output below it."""
    lines = path.read_text().splitlines(keepends=True)
    header = [line for line in lines if re.match(r"# [a-z]+: ", line)]
    fields = dict(line[2:].rstrip("\n").split(": ", 1) for line in header)
    return fields, "".join(lines[len(header) :])


def found(case: Case, output: str) -> tuple[Severity, list[str]]:
    """What the case's check says of an output: its verdict, and `verdict | what was seen` of each problem."""
    return judged(case, Answer(status="ok", out=output))


def judged(case: Case, answer: Answer) -> tuple[Severity, list[str]]:
    """The same of an answer, whole or not."""
    fields, _ = read(case.path)
    about = About(
        host=Host(rank=0, address="10.0.0.1", slots=int(fields.get("slots", "8"))),
        instance=None if fields.get("type") == "unknown" else hardware_of(fields["instance"]),
        jobs=frozenset(fields.get("jobs", "").split()),
        seen_until_s=float(fields["seen"]) if "seen" in fields else None,
    )
    check = CHECKS[case.check]
    finding = finding_on(check, {check.question: answer}, about)
    assert finding.verdict is not Severity.NOT_APPLICABLE, "the check did not look at it"
    return finding.verdict, [f"{p.verdict.value} | {p.what}" for p in finding.problems]


@each_case
def test_the_judge_says_what_the_output_means(case: Case) -> None:
    """Exactly the expected problems, in the judge's own words; `ok` and `unknown` as such."""
    fields, output = read(case.path)
    verdict, problems = found(case, output)

    if fields["expect"] in ("ok", "unknown"):
        assert fields["expect"] == verdict.value, problems
    else:
        expected = fields["expect"].split("; ")
        assert len(expected) == len(problems), problems
        for one, said in zip(expected, problems, strict=True):
            assert said.startswith(one), f"expected {one!r}"


@pytest.mark.parametrize("whose", ["other-user", "job-elsewhere", "job-unknown", "not-seen"])
def test_nobody_is_told_to_kill_what_may_be_a_training(whose: str) -> None:
    """Nor is its host unfit."""
    paths = [path for path in FILES if path.parent.name.endswith("strays") and path.stem.endswith(whose)]
    checked = [(CHECKS[path.parent.name], Answer(status="ok", out=read(path)[1])) for path in paths]
    about = About(host=Host(rank=0, address="10.0.0.1", slots=8))

    problems = [p for check, answer in checked for p in finding_on(check, {check.question: answer}, about).problems]
    assert [False] * len(paths) == [p.unfit or "kill" in p.command for p in problems]


# Where nothing at all is an answer, of a driver that ended well: no GPU has an NVLink.
SILENCE = {"nvlink": "", "nvlink-errors": ""}
# A field that only newer drivers tell, and nothing beside it that says whether this one does.
TOLD_ALONE = "<unrepairable_memory>"


CUTS = 30  # of each output, with the pure tests; with the slow ones all of those under 2,000 bytes


def damages(output: str, *, everywhere: bool = False) -> Iterator[str]:
    """Yield the output cut in some places, or everywhere; then with a line doubled, with a line dropped."""
    lines = output.splitlines(keepends=True)
    chosen = random.Random(len(output))
    is_whole = len(output) <= CUTS or (everywhere and len(output) < 2000)
    cuts = range(len(output)) if is_whole else chosen.sample(range(len(output)), CUTS)
    yield from (output[:size] for size in cuts)
    for i, line in enumerate(lines):
        if TOLD_ALONE not in line and (len(lines) < 300 or chosen.random() < 0.2):
            yield "".join(lines[:i] + lines[i + 1 :])
        if len(lines) < 50 or chosen.random() < 0.05:
            yield "".join(lines[: i + 1] + lines[i:])
            yield "".join(lines[:i])


@pytest.mark.seconds
@each_case
def test_what_is_damaged_is_unknown_or_has_the_verdict_it_had(case: Case) -> None:
    """Where the tool itself stops or repeats: no judge takes a part for the whole, or says a fault that is not there."""
    assert [] == misjudged(case, damages(read(case.path)[1]))


@pytest.mark.slow
@each_case
def test_what_is_cut_anywhere_is_unknown_or_has_the_verdict_it_had(case: Case) -> None:
    assert [] == misjudged(case, damages(read(case.path)[1], everywhere=True))


def misjudged(case: Case, every: Iterator[str]) -> list[tuple[Severity, str]]:
    """Return another verdict than the whole output's or unknown, beside the end of each damaged output that gets it."""
    _, output = read(case.path)
    verdict, _ = found(case, output)
    return [
        (said, damaged[-200:])
        for damaged in every
        if damaged not in (output, SILENCE.get(case.check))
        and (said := found(case, damaged)[0]) not in (verdict, Severity.UNKNOWN)
    ]


@walked("path", [p for p in FILES if p.parent.name in (SMI, "gpu-ecc", "gpu-repair", "gpu-recovery")])
def test_no_damage_makes_a_reset_that_waits_one_that_is_done(path: Path) -> None:
    """What the driver does not say wholly leaves an Xid's verdict as it was."""
    about = About(host=Host(rank=0, address="10.0.0.1", slots=8))

    def is_done(output: str) -> bool:
        return about_host(CLUSTER, about.host, {"smi": Answer(status="ok", out=output)}, {}, ()).needs_no_reset

    _, output = read(path)
    assert is_done(output) or not [damaged[-200:] for damaged in damages(output) if is_done(damaged)]


@st.composite
def garbled(draw: st.DrawFn, whole: str) -> str:
    """The text with one to three pieces of it lost, doubled or replaced."""
    for _ in range(draw(st.integers(1, 3))):
        at, size = draw(st.integers(0, len(whole))), draw(st.integers(0, 200))
        piece = draw(st.sampled_from(["", whole[at : at + size] * 2, "-1", "9" * 400, "nan", "\x00", "\n"]) | st.text())
        whole = whole[:at] + piece + whole[at + size :]
    return whole


@given(case=st.sampled_from(CASES), data=st.data())
def test_no_damage_to_an_output_is_a_traceback_or_gets_through(case: Case, data: st.DataObject) -> None:
    """Whatever the tool says is judged in words; whatever was changed on the way is unknown."""
    _, output = read(case.path)
    damaged = data.draw(garbled(output))
    verdict, problems = found(case, damaged)

    assert problems or verdict is Severity.OK or CHECKS[case.check].told_by
    sent = {"status": "ok", "code": 0, "err": "", "seconds": 0.1, **probe.framed(output)}
    came = judged(case, read_answers({"it": {**sent, "out": damaged}})["it"])[0]
    assert Severity.UNKNOWN == came or damaged == output


@each_case
def test_an_answer_that_is_not_what_the_host_sent_is_unknown(case: Case) -> None:
    """Its length and checksum are made on the host, before it goes anywhere."""
    _, output = read(case.path)
    sent = {"status": "ok", "code": 0, "err": "", "seconds": 0.1, **probe.framed(output)}
    lines = output.splitlines(keepends=True)
    parts = [output[: len(output) // 2], output[:-1], "".join(lines[1:]), "".join(lines[:1] * 2 + lines[1:]), ""]
    changed = [f"{output}\n", *(part for part in parts if output)]

    assert found(case, output) == judged(case, read_answers(json.loads(json.dumps({"it": sent})))["it"])
    assert {Severity.UNKNOWN} == {judged(case, read_answers({"it": {**sent, "out": out}})["it"])[0] for out in changed}
    assert Severity.UNKNOWN == judged(case, read_answers({"it": {"status": "ok", "out": output}})["it"])[0]


@walked("path", FILES)
def test_an_output_says_whether_it_was_rebuilt_and_from_what(path: Any) -> None:
    """Or where it was recorded; of which driver, of which instance: also in its name."""
    fields, _ = read(path)

    assert fields.get("rebuilt", "").startswith("from ") != fields.get("recorded", "").startswith("on ")
    assert fields["driver"] and fields["instance"]
    assert path.name.startswith(f"{fields['instance']}-{fields['driver']}-")


@walked("name", sorted(CHECKS))
@pytest.mark.parametrize(
    "output",
    [
        "\n",
        "\x00\xff garbage",
        "{}",
        "<nvidia_smi_log/>",
        "<nvidia_smi_log><attached_gpus>1</attached_gpus><gpu/></nvidia_smi_log>",
        "".join(f"GPU {i}: NVIDIA A100 (UUID: GPU-{i})\n\t Link 0: <inactive>\n\t Link 0: 25 GB/s\n" for i in range(8)),
        "-- 0 lines\n",
        "-- 1 of 5 lines\n",
    ],
    ids=[
        "a blank line",
        "noise",
        "json",
        "xml",
        "an empty GPU",
        "a link up and down",
        "no line",
        "a line that is not there",
    ],
)
def test_a_judge_that_cannot_read_says_unknown(name: Any, output: Any) -> None:
    """Silence and noise are never health, and never a traceback."""
    check = CHECKS[name]
    about = About(host=Host(rank=0, address="10.0.0.1", slots=8), instance=hardware_of("p4d.24xlarge"))
    finding = finding_on(check, {check.question: Answer(status="ok", out=output)}, about)

    assert Severity.UNKNOWN == finding.verdict
    assert finding.problems or check.told_by


@walked("name", sorted({*CHECKS} - {*SILENCE}))
def test_silence_is_never_health(name: Any) -> None:
    """But of the driver where no GPU has an NVLink."""
    about = About(host=Host(rank=0, address="10.0.0.1", slots=8), instance=hardware_of("p4d.24xlarge"))
    check = CHECKS[name]

    assert Severity.UNKNOWN == finding_on(check, {check.question: Answer(status="ok")}, about).verdict


@walked("name", sorted(CHECKS))
def test_no_answer_in_time_is_never_ok(name: Any) -> None:
    """A time-out is unknown, or a finding of its own."""
    check = CHECKS[name]
    about = About(host=Host(rank=0, address="10.0.0.1", slots=8), instance=hardware_of("p4d.24xlarge"))
    finding = finding_on(check, {check.question: Answer(status="timeout", seconds=6.0)}, about)

    assert finding.verdict not in (Severity.OK, Severity.NOT_APPLICABLE)
    assert finding.problems or check.told_by


@walked("name", sorted(CHECKS))
def test_a_missing_tool_is_not_a_fault(name: Any) -> None:
    """It is not applicable, and where a tool can be had, the check says how."""
    check = CHECKS[name]
    about = About(host=Host(rank=0, address="10.0.0.1", slots=8), instance=hardware_of("p4d.24xlarge"))

    assert (Severity.NOT_APPLICABLE, ()) == (
        finding_on(check, {check.question: Answer(status="missing")}, about).verdict,
        finding_on(check, {check.question: Answer(status="missing")}, about).problems,
    )


def test_there_are_enough_faults() -> None:
    """Every check has a healthy recording, a faulty one and one it cannot read; at least 40 are faulty."""
    kinds: dict[str, set[str]] = {}
    for case in CASES:
        expected = read(case.path)[0]["expect"]
        kinds.setdefault(case.check, set()).add(expected if expected in ("ok", "unknown") else "fault")

    assert {name: {"ok", "unknown", "fault"} for name in CHECKS if name != "gpu-speed"} == kinds
    assert 40 <= sum(1 for p in FILES if read(p)[0]["expect"] not in ("ok", "unknown"))


# What the code judges by, as docs/health.md has to say it in the check's row.
THRESHOLDS = {
    "answers": [f"{LIMITS.connect_s:g} s to connect", f"{LIMITS.total_s:g} s in all"],
    "ssh": [f"{peers.SILENT_S:g} s to say a word"],
    "links": [f"{peers.REACH_S:g} s"],
    "next-ssh": [f"{peers.ALONE_S:g} s to say a word", f"{peers.CONNECT_S:g} s where not even TCP"],
    "frames": [f"no pause of {peers.STALLED_S:g} s"],
    "clock": [f"over {system.CLOCK_WARNS_S:g} s warns", f"over {system.CLOCK_FAILS_S:g} s fails"],
    "load": [f"{compare.BUSY_TIMES:g} times the median"],
    "memory": [
        f"under {100 * system.MEMORY_LOW_SHARE:g} % watch",
        f"under {100 * system.MEMORY_LEAST_SHARE:g} % unfit",
        f"over {system.PRESSURE_MOST:g} % watch",
    ],
    "place:PATH": [
        f"{questions.PLACE_S:g} s;",
        f"over {100 * places.NEARLY_FULL_SHARE:g} % used watch",
        f"over {100 * places.FULL_SHARE:g} % with less than {places.LEAST_BYTES >> 20} MiB",
    ],
    "strays": [f"older than {stray_processes.YOUNG_S:g} s"],
    "gpu-driver": [f"{questions.SMI_S:g} s", f"over {gpu.SLOW_S:g} s is slow"],
    "memlock": [f"under {fabric.MEMLOCK_LEAST >> 30:g} GiB unfit"],
    "gpu-repair": [f"{gpu.RETIRED_PAGES_MOST} pages"],
    "speed": [f"{100 * deep.SLOW_SHARE:g} % of the median"],
    "gpu-speed": [f"{deep.GPU_S:g} s"],
    "dcgm": [f"{deep.DCGM_S / 60:g} minutes"],
    "all-reduce": [f"{100 * pairing.DROP_SHARE:g} %"],
    "pairs": ["half of the median" if pairing.SLOW_SHARE == 0.5 else str(pairing.SLOW_SHARE)],
}


def documented() -> dict[str, str]:
    """The row of each check in docs/health.md."""
    rows: dict[str, str] = {}
    for line in (ROOT / "docs/health.md").read_text().splitlines():
        cells = line.strip("| ").split(" | ")
        if line.startswith("| ") and len(cells) > 2:
            rows |= dict.fromkeys(cells[0].split(", "), line)
    return rows


def test_every_check_is_in_the_documentation_with_what_it_judges_by() -> None:
    """A row each in docs/health.md; the numbers are the code's."""
    rows = documented()

    assert set() == {"place:PATH" if name == "place" else name for name in CHECKS} - set(rows)
    assert [] == [(name, said) for name, every in THRESHOLDS.items() for said in every if said not in rows[name]]


def test_the_documentation_has_every_verdict_that_a_check_gives() -> None:
    """As far as they are recorded; the kernel log's are in a table of their own."""
    rows = documented() | {"place": documented()["place:PATH"], "time-service": documented()["clock"]}
    given = {
        (path.parent.name, one.partition(" | ")[0])
        for path in FILES
        for one in read(path)[0]["expect"].split("; ")
        if path.parent.name != "xid" and " | " in one
    }

    assert [] == sorted((name, verdict) for name, verdict in given if verdict not in rows[name].rpartition(" | ")[2])

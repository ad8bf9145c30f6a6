"""Every check on recorded outputs of the real tools: the healthy are well, each fault has its verdict and its words."""

import re
from pathlib import Path

import pytest

from cluster.health import checks, deep
from cluster.health.check import About, Answer, Check, look
from cluster.health.instance import instance_of
from cluster.health.verdict import Verdict
from cluster.hosts import Host

RECORDED = Path(__file__).parent.parent / "recorded"
FILES = sorted(RECORDED.glob("*/*.txt"))
CHECKS: dict[str, Check] = {c.name.partition(":")[0]: c for c in (*checks.quick("/shared"), *deep.CHECKS)}
CHECKS["place"] = next(c for c in checks.places("/efs") if c.name == "place:/efs")


def read(path: Path) -> tuple[dict[str, str], str]:
    """The header's fields, and the output below it."""
    lines = path.read_text().splitlines(keepends=True)
    header = [line for line in lines if re.match(r"# [a-z]+: ", line)]
    fields = dict(line[2:].rstrip("\n").split(": ", 1) for line in header)
    return fields, "".join(lines[len(header) :])


def found(path: Path, output: str) -> tuple[Verdict, list[str]]:
    """What the file's check says of an output: its verdict, and `verdict | what was seen` of each problem."""
    fields, _ = read(path)
    about = About(
        host=Host(rank=0, address="10.0.0.1", slots=int(fields.get("slots", "8"))),
        instance=None if fields.get("type") == "unknown" else instance_of(fields["instance"]),
        jobs=frozenset(fields.get("jobs", "").split()),
        seen_until_s=float(fields["seen"]) if "seen" in fields else None,
    )
    check = CHECKS[path.parent.name]
    finding = look(check, {check.ask: Answer(status="ok", out=output)}, about)
    assert finding.verdict is not Verdict.NOT_APPLICABLE, "the check did not look at it"
    return finding.verdict, [f"{p.verdict.value} | {p.what}" for p in finding.problems]


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_the_judge_says_what_the_output_means(path):
    """Exactly the expected problems, in the judge's own words; `ok` and `unknown` as such."""
    fields, output = read(path)
    verdict, problems = found(path, output)

    if fields["expect"] in ("ok", "unknown"):
        assert fields["expect"] == verdict.value, problems
    else:
        expected = fields["expect"].split("; ")
        assert len(expected) == len(problems), problems
        for one, said in zip(expected, problems, strict=True):
            assert said.startswith(one), f"expected {one!r}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_recording_names_its_source(path):
    """Where it comes from, of which driver, of which instance: also in its name."""
    fields, _ = read(path)

    assert fields["source"] and fields["driver"] and fields["instance"]
    assert path.name.startswith(f"{fields['instance']}-{fields['driver']}-")


@pytest.mark.parametrize("name", sorted(CHECKS))
@pytest.mark.parametrize(
    "output", ["", "\x00\xff garbage", "{}", "<nvidia_smi_log/>"], ids=["silence", "noise", "json", "xml"]
)
def test_a_judge_that_cannot_read_says_unknown(name, output):
    """Silence and noise are never health, and never a traceback."""
    check = CHECKS[name]
    about = About(host=Host(rank=0, address="10.0.0.1", slots=8), instance=instance_of("p4d.24xlarge"))
    finding = look(check, {check.ask: Answer(status="ok", out=output)}, about)

    assert Verdict.UNKNOWN == finding.verdict
    assert finding.problems


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_no_answer_in_time_is_never_ok(name):
    """A time-out is unknown, or a finding of its own."""
    check = CHECKS[name]
    about = About(host=Host(rank=0, address="10.0.0.1", slots=8), instance=instance_of("p4d.24xlarge"))
    finding = look(check, {check.ask: Answer(status="timeout", seconds=6.0)}, about)

    assert finding.verdict not in (Verdict.OK, Verdict.NOT_APPLICABLE)
    assert finding.problems or CHECKS[check.told_by].on_timeout


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_missing_tool_is_not_a_fault(name):
    """It is not applicable, and where a tool can be had, the check says how."""
    check = CHECKS[name]
    about = About(host=Host(rank=0, address="10.0.0.1", slots=8), instance=instance_of("p4d.24xlarge"))

    assert (Verdict.NOT_APPLICABLE, ()) == (
        look(check, {check.ask: Answer(status="missing")}, about).verdict,
        look(check, {check.ask: Answer(status="missing")}, about).problems,
    )


def test_there_are_enough_faults():
    """Every check has a healthy recording, a faulty one and one it cannot read; at least 40 are faulty."""
    kinds: dict[str, set[str]] = {}
    for path in FILES:
        kinds.setdefault(path.parent.name, set()).add(
            read(path)[0]["expect"] if read(path)[0]["expect"] in ("ok", "unknown") else "fault"
        )

    assert {name: {"ok", "unknown", "fault"} for name in CHECKS if name != "gpu-speed"} == kinds
    assert 40 <= sum(1 for p in FILES if read(p)[0]["expect"] not in ("ok", "unknown"))


def test_every_check_is_in_the_documentation():
    """With its threshold, in docs/health.md."""
    page = (Path(__file__).parents[2] / "docs/health.md").read_text()

    assert [] == [name for name in CHECKS if name not in page]

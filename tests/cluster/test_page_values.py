"""What a job's page is made of, value by value: curves, axes, shares, tables, and what is read of its folder."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.jobs.curves.curves import Curve, CurveBuckets, StepSummary
from cluster.jobs.curves.metrics import record_of
from cluster.jobs.master import facts
from cluster.jobs.master.host_facts import hosts_seen
from cluster.jobs.state import JobState
from cluster.recovery.goodput import Account, TimeSplit
from cluster.recovery.host_failures import FORGIVEN, FailureRecord, note
from cluster.report.markup import facts as named
from cluster.report.markup import joined, tag, text
from cluster.report.sections import outcome
from dlami.tasks.reports import file_name
from tests.cluster.flat_jobs import changed
from tests.cluster.made_job import made_job


def a_curve(*values: tuple[int, float], most: int = 400, kind: str = "train", name: str = "loss") -> Curve:
    buckets = CurveBuckets(most=most)
    for step, value in values:
        buckets.add(step, value)
    return buckets.curve(kind, name)


def a_bucket(first: int, last: int, count: int, least: float, mean: float, largest: float) -> StepSummary:
    return StepSummary(first=first, last=last, count=count, least=least, mean=mean, largest=largest)


def test_buckets_become_twice_as_wide_and_keep_what_was_in_them() -> None:
    """In whatever order steps come; sums, borders and counts are those of the values."""
    curve = a_curve((5, 8.0), (0, 1.0), (1, 3.0), (4, 2.0), (2, -1.0), most=2)

    assert (a_bucket(0, 2, 3, -1.0, 1.0, 3.0), a_bucket(4, 5, 2, 2.0, 5.0, 8.0)) == curve.buckets
    assert (4, "train", "loss") == (curve.width, curve.kind, curve.name)
    assert (5, 0, 4, 2.6) == (curve.newest.last, curve.lowest.first, curve.highest.first, pytest.approx(curve.mean))
    far = a_curve((0, 1.0), (1, 1.0), (2, 1.0), (8, 1.0), (2, 5.0), most=3)
    assert [(0, 1, 2), (2, 2, 2), (8, 8, 1)] == [(b.first, b.last, b.count) for b in far.buckets]
    narrow = a_curve((3, 1.0), (2, 5.0), (3, 3.0))
    assert (a_bucket(2, 2, 1, 5.0, 5.0, 5.0), a_bucket(3, 3, 2, 1.0, 2.0, 3.0)) == narrow.buckets
    assert 1 == narrow.width


def test_markup_is_ours_and_text_is_text() -> None:
    """Attributes that are none are left out; of what is closed by itself nothing is closed again."""
    assert '<a class="b" data-x="1" hidden>&lt;c&gt;2</a>' == tag(
        "a", "<c>", None, 2, class_="b", data_x=1, hidden=True, id=None, title=False
    )
    assert ("<br>", '<rect x="0"/>', "<path/>") == (tag("br"), tag("rect", x=0), tag("path"))
    assert "&quot;<b></b>" == joined('"', None, tag("b"))
    assert "<b></b>" == text(tag("b"))
    assert "a\ufffdb\n\tc" == text("a\x00b\n\tc")
    assert "<dl><dt>a</dt><dd>1</dd></dl>" == named({"a": 1, "b": "", "c": None})
    for bad in ("1a", "a b", ""):
        with pytest.raises(AssertionError):
            tag(bad)


@pytest.mark.parametrize(
    ("change", "is_one"),
    [
        ({}, True), ({"step": 0}, True), ({"step": 1.0}, False), ({"step": True}, False), ({"step": -1}, False),
        ({"step": (1 << 53) - 1}, True), ({"step": 1 << 53}, False), ({"kind": 1}, False), ({"time": -1}, False),
        ({"time": 0}, True), ({"time": 2**35}, False), ({"time": "1"}, True), ({"time": None}, False),
    ],
)  # fmt: skip
def test_a_record_is_of_a_step_a_kind_and_a_time(change: dict[str, Any], is_one: bool) -> None:
    """Each of them one that can be; all else is no record."""
    line = json.dumps({"step": 1, "kind": "train", "time": 5.0, **change}).encode()
    assert is_one is (record_of(line) is not None)
    assert record_of(b"[]") is record_of(b"{") is record_of(b'{"step": 1}') is None


@pytest.mark.parametrize("state", list(JobState))
def test_an_outcome_is_a_sentence(tmp_path: Path, state: JobState) -> None:
    """With how long it took in how many attempts, and what of that was useful."""
    job = facts.read_facts(made_job(tmp_path, steps=1)).view
    spent = TimeSplit(useful_s=90.0, start_s=30.0)
    told = outcome(
        dataclasses.replace(
            job, status=dataclasses.replace(job.status, state=state), account=Account(total=spent, attempts=())
        )
    )
    word = "after" if state.is_over else "for"
    assert told.endswith(f", {word} 2m in 2 attempts; 75.0 % of that time was useful (ETTR).")
    bare = outcome(dataclasses.replace(job, status=dataclasses.replace(job.status, state=state), account=None))
    assert told.startswith(bare[:-1])
    assert bare.startswith("It ")
    assert bare.endswith(".")


def test_what_an_operator_gave_to_variables_is_hidden(tmp_path: Path) -> None:
    """In the job's own list and in mpirun's words; all else stays."""
    job = facts.read_facts(made_job(tmp_path, steps=1)).view.job
    told = changed(
        job, environment={"TOKEN": "geheim"}, mpirun=("mpirun", "-x", "TOKEN=geheim", "-x", "A=b"), notify="/bin/tell"
    )
    hidden = facts.without_secrets(told)
    assert ({"TOKEN": "…"}, ("mpirun", "-x", "TOKEN=…", "-x", "A=b"), "") == (
        hidden.spec.environment, hidden.plan.mpirun, hidden.plan.notify
    )  # fmt: skip
    assert job.plan.command == hidden.plan.command


def test_what_the_memory_has_of_a_host_is_told_but_what_is_forgiven(tmp_path: Path) -> None:
    """The last three; and the newest look at it, with six findings at most and whether it is unfit."""
    paths = made_job(tmp_path, steps=1)
    entries = [FailureRecord(time=1.7e9 + n, host="10.0.1.10", what="host", text=f"lost {n}") for n in range(4)]
    for entry in (*entries, FailureRecord(time=1.7e9 + 5, host="10.0.1.11", what=FORGIVEN)):
        note(tmp_path, entry)
    folder = tmp_path / "health/looks"
    folder.mkdir(parents=True)
    problem = {"check": "c", "what": "w", "unfit": True}
    for name, problems in (("1", []), ("2", [problem] * 7)):
        about = {"uptime": 1.0, "boot": "b", "problems": problems}
        look = {"time": f"2025-10-09T09:0{name}:00+00:00", "rung": "quick", "hosts": {"10.0.1.10": about}}
        (folder / f"{name}.json").write_text(json.dumps(look))
    (folder / "3.json").write_text("{")
    (folder / ".4.json").write_text("{}")
    one, other = hosts_seen(paths, facts.view(paths))

    assert ["lost 1", "lost 2", "lost 3"] == [re.search(r"lost \d", f)[0] for f in one.failures]
    assert (("c: w",) * 6, True, "2025-10-09T09:02:00+00:00") == (one.findings, one.is_unfit, one.looked)
    assert ((), (), False, "") == (other.failures, other.findings, other.is_unfit, other.looked)


@pytest.mark.parametrize("job_id", ["../../.bashrc", "/etc/cron.d/x", "a/b", "", ".hidden", "-rf", "a\n", "x" * 300])
def test_a_page_s_file_is_in_the_folder_one_stands_in(job_id: str) -> None:
    """Whatever id the master says."""
    with pytest.raises(ConfigError, match="job id"):
        file_name(job_id)
    assert "20261120-a.html" == file_name("20261120-a")

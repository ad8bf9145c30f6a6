"""What a job has cost so far: of hours and prices purely, by whom they are asked, and for how long they are believed."""

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ClusterError
from cluster.jobs import cost
from cluster.jobs.cost import Bill, priced
from cluster.jobs.record import JobStatus, JobView
from cluster.jobs.state import JobState
from cluster.provider import Paid
from tests.cluster.jobs_here import a_job

HOUR = 3600.0
PAID = st.builds(
    lambda begins, for_s, price: Paid(
        begins=begins, ends=None if for_s is None else begins + for_s, usd_per_hour=price
    ),
    st.floats(0, 1e5), st.none() | st.floats(0, 1e5), st.floats(0, 100),
)  # fmt: skip
TEN_A_HOUR = Bill((Paid(begins=0.0, ends=None, usd_per_hour=10.0),))
NO_PRICE = Bill((Paid(begins=0.0, ends=None, usd_per_hour=None),))


def job(name: str = "a", **changes: Any) -> JobView:
    """One that began an hour after its cluster, and goes on for half an hour."""
    status = JobStatus(state=JobState.RUNNING)
    view = JobView(job=a_job("", name, stack="us-east-1/demo"), status=status, folder="/f", owner="me", age_s=HOUR / 2)
    return dataclasses.replace(view, **{"began": HOUR, **changes})


@given(st.lists(PAID, max_size=6), st.lists(st.floats(0, 3e5), min_size=3, max_size=3))
def test_the_cost_of_parts_is_the_cost_of_the_whole(instances: list[Paid], times: list[float]) -> None:
    """However the time is cut in two no hour is counted twice or lost, and none costs less than nothing."""
    since, cut, until = sorted(times)
    bill = Bill(tuple(instances))
    parts = [bill.dollars(since, cut), bill.dollars(cut, until)]

    assert all(part is not None and part >= 0 for part in parts)
    assert bill.dollars(since, until) == pytest.approx(sum(p or 0 for p in parts), abs=1e-6)


def test_an_instance_counts_for_the_time_that_both_have() -> None:
    """One that went before the job began, or came after its end, costs it nothing, whatever its price."""
    early = Paid(begins=0.0, ends=HOUR, usd_per_hour=None)
    whole = Paid(begins=0.0, ends=None, usd_per_hour=3.0)
    replaced = Paid(begins=HOUR, ends=HOUR * 1.25, usd_per_hour=4.0)
    late = Paid(begins=HOUR * 9, ends=None, usd_per_hour=None)

    assert 2.5 == Bill((early, whole, replaced, late)).dollars(HOUR, HOUR * 1.5)
    assert NO_PRICE.dollars(HOUR, HOUR * 2) is None


@pytest.mark.parametrize(
    ("of_master", "here", "usd", "is_asked_here"),
    [
        (TEN_A_HOUR, None, 5.0, False),
        (NO_PRICE, TEN_A_HOUR, 5.0, True),  # its role may not ask for prices, the operator may
        (None, TEN_A_HOUR, 5.0, True),
        (NO_PRICE, None, None, True),
        (None, None, None, True),
    ],
)
def test_the_master_is_asked_first_then_who_sits_here(
    monkeypatch: pytest.MonkeyPatch, of_master: Any, here: Any, usd: Any, is_asked_here: bool
) -> None:
    """Once for all jobs of a stack."""
    asked: list[str] = []
    monkeypatch.setattr(cost, "remembered", lambda stack: asked.append(stack) or here)

    assert [usd, usd] == [one.usd for one in priced([job("a"), job("b")], lambda stack: of_master)]
    assert ["us-east-1/demo"] * is_asked_here == asked


def test_nobody_is_asked_of_jobs_that_can_have_no_cost() -> None:
    """Those of a cluster without a stack, and those that wait for their first attempt."""
    without = job(job=a_job("", "a"))
    waits = job(began=None)

    def fail(stack: str) -> Bill:
        raise AssertionError(stack)

    assert (without, waits) == priced([without, waits], fail)


def test_what_aws_said_is_believed_for_ten_minutes(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Also that nobody may ask; damage is asked anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: list[str] = []
    clock = [1000.0]
    answers: list[Bill | None] = [None, TEN_A_HOUR, NO_PRICE]
    monkeypatch.setattr(cost, "_asked", lambda stack, limit_s: asked.append(stack) or answers.pop(0))
    monkeypatch.setattr("cluster.jobs.cost.time.time", lambda: clock[0])

    assert [None, None] == [cost.remembered("r/s"), cost.remembered("r/s")]
    assert 1 == len(asked)
    clock[0] += 601
    assert [TEN_A_HOUR, TEN_A_HOUR] == [cost.remembered("r/s"), cost.remembered("r/s")]
    (file,) = (tmp_path / "dlami-cluster/bills").iterdir()
    assert 0o600 == file.stat().st_mode & 0o777
    file.write_text('{"at": 1601, "bill": {"instances": [7]}}')
    assert NO_PRICE == cost.remembered("r/s")
    assert 3 == len(asked)


class Silent:
    """A provider that never answers, and one that refuses, by turns."""

    def __init__(self, ended: threading.Event) -> None:
        self._ended, self.asked = ended, 0

    def paid(self, stack: str) -> tuple[Paid, ...]:
        self.asked += 1
        if self.asked == 1:
            self._ended.wait()
        raise ClusterError(f"{stack}: no credentials")


def test_a_provider_that_does_not_answer_holds_up_no_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor does one that refuses: the list has no prices then."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cost, "LIST_S", 0.1)
    ended = threading.Event()
    silent = Silent(ended)
    monkeypatch.setattr(cost, "provider", lambda: silent)
    try:
        assert [None, None] == [cost.remembered("r/s"), cost.remembered("r/other")]
    finally:
        ended.set()
    assert 2 == silent.asked

"""How far an attempt is, by its ranks' beats or its metrics, and what a job has cost. No process, no AWS."""

import dataclasses
import time
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.jobs import cost
from cluster.jobs.cost import Bill, priced
from cluster.jobs.record import JobView, Status
from cluster.jobs.state import JobState
from cluster.jobs.supervisor import steps as cluster_steps
from cluster.jobs.supervisor.steps import Step, Steps
from cluster.provider import Paid
from tests.cluster.jobs_here import a_job

T = 1_800_000_000.0


def beats(step: int | None = None, first: int | None = None, at: float | None = None) -> Any:
    return SimpleNamespace(step=lambda: step, first_step=lambda: first, first_step_at=lambda: at)


@pytest.mark.parametrize(
    ("rows", "first", "last"),
    [
        ([], None, None),
        ([{"kind": "train", "step": 4, "time": T}], (5, T), (5, T)),
        ([{"kind": "train", "step": 4, "time": T - 0.1}], None, None),  # an earlier attempt's
        ([{"kind": "eval", "step": 4, "time": T}], None, None),
        ([{"kind": "train", "step": "4", "time": T}], None, None),
        ([{"kind": "train", "step": 4, "time": "now"}], None, None),
        ([{"step": 4, "time": T}], None, None),
        ([{"kind": "train", "step": n, "time": T + n} for n in (4, 6, 5)], (5, T + 4), (7, T + 6)),
        ([{"kind": "train", "step": 4, "time": T + n} for n in (1, 2)], (5, T + 1), (5, T + 1)),
    ],
)
def test_steps_are_what_an_attempt_s_own_metrics_say(rows: Any, first: Any, last: Any) -> None:
    """A record's step is the number of steps before it; another attempt's, and what is none, says nothing."""
    steps = Steps(lambda: rows, T, beats())
    steps.read()
    assert (first and Step(number=first[0], at=first[1])) == steps.first
    assert (last and Step(number=last[0], at=last[1])) == steps.last
    steps.read()
    assert (last and Step(number=last[0], at=last[1])) == steps.last


@pytest.mark.parametrize("set_by_s", [-9 * 3600.0, 9 * 3600.0])
def test_steps_are_seen_though_the_clock_was_set(monkeypatch: pytest.MonkeyPatch, set_by_s: float) -> None:
    """Ranks date their lines by the master's wall clock; the attempt's own times are steady."""
    monkeypatch.setattr(cluster_steps, "clock_set_by_s", lambda: set_by_s)
    dated = [T + 1, T + 2 + set_by_s, T + 3 + set_by_s]
    steps = Steps(lambda: [{"kind": "train", "step": n, "time": at} for n, at in enumerate(dated)], T, beats())
    steps.read()
    assert Step(number=3, at=T + 3) == steps.last


def test_metrics_are_read_every_two_seconds_where_ranks_do_not_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those that cannot be read now change nothing."""
    clock, read = [100.0], list[float]()

    def metrics() -> list[dict[str, Any]]:
        read.append(clock[0])
        if clock[0] > 103:
            raise OSError
        return [{"kind": "train", "step": 1, "time": T}]

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(cluster_steps, "clock_set_by_s", lambda: 0.0)
    steps = Steps(metrics, T, beats())
    for at in (100.0, 101.0, 102.0, 102.1, 104.2):
        clock[0] = at
        steps.look()
    assert [100.0, 102.1, 104.2] == read
    assert steps.last == Step(number=2, at=T)


def test_steps_of_ranks_that_beat_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first as they tell when it was; a step that is no news is as old as it was."""
    monkeypatch.setattr(cluster_steps, "steady_now", lambda: T + 50)
    steps = Steps(lambda: 1 / 0, T, beats(0, None, None))  # type: ignore[return-value]
    steps.look()
    assert (None, None) == (steps.first, steps.last)
    steps._beats = beats(9, 3, T + 20)
    steps.look()
    assert (Step(number=3, at=T + 20), Step(number=9, at=T + 50)) == (steps.first, steps.last)
    monkeypatch.setattr(cluster_steps, "steady_now", lambda: T + 60)
    steps.look()
    assert steps.last == Step(number=9, at=T + 50)
    steps._beats = beats(10, 4, T + 70)
    steps.look()
    assert (Step(number=3, at=T + 20), Step(number=10, at=T + 60)) == (steps.first, steps.last)
    ahead = Steps(lambda: [], T, beats(1, 1, T + 99))
    ahead.look()
    assert ahead.first == Step(number=1, at=T + 60), "no host's clock makes a first step later than now"


def paid(begins_h: float, ends_h: float | None, usd: float | None = 2.0) -> Paid:
    return Paid(begins=T + begins_h * 3600, ends=None if ends_h is None else T + ends_h * 3600, usd_per_hour=usd)


@pytest.mark.parametrize(
    ("instances", "dollars"),
    [
        ((), 0.0),
        ((paid(0, None),), 8.0),
        ((paid(-5, 9),), 8.0),
        ((paid(1, 3),), 4.0),
        ((paid(1, 3), paid(2, None, 10.0)), 24.0),
        ((paid(-2, -1),), 0.0),
        ((paid(5, None),), 0.0),
        ((paid(-2, 0, None), paid(0, 1)), 2.0),  # an unknown price of another time
        ((paid(0, 1), paid(3, None, None)), None),
        ((paid(0, 1, 0.0),), 0.0),
    ],
)
def test_a_job_costs_what_its_instances_do_meanwhile(instances: Any, dollars: float | None) -> None:
    """Four hours from T on; unknown where one of them has no price."""
    assert dollars == Bill(instances).dollars(T, T + 4 * 3600)


VIEW = JobView(
    job=a_job("true", "j", stack="us-east-1/demo"),
    status=Status(state=JobState.SUCCEEDED),
    folder="/j",
    owner="o",
    age_s=1.0,
)


@pytest.mark.parametrize(
    ("asked", "is_asked_here"),
    [
        (Bill((paid(0, None),)), False),
        (Bill((paid(0, None), paid(0, None, None))), True),
        (None, True),
        (Bill(()), False),
    ],
)
def test_prices_are_asked_for_here_where_the_master_does_not_know_them(
    asked: Bill | None, is_asked_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, once for each stack."""
    stacks: list[str] = []
    monkeypatch.setattr(cost, "_can_have_cost", lambda job: bool(job.job.stack))
    monkeypatch.setattr(cost, "remembered", lambda stack: stacks.append(stack))
    alone = dataclasses.replace(VIEW, job=a_job("true", "k"))
    assert 3 == len(priced([VIEW, VIEW, alone], lambda stack: asked))
    assert (["us-east-1/demo"] if is_asked_here else []) == stacks

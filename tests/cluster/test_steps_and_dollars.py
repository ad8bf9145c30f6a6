"""How far an attempt is, by its ranks' beats or its metrics, and what a job has cost. No process, no AWS."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.jobs.cost import Bill
from cluster.jobs.supervisor import steps as cluster_steps
from cluster.jobs.supervisor.steps import StepCount, Steps
from cluster.provider import Paid

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
    assert (first and StepCount(number=first[0], at=first[1])) == steps.first
    assert (last and StepCount(number=last[0], at=last[1])) == steps.last
    steps.read()
    assert (last and StepCount(number=last[0], at=last[1])) == steps.last


@pytest.mark.parametrize("set_by_s", [-9 * 3600.0, 9 * 3600.0])
def test_steps_are_seen_though_the_clock_was_set(monkeypatch: pytest.MonkeyPatch, set_by_s: float) -> None:
    """Ranks date their lines by the master's wall clock; the attempt's own times are steady."""
    monkeypatch.setattr(cluster_steps, "clock_set_by_s", lambda: set_by_s)
    dated = [T + 1, T + 2 + set_by_s, T + 3 + set_by_s]
    steps = Steps(lambda: [{"kind": "train", "step": n, "time": at} for n, at in enumerate(dated)], T, beats())
    steps.read()
    assert StepCount(number=3, at=T + 3) == steps.last


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
    assert steps.last == StepCount(number=2, at=T)


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

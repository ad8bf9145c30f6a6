"""`inv health --notify`: what is new or gone is told, and nothing where nothing has changed."""

from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.health.command import news, show_health
from cluster.health.history import QuickCheckRecord
from cluster.health.report import HealthReport
from cluster.health.verdict import Problem, Severity
from cluster.hosts import Host
from cluster.inventory import Cluster

HOSTS = tuple(Host(rank=n, address=f"10.0.0.{n}", slots=8) for n in range(3))
FULL = Problem(check="space", what="/dev/shm is full", means="m", verdict=Severity.RESTART_JOB, do="d")
KNOWN = {"check": "space", "what": "/dev/shm is full", "unfit": True}


def report(*bad: int, before: Any = None) -> HealthReport:
    """A look that found these hosts full, after one that had found those of `before` so."""
    looks = []
    if before is not None:
        seen = {h.address: {"problems": [KNOWN] if h.rank in before else []} for h in HOSTS}
        looks = [QuickCheckRecord(time="2026-11-23T00:00:00+00:00", rung="quick", hosts=seen)]
    problems = {h: (FULL,) if h.rank in bad else () for h in HOSTS}
    return HealthReport(rung="quick", problems=problems, findings={h: {} for h in HOSTS}, seconds=1.0, before=looks)


def test_what_is_new_or_gone_is_told() -> None:
    """By the hosts that have it, with how it stands now."""
    text = news(report(1, 2, before=[0]))

    assert text.startswith("new   10.0.0.[1-2]  /dev/shm is full; gone  10.0.0.0  /dev/shm is full; ")
    assert "2" in text.rpartition("; ")[2]


def test_nothing_is_told_where_nothing_has_changed() -> None:
    """A night without news is a quiet one; a first look tells what it found."""
    assert "" == news(report(1, before=[1])) == news(report(before=[])) == news(report())
    assert news(report(1)).startswith("10.0.0.1 space: /dev/shm is full; ")


@pytest.mark.parametrize(
    ("notify", "interval_s", "says"), [("", None, "has no notify"), ("/bin/true", 5.0, "start it by a timer")]
)
def test_what_cannot_be_told_is_refused_before_a_look(notify: str, interval_s: Any, says: str, tmp_path: Path) -> None:
    """Nobody named, or a look without an end."""
    cluster = Cluster(name="c", hosts=HOSTS, folder=tmp_path, shared="/s", project="/p", notify=notify)

    with pytest.raises(ConfigError, match=says):
        show_health(cluster, interval_s=interval_s, tell=True)

"""Earlier looks at hosts, and a watch over looks. No host is asked."""

import json
from pathlib import Path
from typing import Any

from cluster.health import command, history
from cluster.health.check import Answer
from cluster.health.history import QuickCheckRecord
from cluster.health.onhost import readings
from cluster.health.report import HealthReport
from cluster.health.verdict import Problem, Severity
from cluster.hosts import Host

HOSTS = tuple(Host(rank=n, address=f"10.0.0.{n}", slots=8) for n in range(4))


BAD = Problem(check="space", what="/ is full", means="m", verdict=Severity.RESTART_JOB, do="d")


ODD = Problem(check="load", what="busy", means="m", verdict=Severity.WATCH, do="d", unfit=False)


def report(bad: str = "", odd: str = "", before: tuple[QuickCheckRecord, ...] = (), hosts: int = 3) -> HealthReport:
    """A look at some hosts; the ranks of those that are unfit, and of those to watch."""
    problems = {h: (BAD,) * (str(h.rank) in bad) + (ODD,) * (str(h.rank) in odd) for h in HOSTS[:hosts]}
    return HealthReport(rung="quick", problems=problems, findings={}, seconds=1.25, before=before)


def look(bad: str = "", time: str = "2026-11-23T00:00:00+00:00") -> QuickCheckRecord:
    said = [{"check": "space", "what": "/ is full", "unfit": True}]
    hosts = {h.address: {"boot": "b", "uptime": 5, "problems": said * (str(h.rank) in bad)} for h in HOSTS}
    return QuickCheckRecord(time=time, rung="quick", hosts=hosts)


def test_looks_before_count_back_to_the_first_in_which_a_host_was_fit() -> None:
    """Each host by itself; one that is fit now is none of them."""
    found = report("12", before=(look("012"), look("1"), look("01"), look("012")))
    assert {HOSTS[1]: 4, HOSTS[2]: 1} == found.unfit_before()
    said = str(found).splitlines()
    assert "10.0.0.1: unfit in the 4 looks before too: if it was repaired since, replace it" in said
    assert "10.0.0.2: unfit in the look before too" in said
    assert {} == report("1", before=(look("1"), look())).unfit_before()


def test_looks_are_read_as_the_master_found_them() -> None:
    """None where it did not answer; what is no look is passed over. Of a host's own boot it is told how long ago it began."""
    told = [vars(look("1")), {"time": "soon", "rung": "quick", "hosts": {}}, 3]
    ok = Answer(status="ok", out=json.dumps(told))
    (found,) = history.read(ok)
    assert look("1") == found
    assert () == history.read(None) == history.read(Answer(status="timeout", out=json.dumps(told)))
    assert {"10.0.0.1"} == found.unfit
    assert (5.0, None, None, None) == tuple(
        found.until_s(*one) for one in (("10.0.0.1", "b"), ("10.0.0.1", "c"), ("10.0.0.1", ""), ("10.9.9.9", "b"))
    )


def test_a_watch_prints_the_first_look_and_then_what_changes(capsys: Any) -> None:
    """As many looks as were asked for; its exit code is the last one's."""
    looks = iter([report("1"), report("1"), report("2"), report()])
    assert 0 == command.watch(lambda: next(looks), 0.0, rounds=4)
    said = [line[21:] for line in capsys.readouterr().out.splitlines() if line.startswith("20")]
    assert said == [
        report("1").heading,
        "new   10.0.0.2  space  unfit: / is full",
        "gone  10.0.0.1  space  unfit",
        "gone  10.0.0.2  space  unfit",
    ]
    assert 2 == command.watch(lambda: report("1"), 0.0, rounds=1)
    assert 0 == command.watch(lambda: report("1"), 0.0, rounds=0)


def test_changes_are_said_with_the_look_that_they_are_since() -> None:
    """And where there is no earlier one, what was found."""
    since = "\nsince 2026-11-23T00:00:00+00:00; 3 hosts: 1 unfit to train, 2 well (quick, 1.2 s)"
    assert f"new   10.0.0.1  / is full{since}" == command.changes(report("1", before=(look(),)), "last")
    assert f"nothing changed{since}" == command.changes(report("1", before=(look("1"),)), "last")
    assert str(report("1")) + "\n(there is no earlier look to compare with)" == command.changes(report("1"), "last")
    assert ("10.0.0.1", "", "") == tuple(command._only_host(report(bad)) for bad in ("1", "12", ""))


def test_the_last_looks_are_read_oldest_first(tmp_path: Path) -> None:
    """As many as were asked for; a damaged one is passed over."""
    looks = tmp_path / "health/looks"
    looks.mkdir(parents=True)
    for name, text in {"1": "1", "2": "2", "3": "{", "4": "4"}.items():
        (looks / f"{name}.json").write_text(text)
    assert [2, 4] == readings.history(str(tmp_path), 2, str(tmp_path))
    assert [] == readings.history(str(tmp_path / "none"), 3, "")

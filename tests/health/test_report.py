"""What a person reads of a look: the unfit first, the deepest remedy first, equal troubles in one line."""

import json

from cluster.health.check import Finding
from cluster.health.report import HealthReport
from cluster.health.verdict import Problem, Severity
from cluster.hosts import Host

HOSTS = [Host(rank=r, address=f"10.0.0.{r + 1}", slots=8) for r in range(8)]


def report(problems: dict[Host, tuple[Problem, ...]]) -> HealthReport:
    """A look that found these."""
    return HealthReport(rung="quick", problems=problems, findings={}, seconds=1.0)


def test_hosts_that_are_well_take_one_line() -> None:
    """In words that say how many."""
    assert "all 8 hosts are well (quick, 1.0 s)" == str(report(dict.fromkeys(HOSTS, ())))
    assert "the host is well (quick, 1.0 s)" == str(report({HOSTS[0]: ()}))


def test_equal_troubles_are_one_group_with_all_their_hosts() -> None:
    """Their ranks are what --hosts takes, in the line and in the command."""
    one = Problem(check="c", what="saw it", means="m", verdict=Severity.WATCH, do="act", command="do --hosts {ranks}")
    text = str(report({h: (one,) if h.rank != 3 else () for h in HOSTS}))

    assert "unfit  10.0.0.[1-3,5-8] (rank 0-2,4-7): saw it: m" in text
    assert "do --hosts 0-2,4-7" in text


def test_a_look_as_json_has_every_host_with_its_verdicts_and_its_own_command() -> None:
    """Fit or not, each check's verdict, why one had none, and what to do about the host itself."""
    sick, well = HOSTS[:2]
    one = Problem(check="c", what="saw it", means="m", verdict=Severity.WATCH, do="act", command="do --hosts {ranks}")
    found = {sick: {"c": Finding(Severity.WATCH), "d": Finding(Severity.UNKNOWN, note="it did not answer")}}
    look = HealthReport(rung="quick", problems={sick: (one,), well: ()}, findings=found, seconds=1.23456, notes=("n",))
    record = json.loads(json.dumps(look.record()))

    assert ("quick", 1.235, ["n"]) == (record["rung"], record["seconds"], record["notes"])
    assert look.exit_code == record["exit_code"] != 0
    first, second = record["hosts"]
    assert (sick.address, 0, False) == (first["host"], first["rank"], first["fit"])
    assert {"c": "watch", "d": "unknown"} == first["checks"]
    assert {"d": "it did not answer"} == first["why_not"]
    assert ["do --hosts 0"] == [p["command"] for p in first["problems"]]
    assert (True, {}, []) == (second["fit"], second["checks"], second["problems"])

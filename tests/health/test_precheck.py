"""A glance at hosts before the next attempt: who must not be in it, after two looks."""

from collections.abc import Mapping, Sequence

import pytest

from cluster.health.check import Answer
from cluster.health.precheck import HealthIssue, _is_late, _questions, in_two_looks
from cluster.health.questions import SMI_S
from cluster.health.verdict import Severity
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster

HOSTS = [Host(rank=r, address=f"10.0.0.{r + 1}", slots=8) for r in range(4)]
CLUSTER = Cluster(name="x", hosts=tuple(HOSTS), folder=ROOT, shared="/efs", project="/opt/x")
LOST = HealthIssue(why="Xid 79", verdict=Severity.REBOOT)


def test_a_host_that_was_only_slow_is_well_when_it_answers() -> None:
    """The second look counts for those that the first gave no answer of, and is at no others."""
    well, slow, dead, sick = (h.address for h in HOSTS)
    looks: list[Mapping[str, HealthIssue | None]] = [{slow: None, dead: None, sick: LOST}, {dead: None}]
    asked = []

    def look(hosts: Sequence[Host], patient: bool) -> Mapping[str, HealthIssue | None]:
        asked.append(([h.address for h in hosts], patient))
        return looks[len(asked) - 1]

    assert {sick: LOST, dead: HealthIssue(why="did not answer in time, asked twice")} == in_two_looks(look, HOSTS)
    assert [([well, slow, dead, sick], False), ([slow, dead], True)] == asked


def test_a_fault_that_only_the_second_look_sees_counts() -> None:
    """And without anybody late there is no second look."""
    looks: list[Mapping[str, HealthIssue | None]] = [{HOSTS[1].address: None}, {HOSTS[1].address: LOST}, {}]

    assert {HOSTS[1].address: LOST} == in_two_looks(lambda *_: looks.pop(0), HOSTS)
    assert {} == in_two_looks(lambda *_: looks.pop(0), HOSTS)


@pytest.mark.parametrize(
    ("smi", "log", "is_late"),
    [
        (Answer(status="timeout", seconds=4.0), "", True),
        (Answer(status="timeout", seconds=4.0, stuck=True), "", False),
        (Answer(status="timeout", seconds=4.0), "NVRM: Xid (PCI:0000:01:00): 119, pid=1", False),
        (Answer(status="ok", seconds=3.0), "", False),
        (Answer(status="failed", code=9), "", False),
    ],
)
def test_a_driver_that_is_only_slow_is_asked_again_with_more_time(smi: Answer, log: str, is_late: bool) -> None:
    """Without persistence mode it takes half a minute; one that hangs for certain is not waited for."""
    assert is_late == _is_late({"smi": smi, "kernel-log": Answer(status="ok", out=log)})
    for more_s, limit_s in ((0.0, 4.0), (SMI_S, 35.0)):
        chains = _questions(CLUSTER, HOSTS[1], more_s)
        assert [limit_s] == [q.limit_s for chain in chains for q in chain if q.name == "smi"]

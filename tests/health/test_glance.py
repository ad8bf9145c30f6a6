"""A glance at hosts before the next attempt: who must not be in it, after two looks."""

from collections.abc import Mapping, Sequence

from cluster.health.glance import Sight, in_two_looks
from cluster.health.verdict import Verdict
from cluster.hosts import Host

HOSTS = [Host(rank=r, address=f"10.0.0.{r + 1}", slots=8) for r in range(4)]
LOST = Sight(why="Xid 79", verdict=Verdict.REBOOT)


def test_a_host_that_was_only_slow_is_well_when_it_answers() -> None:
    """The second look counts for those that the first gave no answer of, and is at no others."""
    well, slow, dead, sick = (h.address for h in HOSTS)
    looks: list[Mapping[str, Sight | None]] = [{slow: None, dead: None, sick: LOST}, {dead: None}]
    asked = []

    def look(hosts: Sequence[Host], patient: bool) -> Mapping[str, Sight | None]:
        asked.append(([h.address for h in hosts], patient))
        return looks[len(asked) - 1]

    assert {sick: LOST, dead: Sight(why="did not answer in time, asked twice")} == in_two_looks(look, HOSTS)
    assert [([well, slow, dead, sick], False), ([slow, dead], True)] == asked


def test_a_fault_that_only_the_second_look_sees_counts() -> None:
    """And without anybody late there is no second look."""
    looks: list[Mapping[str, Sight | None]] = [{HOSTS[1].address: None}, {HOSTS[1].address: LOST}, {}]

    assert {HOSTS[1].address: LOST} == in_two_looks(lambda *_: looks.pop(0), HOSTS)
    assert {} == in_two_looks(lambda *_: looks.pop(0), HOSTS)

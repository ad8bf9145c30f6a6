"""Who measures with whom, and what the numbers say: the plan and the judge, on numbers made up here."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.health.pairing import Pair, baseline_problems, pair_problems, rounds, summary
from cluster.hosts import Host


def some(n: int) -> list[Host]:
    return [Host(rank=r, address=f"10.0.0.{r + 1}", slots=8) for r in range(n)]


def measured(hosts: Any, rate_of: Any) -> list[Pair]:
    """The pairs of all rounds, with `rate_of(a, b)` bytes per second each way."""
    return [
        Pair(a=a, b=b, to_b=rate_of(a, b), to_a=rate_of(a, b), latency_s=1e-5)
        for plan in rounds(hosts)
        for a, b in plan
    ]


@given(st.integers(1, 70))
def test_log_n_rounds_of_disjoint_pairs_that_never_repeat(n: Any) -> None:
    """Every host once in a round (one rests if N is odd), every pair at most once."""
    plans = rounds(some(n))

    assert (0 if n == 1 else max(math.ceil(math.log2(n + n % 2)), min(3, n + n % 2 - 1))) == len(plans)
    for plan in plans:
        names = [h for pair in plan for h in pair]
        assert len(names) == len(set(names)) == n - n % 2
    pairs = [frozenset(p) for plan in plans for p in plan]
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize("n", [3, 4, 7, 8, 16, 64])
def test_one_slow_host_is_named_and_its_partners_are_not(n: Any) -> None:
    """Its partners were slow with it only."""
    hosts = some(n)
    slow = hosts[n // 2]
    found = pair_problems(measured(hosts, lambda a, b: 1e8 if slow in (a, b) else 1e9))

    assert [slow] == list(found)
    assert "at most 800.0 Mbit/s with any partner; 8.00 Gbit/s is usual here" == found[slow][0].what
    assert found[slow][0].unfit


def test_one_slow_link_is_named_by_both_ends_and_nobody_is_unfit() -> None:
    """Both hosts are well with others."""
    hosts = some(8)
    a, b = rounds(hosts)[1][0]
    found = pair_problems(measured(hosts, lambda x, y: 1e8 if {x, y} == {a, b} else 1e9))

    assert {a, b} == set(found)
    assert not any(p.unfit for problems in found.values() for p in problems)
    assert f"with {b} 800.0 Mbit/s; 8.00 Gbit/s is usual here, with others it is well" == found[a][0].what


@pytest.mark.parametrize("way", ["to_a", "to_b"])
def test_a_host_that_is_slow_one_way_only_is_named(way: Any) -> Any:
    """It receives at full speed and sends at a tenth, or the other way round: an all-reduce goes both ways."""
    hosts = some(8)
    slow = hosts[3]

    def pair(p: Pair) -> Pair:
        is_a = (way == "to_a") == (p.a is slow)
        return replace(p, **{"to_a" if is_a else "to_b": 1e8}) if slow in (p.a, p.b) else p

    assert [slow] == list(pair_problems([pair(p) for p in measured(hosts, lambda a, b: 1e9)]))


@pytest.mark.parametrize("way", ["to_a", "to_b"])
def test_a_link_that_is_slow_one_way_only_is_named(way: Any) -> None:
    """By both its ends."""
    hosts = some(8)
    a, b = rounds(hosts)[1][0]
    pairs = [replace(p, **{way: 1e8}) if {p.a, p.b} == {a, b} else p for p in measured(hosts, lambda x, y: 1e9)]

    assert {a, b} == set(pair_problems(pairs))


def test_two_slow_hosts_are_both_named() -> None:
    """Also if they met."""
    hosts = some(8)
    slow = set(next(iter(rounds(hosts)[0])))
    found = pair_problems(measured(hosts, lambda a, b: 1e8 if slow & {a, b} else 1e9))

    assert slow == set(found)


def test_a_pair_that_could_not_measure_is_not_silent() -> None:
    """No number is no health."""
    hosts = some(4)
    pairs = [
        Pair(a=p.a, b=p.b, error="no measurement") if hosts[3] in (p.a, p.b) else p
        for p in measured(hosts, lambda a, b: 1e9)
    ]
    found = pair_problems(pairs)

    assert "no partner could measure with it" == found[hosts[3]][0].what
    assert [hosts[3]] == list(found)


def test_equal_hosts_have_no_problem() -> None:
    """Nobody is slow if all are the same, and the numbers are in the summary."""
    pairs = measured(some(8), lambda a, b: 1.25e9 if a.rank else 1.1e9)

    assert {} == pair_problems(pairs)
    assert summary(pairs, 10.0).startswith(
        "pairs: 10.00 Gbit/s (median of 24 ways, 100% of the card's 10 Gbit/s; 8.80 Gbit/s to"
    )


def test_a_rate_under_the_own_baseline_is_said() -> None:
    """15 % under it; sizes that were never measured are not compared."""
    assert ["all-reduce of 1 MiB: 640.0 Mbit/s, 80% of the baseline"] == baseline_problems(
        "all-reduce of", {"1 MiB": 8e7, "4 KiB": 9e5, "8 MiB": 1.0}, {"1 MiB": 1e8, "4 KiB": 1e6}
    )

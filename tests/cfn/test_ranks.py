"""Which host has which rank: everybody keeps his, a successor takes the free one, and all who look see the same."""

import datetime
import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from cfn.hosts import GroupMember, ranked

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def member(name: str, role: str = "worker", rank: int | None = None, launched: int = 0) -> GroupMember:
    return GroupMember(
        instance_id=name,
        role=role,
        address=name,
        launched=START + datetime.timedelta(seconds=launched),
        lifecycle="InService",
        health="Healthy",
        rank=rank,
    )


def order(*members: GroupMember) -> list[tuple[str, int | None]]:
    return [(m.instance_id, m.rank) for m in ranked(members)]


def test_newcomers_are_ranked_by_their_age_behind_the_master() -> None:
    given = [
        member("b", launched=1),
        member("m", "master", launched=2),
        member("a", launched=3),
        member("c", launched=1),
    ]
    assert [("m", 0), ("b", 1), ("c", 2), ("a", 3)] == order(*given)


def test_a_successor_takes_the_free_place_and_all_others_keep_theirs() -> None:
    assert [("m", 0), ("a", 1), ("new", 2), ("c", 3)] == order(
        member("m", "master", 0), member("a", rank=1), member("c", rank=3), member("new", launched=9)
    )


def test_a_new_master_is_rank_0_whatever_its_tag_says() -> None:
    assert [("m", 0), ("a", 1)] == order(member("m", "master", 5, launched=9), member("a", rank=1))


def test_a_worker_that_claims_the_masters_place_gets_another() -> None:
    assert [("m", 0), ("a", 1)] == order(member("a", rank=0), member("m", "master", launched=9))
    assert [("a", 1)] == order(member("a", rank=0))


def test_of_two_with_one_rank_the_older_keeps_it() -> None:
    assert [("m", 0), ("b", 1), ("a", 2)] == order(
        member("a", rank=1, launched=2), member("m", "master"), member("b", rank=1, launched=1)
    )


def test_a_gap_stays_while_nobody_can_fill_it() -> None:
    """A host that is being replaced does not move the others."""
    assert [("m", 0), ("b", 2)] == order(member("m", "master", 0), member("b", rank=2))


@given(
    ranks=st.lists(st.none() | st.integers(0, 9), max_size=8),
    has_master=st.booleans(),
    launched=st.lists(st.integers(0, 3), min_size=9, max_size=9),
    shuffle=st.randoms(use_true_random=False),
)
def test_all_who_see_the_same_members_see_the_same_order(
    ranks: list[int | None], has_master: bool, launched: list[int], shuffle: random.Random
) -> None:
    """In whatever order AWS lists them: one rank each, none lost, and once written the ranks stay."""
    there = [member(f"i-{n}", rank=r, launched=launched[n]) for n, r in enumerate(ranks)]
    there += [member("m", "master", launched=launched[8])] * has_master
    one = ranked(there)
    shuffle.shuffle(there)
    assert one == ranked(there)
    assert one == ranked(one)
    found = [m.rank for m in one if m.rank is not None]
    assert sorted(m.instance_id for m in there) == sorted(m.instance_id for m in one)
    assert all(a < b for a, b in itertools.pairwise(found)) and len(found) == len(one)
    assert [m.role for m in one if m.rank == 0] == ["master"] * has_master

"""Whose turn it is: tables of what operators expect, and drawn submissions and ends that keep the queue's promises."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.hosts import Host
from cluster.jobs.host_queue import WHOLE, Waiting, places
from cluster.jobs.occupancy import places_of
from cluster.jobs.record import JobRecords, JobStatus
from cluster.jobs.state import JobState
from cluster.launch.mpirun import ranks_on
from tests.cluster.jobs_here import a_job

HOSTS = tuple(Host(rank=i, address=f"10.0.0.{i}", slots=2) for i in range(5))


def wants(job: str, *numbers: int, np: int | None = None) -> Waiting:
    """A job that may have the hosts of these numbers; it needs all of them without `np`."""
    hosts = tuple(HOSTS[i] for i in numbers)
    return Waiting(job=job, hosts=hosts, np=np or sum(h.slots for h in hosts))


def taken(**hosts: int) -> dict[str, dict[str, int]]:
    """Each job's one host."""
    return {f"10.0.0.{number}": {job: WHOLE} for job, number in hosts.items()}


@pytest.mark.parametrize(
    ("queue", "holders", "expected"),
    [
        ([wants("a", 0)], {}, {"a": [0]}),
        ([wants("a", 0, 1)], taken(x=1), {"a": []}),  # all of them or none
        ([wants("a", 0, 1, np=2)], taken(x=0), {"a": [1]}),  # any one of two
        ([wants("a", 0, 1, 2, np=3)], {}, {"a": [0, 1]}),  # the first that suffice
        ([wants("a", 0), wants("b", 0)], {}, {"a": [0], "b": []}),
        ([wants("a", 0, 1), wants("b", 1)], taken(x=0), {"a": [], "b": []}),  # not past who waits for it
        ([wants("a", 0, 1), wants("b", 2)], taken(x=0), {"a": [], "b": [2]}),  # nobody waits for that one
        ([wants("a", 0, 1, 2, np=4), wants("b", 2)], taken(x=0, y=1), {"a": [], "b": []}),  # any of them is awaited
        ([wants("a", 0), wants("b", 0, 1, np=2)], taken(x=0), {"a": [], "b": [1]}),  # another will do
        ([wants("a", 0, 1, np=2), wants("b", 1)], {}, {"a": [0], "b": [1]}),  # what has its hosts waits for none
        ([wants("a", 0, 1), wants("b", 1, 2), wants("c", 2)], taken(x=0), {"a": [], "b": [], "c": []}),
    ],
)
def test_turns(queue: Any, holders: Any, expected: Any) -> None:
    """Who gets which hosts now."""
    found = places(queue, holders)

    assert expected == {job: [h.rank for h in place.hosts] for job, place in found.items()}
    assert list(range(1, len(queue) + 1)) == [found[one.job].number for one in queue]


def test_a_place_says_what_it_waits_for() -> None:
    """By host: who has it, or who is to have it first."""
    queue = [wants("a", 0, 1, 2), wants("b", 1, 2, 3)]
    found = places(queue, taken(x=0, y=3))

    assert "place 1 in the queue, waits for 10.0.0.0, taken by x" == str(found["a"])
    assert "place 2 in the queue, waits for 10.0.0.3, taken by y; 10.0.0.[1-2], which a waits for before it" == str(
        found["b"]
    )
    assert "its turn has come: 10.0.0.[1-2]" == str(places([wants("a", 1, 2)], {})["a"])


def test_a_place_behind_a_lost_job_says_what_frees_its_hosts() -> None:
    """By records: a lost job holds them until somebody ends what is left of it."""
    going = [(JobState.LOST, "x", {"hosts": HOSTS[:1]}), (JobState.RUNNING, "y", {"hosts": HOSTS[1:2]})]
    waits = (JobState.QUEUED, "a", {"hosts": (), "wanted": HOSTS[:2], "whole_np": 4})
    records = [(a_job("", job, **more), JobStatus(state=state)) for state, job, more in (*going, waits)]
    place = places_of(JobRecords(jobs=tuple(records), damaged=()))["a"]

    assert {"10.0.0.0": "x", "10.0.0.1": "y"} == place.taken
    assert (
        "place 1 in the queue, waits for 10.0.0.0, taken by x (lost: inv jobs.stop x); 10.0.0.1, taken by y"
        == str(place)
    )  # fmt: skip


def jobs() -> Any:
    """What a drawn job may have, and how many of its slots it needs."""
    some = st.lists(st.integers(0, len(HOSTS) - 1), min_size=1, max_size=len(HOSTS), unique=True)
    return st.tuples(some, st.floats(0, 1))


class Cluster:
    """The queue played: jobs come, and go; who is at his turn takes his hosts."""

    def __init__(self) -> None:
        self.queue: list[Waiting] = []
        self.running: dict[str, list[str]] = {}
        self.begun: list[str] = []
        self.came: list[Waiting] = []

    def submit(self, numbers: list[int], share: float) -> None:
        slots = sum(HOSTS[i].slots for i in numbers)
        one = wants(f"job-{len(self.came)}", *sorted(numbers), np=1 + int(share * (slots - 1)))
        self.came.append(one)
        self.queue.append(one)

    def end(self, which: int) -> None:
        if self.running:
            del self.running[sorted(self.running)[which % len(self.running)]]

    @property
    def holders(self) -> dict[str, dict[str, int]]:
        return {address: {job: WHOLE} for job, hosts in self.running.items() for address in hosts}

    def take_turn(self, which: int) -> bool:
        """One of those whose turn has come takes its hosts, in whatever order their supervisors look."""
        found = places(self.queue, self.holders)
        able = [one for one in self.queue if found[one.job].hosts]
        if not able:
            return False
        one = able[which % len(able)]
        hosts = found[one.job].hosts
        self._check(one, hosts)
        self.queue.remove(one)
        self.running[one.job] = [h.address for h in hosts]
        self.begun.append(one.job)
        return True

    def _check(self, one: Waiting, hosts: tuple[Host, ...]) -> None:
        assert set(hosts) <= set(one.hosts)
        assert sum(ranks_on(hosts, one.np).values()) == one.np
        assert not {h.address for h in hosts} & self.holders.keys(), "never two jobs on one host"
        found = places(self.queue, self.holders)
        for before in self.queue[: self.queue.index(one)]:
            awaited = found[before.job].hosts or before.hosts  # who can go has its hosts as good as taken
            assert not set(awaited) & set(hosts), "nobody goes past who waits for a host"


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 2), jobs(), st.integers(0, 10)), max_size=40))
def test_promises_hold_for_drawn_submissions_and_ends(events: Any) -> None:
    """Never two jobs on a host, the order kept, and once nothing more is submitted everybody has had its turn."""
    played = Cluster()
    for kind, (numbers, share), which in events:
        if kind == 0:
            played.submit(numbers, share)
        elif kind == 1:
            played.end(which)
        else:
            played.take_turn(which)
    patience = 4 * len(played.came) + 1
    while played.queue and patience:
        patience -= 1
        played.take_turn(0) or played.end(0)

    assert not played.queue, "nobody waits for ever"
    assert sorted(played.begun) == sorted(one.job for one in played.came)


@settings(deadline=None, max_examples=100)
@given(jobs(), st.lists(jobs(), min_size=1, max_size=30))
def test_a_stream_of_later_jobs_starves_nobody(first: Any, later: Any) -> None:
    """However many come behind it: once the hosts of those before it are free, it is the next that gets any of its own."""
    played = Cluster()
    played.running = {"x": ["10.0.0.0"], "y": [h.address for h in HOSTS[1:]]}
    played.submit(*first)
    target = played.queue[0]
    own = {h.address for h in target.hosts}
    for numbers, share in later:
        played.submit(numbers, share)
        while played.take_turn(0):
            pass
        later_ones = {a for job, hosts in played.running.items() if job not in ("x", "y", target.job) for a in hosts}
        assert target.job in played.begun or not later_ones & own
        played.running.pop("x", None)
    played.running.pop("y", None)
    assert target.job in played.begun or places(played.queue, played.holders)[target.job].hosts

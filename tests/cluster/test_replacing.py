"""What AWS is asked about a job's dead hosts, and what its answers come to: a stack of five hosts that is none."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from cluster.healing.choice import Chosen, Unfit, choose
from cluster.healing.replacing import Replacing
from cluster.hosts import Host
from tests.cluster.jobs_here import wait_until

SEATS = tuple(Host(rank=r, address=a, slots=1) for r, a in enumerate("abcde"))
NEW = Host(rank=1, address="z", slots=1)
Start = Callable[..., Replacing]


class Stack:
    """Ends whom it is told to, and says which hosts are usable."""

    def __init__(self) -> None:
        self.hosts: Sequence[Host] = SEATS
        self.told: list[tuple[str, ...]] = []

    def ask(self, words: Sequence[str]) -> Any:
        self.told.append(tuple(words))
        return {"rank": int(words[2])} if len(words) > 1 else {"hosts": [dataclasses.asdict(h) for h in self.hosts]}

    @property
    def looks(self) -> int:
        return self.told.count(("hosts",))


@pytest.fixture
def stack() -> Stack:
    return Stack()


@pytest.fixture
def start(stack: Stack) -> Iterator[Start]:
    """Replacing that looks all the time; it ends with the test."""
    made: list[Replacing] = []

    def one(is_silent: Callable[[str], bool]) -> Replacing:
        made.append(Replacing("us-east-1/demo", print, stack.ask, look_s=0.01, is_silent=is_silent))
        return made[0]

    yield one
    for each in made:
        each.close()


def without(*addresses: str, is_silent: bool = True) -> Chosen:
    """The choice of who has lost these hosts."""
    gone = Unfit(why="does not answer", is_gone=True, is_silent=is_silent)
    return choose(SEATS, (), dict.fromkeys(addresses, gone), {}, np=5, min_np=2)


def test_a_host_that_answers_and_must_go_is_ended(start: Start, stack: Stack) -> None:
    """It was not chosen for its silence, and what it says now changes nothing."""
    start(lambda _: False).begin(without("b", is_silent=False), SEATS)
    wait_until(lambda: stack.looks > 0, "it is looked for its successor")

    assert ("end", "b", "1") == stack.told[0]


def test_a_host_that_was_back_and_is_gone_again_is_ended(start: Start, stack: Stack) -> None:
    """That it was spared once is forgotten."""
    silent = set[str]()
    replacing = start(silent.__contains__)
    replacing.begin(without("b"), SEATS)
    wait_until(lambda: stack.looks > 0, "it was left alone")
    assert [("hosts",)] == stack.told
    silent |= {"b", "c"}
    replacing.begin(without("b", "c"), SEATS)
    wait_until(lambda: ("end", "c", "2") in stack.told, "the other is ended")

    assert ("end", "b", "1") in stack.told


def test_the_successor_is_another_host_of_that_rank(start: Start, stack: Stack) -> None:
    """Looked for until it is there; the one that was ended is none, and news is only what was not known."""
    replacing = start(lambda _: True)
    replacing.begin(without("b"), SEATS)
    wait_until(lambda: stack.looks > 3, "it has been looked more than once")
    assert ({}, 1) == (replacing.successors(SEATS), replacing.news)
    stack.hosts = (SEATS[0], NEW, *SEATS[2:])
    wait_until(lambda: bool(replacing.successors(SEATS)), "it is there")
    replacing.close()
    replacing._thread.join()

    assert ({"b": NEW}, 2) == (replacing.successors(SEATS), replacing.news)

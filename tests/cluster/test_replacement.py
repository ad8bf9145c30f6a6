"""What AWS is asked about a job's dead hosts, and what its answers come to: a stack of five hosts that is none."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from cluster.hosts import Host
from cluster.provider import Paid
from cluster.recovery.placement import Ineligible, Placement, choose
from cluster.recovery.replacement import Replacement
from tests.cluster.jobs_here import wait_until

SEATS = tuple(Host(rank=r, address=a, slots=1) for r, a in enumerate("abcde"))
Start = Callable[..., Replacement]


class Stack:
    """Ends whom it is told to, and says which hosts are usable."""

    def __init__(self) -> None:
        self.usable: Sequence[Host] = SEATS
        self.told: list[tuple[str, str, int]] = []
        self.looks = 0

    def hosts(self, stack: str) -> tuple[Host, ...]:
        self.looks += 1
        return tuple(self.usable)

    def take(self, stack: str, address: str, rank: int, spare: str) -> None:
        self.told.append(("take", address, rank))

    def end(self, stack: str, address: str, rank: int) -> int:
        self.told.append(("end", address, rank))
        return rank

    def paid(self, stack: str) -> tuple[Paid, ...]:
        raise NotImplementedError

    def outputs(self, stack: str) -> dict[str, str]:
        raise NotImplementedError


@pytest.fixture
def stack() -> Stack:
    return Stack()


@pytest.fixture
def start(stack: Stack) -> Iterator[Start]:
    """Replacing that looks all the time; it ends with the test."""
    made: list[Replacement] = []

    def one(is_silent: Callable[[str], bool]) -> Replacement:
        made.append(Replacement("us-east-1/demo", print, lambda: stack, look_s=0.01, is_silent=is_silent))
        return made[0]

    yield one
    for each in made:
        each.close()


def without(*addresses: str, is_silent: bool = True) -> Placement:
    """The choice of who has lost these hosts."""
    gone = Ineligible(why="does not answer", is_gone=True, is_silent=is_silent)
    return choose(SEATS, (), dict.fromkeys(addresses, gone), {}, np=5, min_np=2)


def test_a_host_that_answers_and_must_go_is_ended(start: Start, stack: Stack) -> None:
    """It was not chosen for its silence, and what it says now changes nothing."""
    start(lambda _: False).begin(without("b", is_silent=False), SEATS)
    wait_until(lambda: stack.looks > 0, "it is looked for its successor")

    assert ("end", "b", 1) == stack.told[0]


def test_a_host_that_was_back_and_is_gone_again_is_ended(start: Start, stack: Stack) -> None:
    """That it was spared once is forgotten."""
    silent = set[str]()
    replacing = start(silent.__contains__)
    replacing.begin(without("b"), SEATS)
    wait_until(lambda: stack.looks > 0, "it was left alone")
    assert [] == stack.told
    silent |= {"b", "c"}
    replacing.begin(without("b", "c"), SEATS)
    wait_until(lambda: ("end", "c", 2) in stack.told, "the other is ended")

    assert ("end", "b", 1) in stack.told

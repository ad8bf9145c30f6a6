"""What there is between us and one host's program: questions, pauses, what is no answer. No process; the clock is ours."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.ssh.agent_exchange import Exchange
from cluster.ssh.onhost.frame import framed
from tests.cluster.jobs_here import HERE


@dataclass
class Clock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("cluster.ssh.agent_exchange.time", made)
    return made


@pytest.fixture
def line(clock: Clock) -> Iterator[Exchange]:
    """One whose program has been started, and reads its questions."""
    made = Exchange(HERE, "python3", b"the program\n")
    made.open(lambda _, fd: channel(os.dup(fd)))
    yield made
    given: Any = made.channel
    made.close()
    if given:
        os.close(given.fd)


def channel(fd: int, **how: Any) -> Any:
    return SimpleNamespace(fd=fd, close=lambda: None, **{"exit_code": None, "refused": None, **how})


def asked(line: Exchange) -> bytes:
    """What the program can read by now."""
    given: Any = line.channel
    return os.read(given.fd, 65536)


def test_what_is_no_answer_is_said_after_a_while(line: Exchange, clock: Clock) -> None:
    """A greeting may come before a Python has started, so it is waited longer for the first answer than for others."""
    line.ask([])
    assert [] == line.heard(b" Welcome\x07to gpu1!\n")
    clock.now += 9.9
    assert "" == line.nonsense
    clock.now += 0.2
    assert "Welcome.to gpu1!" == line.nonsense
    line.heard(framed({"question": 1}))
    assert "" == line.nonsense
    line.answered()
    line.heard(b"\x00\x01")
    clock.now += 20
    assert "" == line.nonsense, "nothing was asked"
    line.ask([])
    clock.now += 0.9
    assert "" == line.nonsense
    clock.now += 0.2
    assert "?" == line.nonsense


def test_half_an_answer_is_no_nonsense(line: Exchange, clock: Clock) -> None:
    """Its rest may be on its way; what came before it is forgotten with it."""
    whole = framed({"question": 1})
    line.ask([])
    assert [] == line.heard(b"Welcome\n" + whole[:-3])
    clock.now += 60
    assert "" == line.nonsense
    assert [{"question": 1}] == line.heard(whole[-3:])


def test_far_too_much_that_is_no_answer_is_a_flood(line: Exchange) -> None:
    """Since the last answer, however many there were before."""
    line.heard(b"x" * (1 << 20))
    assert not line.is_flooding
    line.heard(framed({"question": 1}))
    line.heard(b"x" * (1 << 20))
    assert not line.is_flooding
    line.heard(b"x")
    assert line.is_flooding


@pytest.mark.parametrize(
    ("how", "said", "why"),
    [
        ({"exit_code": 3}, b"Traceback:\nno such module\n", "our program ended there with exit code 3: no such module"),
        ({"exit_code": 0}, b"", "our program ended there with exit code 0"),
        ({}, b"Killed\n", "the connection was lost"),
        ({"refused": "too many"}, b"", "its sshd has no place for one more session: too many"),
    ],
)
def test_why_it_ended_is_said(how: dict[str, Any], said: bytes, why: str, clock: Clock) -> None:
    """By its last line, where it said any."""
    line = Exchange(HERE, "python3", b"")
    line.complained(said)
    line.channel = channel(-1, **how)

    assert why == line.why_it_ended()

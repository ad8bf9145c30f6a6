"""A log that is printed over a connection that breaks: the next one goes on where it was."""

from collections.abc import Sequence
from typing import Any

import pytest

from cluster.hosts import Host
from cluster.jobs import log_connection
from cluster.jobs.log_connection import START, print_log
from cluster.ssh.result import Result

MASTER = Host(rank=0, address="10.0.0.1", slots=1)


class Broken:
    """A connection that ends after each part of what the master prints."""

    def __init__(self, *parts: list[tuple[str, bytes]], code: int | None = 0) -> None:
        self.parts, self.code, self.commands = list(parts), code, list[str]()

    def run(self, hosts: Sequence[Host], command: str, *, on_output: Any) -> dict[Host, Result]:
        """One of them."""
        self.commands.append(command)
        for stream, data in self.parts.pop(0) if self.parts else []:
            on_output(MASTER, stream, data)
        return {MASTER: Result(host=MASTER, exit_code=None if self.parts else self.code, seconds=0.0)}


def printed(reach: Broken) -> tuple[list[tuple[str, bytes]], Result]:
    """What came out, and the last result."""
    came: list[tuple[str, bytes]] = []
    result = print_log(
        reach,
        MASTER,
        lambda job, more: " ".join(["logs", job or "last", *more]),
        lambda host, stream, data: came.append((stream, data)),
    )
    return came, result


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master is reached again at once."""
    monkeypatch.setattr(log_connection, "_PAUSES_S", (0.0, 0.0))


def test_a_broken_connection_is_opened_again_at_the_byte_that_was_printed() -> None:
    """Of the same job, which `last` may not mean any more, from the same place of the same attempt."""
    start = ("stderr", f"warning: locale\n{START}mine-1 2 10\nmore".encode())
    reach = Broken([start, ("stdout", b"one\ntw")], [("stdout", b"o\n")], [("stdout", b"three\n")])
    came, result = printed(reach)

    assert b"one\ntwo\nthree\n" == b"".join(data for stream, data in came if stream == "stdout")
    assert b"warning: locale\nmore" == b"".join(data for stream, data in came if stream == "stderr")
    assert ["logs last", "logs mine-1 --from 2:10 --skip 6", "logs mine-1 --from 2:10 --skip 8"] == reach.commands
    assert 0 == result.exit_code


def test_the_word_on_where_it_begins_may_come_in_pieces() -> None:
    """And is never printed."""
    text = f"{START}mine-1 1 0\n".encode()
    came, _ = printed(Broken([("stderr", text[:5]), ("stderr", text[5:]), ("stdout", b"x")]))

    assert [("stdout", b"x")] == came


def test_a_log_that_never_began_is_not_tried_again() -> None:
    """The master was not reached, and that is said at once."""
    reach = Broken([], code=None)
    _, result = printed(reach)

    assert (None, 1) == (result.exit_code, len(reach.commands))


def test_a_master_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever follows is told then."""
    monkeypatch.setattr(log_connection, "AWAY_S", 0.0)
    reach = Broken([("stderr", f"{START}mine-1 1 0\n".encode())], code=None)
    _, result = printed(reach)

    assert result.exit_code is None

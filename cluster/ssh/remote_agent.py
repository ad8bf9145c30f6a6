"""Dialogue with one long-running program on each host, which answers questions over the open connections.

A host that cannot be reached, hangs or sends garbage is reported and tried again in the background. No other host waits
for it.
"""

import contextlib
import os
import selectors
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.hosts import Host
from cluster.ssh.agent_exchange import Exchange
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.program import HostProgram

_CONNECT = Limits(connect_s=5.0)
_SOON_S = 0.1  # between two tries to open a program
_TICK_S = 0.05
_CHUNK = 65536


@dataclass(frozen=True, kw_only=True)
class AgentAnswer:
    """Answer of a host's program."""

    host: Host
    answer: Any
    took_s: float  # from the question


class Dialogue:
    """Programs on hosts that answer one question after another. A context manager."""

    def __init__(
        self, reach: Executor, hosts: Iterable[Host], asked: HostProgram, own: Callable[[Host], Sequence[Any]]
    ) -> None:
        """Prepare the programs. own: returns a host's own arguments of the program."""
        self._reach = reach
        self._lines = {h: Exchange(h, asked.command(*own(h)), asked.stdin) for h in hosts}
        self._selector = selectors.DefaultSelector()
        self._connecting: set[Host] = set()  # in threads
        self._failed: dict[Host, str] = {}  # the reasons that those threads found
        self._lock = threading.Lock()
        self._told: list[AgentAnswer] = []

    def __enter__(self) -> "Dialogue":
        self._open_what_can_be()
        return self

    def __exit__(self, *exc: object) -> None:
        for line in self._lines.values():
            self._close(line)
        self._selector.close()

    def ask(self, host: Host, *more: Any) -> bool:
        """Send a question to a host. Return False if its program does not run or has not answered the last question."""
        return self._lines[host].ask(more)

    def listen(self, timeout_s: float) -> list[AgentAnswer]:
        """Return the answers that arrive within `timeout_s`.

        Waits at most 50 ms, and no longer than until the first event.
        """
        self._told = []
        self._open_what_can_be()
        for key, _ in self._selector.select(max(0.0, min(timeout_s, _TICK_S))):
            if self._selector.get_map().get(key.fd) is key:  # an event before this one may have closed it
                key.data()
        return self._told

    def trouble(self, host: Host) -> str:
        """Return why a host does not answer. Return an empty string if it answered its last question."""
        return self._lines[host].trouble

    def failures(self, host: Host) -> int:
        """Return how often the host could not be reached, or its program ended, since its last answer."""
        return self._lines[host].failures

    def nonsense(self, host: Host) -> str:
        """Return the beginning of what a host prints instead of an answer.

        Return an empty string if there is nothing such.
        """
        return self._lines[host].nonsense

    def waits_s(self, host: Host) -> float:
        """Return for how many seconds a host's answer has been awaited."""
        asked_at = self._lines[host].asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def _open_what_can_be(self) -> None:
        """Start programs over the open connections, and make the missing connections in a thread."""
        now, lacking = time.monotonic(), []
        with self._lock:
            failed, self._failed = self._failed, {}
            connecting = set(self._connecting)
        for host, why in failed.items():
            self._lines[host].fail(why)
        for host, line in self._lines.items():
            if line.channel is None and host not in connecting and host not in failed and now >= line.try_at:
                try:
                    line.open(self._reach.opener(host))
                    self._register(line)
                except OSError:
                    line.try_at = now + _SOON_S
                    lacking.append(host)
        if lacking:
            with self._lock:
                self._connecting |= set(lacking)
            threading.Thread(target=self._connect, args=(lacking,), daemon=True).start()

    def _connect(self, hosts: Sequence[Host]) -> None:
        failed: dict[Host, str] = {}
        try:
            results = self._reach.connect(hosts, _CONNECT)
            failed = {h: r.problem for h, r in results.items() if not r.ok}
        except Exception as e:  # such as no free descriptor: tried again later
            failed = dict.fromkeys(hosts, f"no connection: {e}")
        finally:
            with self._lock:
                self._connecting -= set(hosts)
                self._failed |= failed

    def _register(self, line: Exchange) -> None:
        channel = line.channel
        assert channel
        for fd, handler in (
            (channel.control, self._control),
            (channel.stdout, self._stdout),
            (channel.stderr, self._stderr),
        ):
            self._selector.register(fd, selectors.EVENT_READ, lambda handler=handler: handler(line))

    def _control(self, line: Exchange) -> None:
        assert line.channel
        if not line.channel.read_control() or line.channel.refused is not None:
            line.complained(_rest(line.channel.stderr))
            self._close(line, line.why_it_ended())

    def _stdout(self, line: Exchange) -> None:
        assert line.channel
        data = os.read(line.channel.stdout, _CHUNK)
        if not data:
            self._selector.unregister(line.channel.stdout)
            return
        for answer in line.heard(data):
            self._told.append(AgentAnswer(host=line.host, answer=answer, took_s=line.answered()))
        if line.is_flooding:
            self._close(line, "it says far too much that is no answer")

    def _stderr(self, line: Exchange) -> None:
        assert line.channel
        data = os.read(line.channel.stderr, _CHUNK)
        line.complained(data)
        if not data:
            self._selector.unregister(line.channel.stderr)

    def _close(self, line: Exchange, trouble: str = "") -> None:
        if line.channel:
            for fd in (line.channel.control, line.channel.stdout, line.channel.stderr):
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(fd)
            line.close(trouble)


def _rest(fd: int) -> bytes:
    """Return what is buffered in the pipe, without blocking."""
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(fd, _CHUNK)
    return b""

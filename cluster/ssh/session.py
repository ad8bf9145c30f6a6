"""Event-driven run of one command on one host, from connecting to its result. Nothing here blocks."""

import os
import selectors
import time
from collections.abc import Callable

from cluster.hosts import Host
from cluster.ssh import connections, mux
from cluster.ssh.capture import Capture, MemoryBudget
from cluster.ssh.failure import Failure, Reason, failure_to_connect, is_transient
from cluster.ssh.limits import Limits, LocalCommand, OnOutput
from cluster.ssh.onhost.telling_line import telling_line
from cluster.ssh.options import Route
from cluster.ssh.result import Result
from cluster.ssh.start_mark import StartMark

_CHUNK = 65536
_ACCEPT_S = 2.0  # a live connection answers at its control socket within this time


class Conversation:
    """Session with one host of a fan-out. It registers its descriptors with a selector, whose events call it back.

    `way` is None for this machine. `command` is None to connect only.
    """

    def __init__(
        self,
        host: Host,
        way: Route | None,
        command: str | None,
        *,
        stdin: Callable[[], int],
        limits: Limits,
        memory: MemoryBudget,
        selector: selectors.BaseSelector,
        on_output: OnOutput | None = None,
    ) -> None:
        self.host = host
        self.result: Result | None = None
        self.was_open = False  # the command has begun there
        self.since = time.monotonic()  # its start; while it runs, the command's
        self._way, self._command, self._stdin, self._limits = way, command, stdin, limits
        self._selector, self._on_output = selector, on_output
        self._captures = {"stdout": Capture(memory), "stderr": Capture(memory)}
        self._connecting: connections.Connecting | None = None
        self._channel: mux.Channel | LocalCommand | None = None
        self._start = StartMark()
        self._open: set[str] = set()  # those of stdout, stderr and control that are still open
        self._began = self._heard = self.since
        self._next_try: float | None = None
        self._was_turned_away = False
        self._pause_s = 0.1

    @property
    def is_connecting(self) -> bool:
        """Return True while the command has not begun and there is no result yet."""
        return self.result is None and not self.was_open

    @property
    def may_have_begun(self) -> bool:
        """Return True if the command was handed to the connection. It may not run on the host yet."""
        return self.was_open or self._channel is not None

    def start(self) -> None:
        """Run the command over the open connection. Connect first if it is not open."""
        self._began = self.since = self._heard = time.monotonic()
        if self._way is None:
            self._start_here()
        else:
            self._open_channel()

    def tick(self, now: float) -> None:
        """Check the time limits, and try again to connect if it is time to."""
        if self.result:
            return
        if self.is_connecting:
            if now - self._began > self._limits.connect_s:
                self._not_in_time()
            elif self._next_try is not None and now >= self._next_try:
                self._next_try = None
                self._open_channel()
        elif failure := self._over(now):
            self.finish(failure)

    def finish(self, failure: Failure | None = None) -> None:
        """End the conversation, with the command's exit code or with a failure."""
        if self._connecting:
            self._selector.unregister(self._connecting.stderr)
            self._connecting.kill()
            self._connecting = None
        exit_code = self._channel.exit_code if self._channel else 0
        self._drop_channel()
        (stdout, more_out), (stderr, more_err) = (c.taken() for c in self._captures.values())
        more = {name: m for name, m in (("stdout", more_out), ("stderr", more_err)) if m}
        self.result = Result(
            host=self.host,
            exit_code=None if failure else exit_code,
            failure=failure,
            stdout=stdout,
            stderr=stderr,
            seconds=time.monotonic() - self._began,
            more=more,
        )

    def _start_here(self) -> None:
        if self._command is None:
            self.finish()
            return
        stdin = self._stdin()
        try:
            self._channel = LocalCommand(self._command, stdin)
        except OSError as e:
            self.finish(Failure(reason=Reason.NOT_STARTED, detail=f"the command did not start: {e.strerror}"))
            return
        finally:
            os.close(stdin)
        self.was_open = True
        self._listen()

    def _open_channel(self) -> None:
        assert self._way
        if self._command is None:
            if mux.is_alive(self._way.socket, _ACCEPT_S):
                self.finish()
            else:
                self._connect()
            return
        stdin = self._stdin()
        try:
            self._channel = mux.Channel(self._way.socket, self._command, stdin, min(_ACCEPT_S, self._limits.connect_s))
        except OSError:
            self._connect()
            return
        finally:
            os.close(stdin)
        self._listen()

    def _connect(self) -> None:
        assert self._way
        try:
            self._connecting = connections.Connecting(self._way, self._limits.connect_s)
        except OSError as e:
            self.finish(Failure(reason=Reason.NOT_STARTED, detail=connections.why_no_ssh(e)))
            return
        self._selector.register(self._connecting.stderr, selectors.EVENT_READ, self._on_connecting)

    def _on_connecting(self) -> None:
        assert self._connecting and self._way
        if self._connecting.read():
            return
        self._selector.unregister(self._connecting.stderr)
        said = self._connecting.outcome()
        self._connecting = None
        if said is None:
            self._open_channel() if self._command is not None else self.finish()
        elif is_transient(said):
            self._was_turned_away = True
            self._try_again()
        else:
            self.finish(failure_to_connect(said, self._way.access, self._limits.connect_s))

    def _try_again(self) -> None:
        self._next_try = time.monotonic() + self._pause_s
        self._pause_s = min(2.0, self._pause_s * 2)

    def _listen(self) -> None:
        assert self._channel
        for name, handler in (("control", self._on_control), ("stdout", self._on_stdout), ("stderr", self._on_stderr)):
            self._selector.register(getattr(self._channel, name), selectors.EVENT_READ, handler)
            self._open.add(name)

    def _on_control(self) -> None:
        assert self._channel
        goes_on = self._channel.read_control()
        if self._channel.is_open and not self.was_open:
            self.was_open = True
            self.since = self._heard = time.monotonic()
        self._was_turned_away |= self._channel.refused is not None
        if self._channel.refused is not None or not (goes_on or self.was_open):
            self._drop_channel()  # one session too many (MaxSessions), or a connection that died unnoticed
            self._try_again()
        elif not goes_on:
            self._ended("control")

    def _on_stdout(self) -> None:
        self._read("stdout")

    def _on_stderr(self) -> None:
        self._read("stderr")

    def _read(self, stream: str) -> None:
        data = os.read(getattr(self._channel, stream), _CHUNK)
        if not data:
            self._ended(stream)
            return
        self._heard = time.monotonic()
        self._take(stream, self._start.feed(data) if stream == "stdout" else data)

    def _take(self, stream: str, data: bytes) -> None:
        """Keep what the command printed, and pass it on."""
        if not data:
            return
        try:
            self._captures[stream].add(data)
        except OSError as e:
            self.finish(Failure(reason=Reason.OUTPUT_NOT_KEPT, detail=str(e.strerror)))
            return
        if self._on_output:
            self._on_output(self.host, stream, data)

    def _ended(self, name: str) -> None:
        assert self._channel
        self._open.discard(name)
        self._selector.unregister(getattr(self._channel, name))
        if name == "stdout":
            self._take("stdout", self._start.rest())
        if self.was_open and not self._open and not self.result:  # else the connection died, which _on_control handles
            self.finish(self._not_begun() if self._channel.exit_code is not None else self._why_no_code())

    def _not_begun(self) -> Failure | None:
        """Return a failure if the exit code is not the command's: the mark of its start never arrived."""
        if self._start.is_seen:
            return None
        assert self._channel
        said = [capture.head().decode(errors="replace") for capture in reversed(self._captures.values())]
        told = next((line for text in said if (line := telling_line(text))), "")
        return Failure(
            reason=Reason.NOT_BEGUN, detail=f"exit code {self._channel.exit_code}" + f", {told[:100]!r}" * bool(told)
        )

    def _why_no_code(self) -> Failure:
        is_connected = self._way is not None and mux.is_alive(self._way.socket)
        return Failure(reason=Reason.SIGNAL if is_connected else Reason.BROKE_OFF)

    def _drop_channel(self) -> None:
        if self._channel:
            for name in self._open:
                self._selector.unregister(getattr(self._channel, name))
            self._open.clear()
            self._channel.close()
            self._channel = None

    def _not_in_time(self) -> None:
        """Give the host up, and close a connection that does not answer.

        A connection that has refused sessions stays open: it answers, and serves the sessions that it has.
        """
        assert self._way
        if self._channel is not None and not self._was_turned_away:
            connections.disconnect([self._way])
        reason = Reason.TURNED_AWAY if self._was_turned_away else Reason.NO_SSH_IN_TIME
        self.finish(Failure(reason=reason, limit_s=self._limits.connect_s))

    def _over(self, now: float) -> Failure | None:
        limits = self._limits
        if limits.total_s is not None and now - self.since > limits.total_s:
            return Failure(reason=Reason.TIME_LIMIT, limit_s=limits.total_s, detail=self._at_its_start())
        if limits.silence_s is not None and now - self._heard > limits.silence_s:
            return Failure(reason=Reason.SILENCE, limit_s=limits.silence_s, detail=self._at_its_start())
        return None

    def _at_its_start(self) -> str:
        """Return a hint at what to look at, if the time went by before the command began."""
        if self._start.is_seen:
            return ""
        return ": its login shell did not come to the command, see its start-up files (~/.bashrc) and its disk"

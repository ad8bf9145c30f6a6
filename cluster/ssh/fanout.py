"""Fan-out: runs a command on many hosts at once, over connections that stay open for the next task."""

import contextlib
import dataclasses
import functools
import os
import resource
import secrets
import selectors
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster import scratch
from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh import connections, mux
from cluster.ssh.capture import MemoryBudget
from cluster.ssh.failure import STILL_RUNNING, Failure, Reason, failure_to_connect
from cluster.ssh.limits import Limits, LocalCommand, OnOutput, with_environment
from cluster.ssh.options import Route, way_to
from cluster.ssh.result import FanOut, Result
from cluster.ssh.session import Conversation
from cluster.ssh.terminate import RUN_TAG, Termination, end_processes, undisturbed

Stdin = bytes | Path | Callable[[Host], bytes]
_STARTING = 32  # connections being made at once: the hosts behind one gateway share its sshd
_TUNNEL_S = 30.0  # for a gateway to which the AWS CLI leads: it asks AWS several things first
_STALLED_S = 1.0  # a host that connects for longer takes no place from the others
_ACCEPT_S = 2.0  # a live connection answers at its control socket within this time
_TICK_S = 0.05  # how late a limit may be noticed
_SHOW_S = 0.2  # between two reports of progress


class Interrupted(ClusterError):
    """Error: the operator interrupted a fan-out. The text lists hosts where its processes could not be ended."""

    exit_code = 130


@dataclass(frozen=True)
class FanoutProgress:
    """Progress of a fan-out."""

    hosts: int
    done: int  # ended, failed or not
    failed: int
    running: tuple[tuple[Host, float], ...]  # with seconds, the longest first


class Executor:
    """Executor on a cluster's hosts: `with Executor(cluster) as reach: reach.run(cluster.hosts, "hostname")`."""

    def __init__(self, cluster: Cluster, fanout: int = 64, spill: Path | None = None, label: str = "") -> None:
        """Prepare to run commands; no connection is made yet.

        `spill` is a folder for outputs too long for memory. Without it, `close` removes such outputs. With a `label`,
        this object has connections of its own, which `close` ends.
        """
        if fanout < 1:
            raise ConfigError(f"fanout is {fanout}, at least one connection is needed")
        self._cluster, self._fanout, self._label = cluster, fanout, label
        self._spill, self._own_spill = spill, spill is None
        self._lock = threading.Lock()
        _allow_files(8 * fanout)

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove kept outputs. The connections stay open for the next fan-out, except those that `apart` opened."""
        if self._label:
            connections.disconnect([w for h in self._cluster.hosts if (w := self._way(h)) and w.label])
        if self._own_spill and self._spill:
            shutil.rmtree(self._spill, ignore_errors=True)
            self._spill = None

    def apart(self, label: str) -> "Executor":
        """Return an executor on the same hosts over separate connections, which its `close` ends."""
        return Executor(self._cluster, self._fanout, label=label)

    def run(
        self,
        hosts: Iterable[Host],
        command: str | Callable[[Host], str],
        *,
        stdin: Stdin = b"",
        limits: Limits = Limits(),
        environment: dict[str, str] | None = None,
        sudo: bool = False,
        on_output: OnOutput | None = None,
        on_result: Callable[[Result], None] | None = None,
        on_progress: Callable[[FanoutProgress], None] | None = None,
        run_id: str | None = "",
    ) -> FanOut:
        """Run one command on many hosts, at most `fanout` at once.

        Return every host's result, even if other hosts fail.

        `command` is a shell command, or a function that returns one for each host. `stdin` likewise: bytes, a file, or
        a function that returns each host's bytes. Each host gets all of it.

        `on_result` is called with each host's result as it ends. For a host given up at a limit, it is called once its
        processes were ended there. Ctrl-C ends what was started on the hosts and raises Interrupted.

        `run_id` tags the processes. An empty one is replaced by a random one. With None nothing is tagged, and nothing
        is ended on the hosts.
        """
        hosts = tuple(hosts)
        tag = {} if run_id is None else {RUN_TAG: run_id or secrets.token_hex(8)}

        def text(host: Host) -> str:
            own = command if isinstance(command, str) else command(host)
            return with_environment(own, {**(environment or {}), **tag}, sudo=sudo)

        results: dict[Host, Result] = {}
        with selectors.DefaultSelector() as selector, _given(stdin, hosts) as open_stdin:
            all_of_them = self._conversations({h: text(h) for h in hosts}, open_stdin, limits, selector, on_output)
            try:
                for result in self._as_they_come(all_of_them, selector, limits, on_progress):
                    results[result.host] = result
                    if on_result and not _is_given_up(result):
                        on_result(result)
            except BaseException as e:  # Ctrl-C, or an error in a callback
                with undisturbed():
                    ended = self._end_unfinished(all_of_them, results, tag.get(RUN_TAG), sudo)
                if isinstance(e, KeyboardInterrupt):
                    raise Interrupted(f"interrupted; {ended}") from None
                raise
        results |= self._end_given_up(results, tag.get(RUN_TAG), sudo)
        if on_result:
            for result in filter(_is_given_up, results.values()):
                on_result(result)
        shown = command if isinstance(command, str) else command(hosts[0]) if hosts else ""
        return FanOut(shown, results)

    def connect(self, hosts: Iterable[Host], limits: Limits = Limits()) -> FanOut:
        """Open the connections to these hosts, for programs that use their sockets. Return a result per host."""
        with selectors.DefaultSelector() as selector, _given(b"", ()) as nothing:
            all_of_them = self._conversations(dict.fromkeys(hosts), nothing, limits, selector)
            results = self._as_they_come(all_of_them, selector, limits, None)
            return FanOut("connect", {r.host: r for r in results})

    def opener(self, host: Host) -> Callable[[str, int], mux.Channel | LocalCommand]:
        """Return a function that starts a shell command on the host, over the open connection.

        The function takes the command and a descriptor for its stdin. It raises OSError if no connection is open.
        """
        way = self._way(host)
        return LocalCommand if way is None else functools.partial(_channel, way)

    def _conversations(
        self,
        commands: Mapping[Host, str | None],
        open_stdin: Callable[[Host], int],
        limits: Limits,
        selector: selectors.BaseSelector,
        on_output: OnOutput | None = None,
    ) -> list[Conversation]:
        """Return a conversation for each host, not started yet. One without a command only connects."""
        memory = MemoryBudget(self._spill_folder)
        return [
            Conversation(
                host,
                self._way(host),
                command,
                stdin=functools.partial(open_stdin, host),
                limits=limits,
                memory=memory,
                selector=selector,
                on_output=on_output,
            )
            for host, command in commands.items()
        ]

    def _way(self, host: Host) -> Route | None:
        return None if host.is_local else dataclasses.replace(way_to(host, self._cluster.access), label=self._label)

    def _as_they_come(
        self,
        conversations: list[Conversation],
        selector: selectors.BaseSelector,
        limits: Limits,
        on_progress: Callable[[FanoutProgress], None] | None,
    ) -> Iterator[Result]:
        """Hold the conversations, with a limit on how many run at once.

        Yield each result when its conversation ends.
        """
        yield from self._without_gateway(conversations, limits)
        waiting = deque(c for c in conversations if c.result is None)
        talking: list[Conversation] = []
        done, failed, looked, shown = len(conversations) - len(waiting), 0, 0.0, 0.0
        while waiting or talking:
            for conversation in _next_ones(waiting, talking, self._fanout):
                conversation.start()
                talking.append(conversation)
            for key, _ in selector.select(_TICK_S):
                if selector.get_map().get(key.fd) is key:  # an event before this one may have closed it
                    key.data()
            now = time.monotonic()
            if now - looked >= _TICK_S:
                looked = now
                for conversation in talking:
                    conversation.tick(now)
            ended = [c.result for c in talking if c.result]
            if ended:
                talking = [c for c in talking if c.result is None]
                done, failed = done + len(ended), failed + sum(not r.ok for r in ended)
                yield from ended
            if on_progress and now - shown >= _SHOW_S:
                shown = now
                running = sorted(((c.host, now - c.since) for c in talking), key=lambda pair: -pair[1])
                on_progress(FanoutProgress(len(conversations), done, failed, tuple(running)))

    def _without_gateway(self, conversations: list[Conversation], limits: Limits) -> Iterator[Result]:
        """Connect to the gateway first. If that fails, yield the failed results of all hosts behind it."""
        access = self._cluster.access
        ways = {c: way for c in conversations if (way := self._way(c.host)) and (way.gateway or access.tunnel)}
        gateway = Route(str(access.gateway), access)
        connect_s = max(limits.connect_s, _TUNNEL_S) if access.tunnel else limits.connect_s
        said = connections.connect(gateway, connect_s) if ways else None
        if said is None:
            return
        why = failure_to_connect(said, access, connect_s)
        if access.tunnel and why.reason is Reason.NO_SSH_IN_TIME:
            detail = f"the AWS CLI led to no ssh within {connect_s:g} s: does {gateway.address} run, and its sshd?"
            why = dataclasses.replace(why, reason=Reason.NO_TUNNEL, detail=detail)
        for conversation, way in ways.items():
            conversation.finish(dataclasses.replace(why, gateway=gateway.address) if way.gateway else why)
            assert conversation.result
            yield conversation.result

    def _end_unfinished(
        self, conversations: list[Conversation], results: dict[Host, Result], run_id: str | None, sudo: bool
    ) -> Termination:
        """Give up every conversation that still runs, and end its processes on the hosts."""
        begun = [c.host for c in conversations if c.may_have_begun and c.host not in results]
        for conversation in conversations:
            if conversation.result is None:
                conversation.finish(Failure(reason=Reason.INTERRUPTED))
        return end_processes(self, begun, run_id, sudo=sudo)

    def _end_given_up(self, results: dict[Host, Result], run_id: str | None, sudo: bool) -> dict[Host, Result]:
        """End the commands that were given up at a limit, on their hosts, too.

        Return changed results for the hosts where processes are left.
        """
        ended = end_processes(self, [h for h, r in results.items() if _is_given_up(r)], run_id, sudo=sudo)
        changed = {}
        for host, left in ended.left.items():
            failure = results[host].failure
            assert failure
            changed[host] = dataclasses.replace(results[host], failure=dataclasses.replace(failure, left=left))
        return changed

    def _spill_folder(self) -> Path:
        with self._lock:
            if self._spill is None:
                self._spill = Path(tempfile.mkdtemp(prefix="output-", dir=scratch.folder()))
            self._spill.mkdir(parents=True, exist_ok=True)
            return self._spill


def _channel(way: Route, command: str, stdin: int) -> mux.Channel:
    return mux.Channel(way.socket, command, stdin, _ACCEPT_S)


def _is_given_up(result: Result) -> bool:
    return result.failure is not None and result.failure.reason in STILL_RUNNING


def _next_ones(waiting: deque[Conversation], talking: list[Conversation], fanout: int) -> Iterator[Conversation]:
    """Yield the conversations that may start now. Hosts that are slow to answer take no place from others."""
    now = time.monotonic()
    stalled = sum(1 for c in talking if c.is_connecting and now - c.since > _STALLED_S)
    places = fanout - len(talking) + stalled
    starting = sum(1 for c in talking if c.is_connecting) - stalled
    while waiting and places > 0 and starting < _STARTING:
        places -= 1
        starting += 1
        yield waiting.popleft()


@contextlib.contextmanager
def _given(stdin: Stdin, hosts: Iterable[Host]) -> Iterator[Callable[[Host], int]]:
    """Yield a function that opens a host's input. The input is a file, so that no byte of it passes through here."""
    if isinstance(stdin, Path):
        yield lambda _: os.open(stdin, os.O_RDONLY)
        return
    wanted = {h: stdin(h) for h in hosts} if callable(stdin) else dict.fromkeys(hosts, stdin)
    with contextlib.ExitStack() as files:
        names = {b"": os.devnull}
        for given in wanted.values():
            if given not in names:
                file = files.enter_context(tempfile.NamedTemporaryFile(prefix="stdin-", dir=scratch.folder()))
                file.write(given)
                file.flush()
                names[given] = file.name
        yield lambda host: os.open(names[wanted[host]], os.O_RDONLY)


def _allow_files(wanted: int) -> None:
    """Raise this process's limit of open files as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted + 64:
        limit = wanted + 64 if hard == resource.RLIM_INFINITY else min(wanted + 64, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))


def wait_until(condition: Callable[[], bool], timeout_s: float, pause_s: float = 0.05) -> bool:
    """Return True once `condition` is true. Return False if that takes longer than the time limit."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True

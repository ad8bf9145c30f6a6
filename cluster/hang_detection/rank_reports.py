"""Listener for the rank reports of a job's hosts: a program on each host sends one every few seconds."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor, FanoutProgress
from cluster.ssh.limits import Limits
from cluster.ssh.onhost.frame import Frames
from cluster.ssh.program import ask, program

EVERY_S = 3.0  # between two reports of a host
_FOR_S = 60.0  # after which the program is sent again, also to hosts that were unreachable
_REPORTER = "cluster.hang_detection.onhost.beats"
_LAST = Limits(connect_s=3, total_s=6)
_LIMITS = Limits(connect_s=10, total_s=_FOR_S + 30)
_NO_WORK = {"DLAMI_SERVICE": "1"}  # for the cluster's guard: a watch alone must not keep a cluster with a hung job

_FAREWELL_S = 3.0


class _Over(Exception):
    """Exception that ends a fan-out from inside."""


class ReportListener:
    """Thread that passes on each host's rank reports, from `start` to `close`.

    The program is started again on a host that sends nothing. The programs end by themselves once this thread stops.
    """

    def __init__(self, hosts: Sequence[Host], job_id: str, attempt: int, heard: Callable[[Host, Any], None]) -> None:
        self._hosts, self._heard, self._of = tuple(hosts), heard, (job_id, attempt)
        self._cluster = Cluster(name=job_id, hosts=self._hosts, folder=Path(), shared="", project="")
        self._program = program(_REPORTER, *self._of, EVERY_S, _FOR_S)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="looks", daemon=True)

    def start(self) -> None:
        """Start to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Closes what the thread has open, unless that takes more than 3 seconds."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(_FAREWELL_S)

    def ask_once_more(self) -> None:
        """Stop listening, and query every host for a last report: its ranks may have made steps since the last one."""
        self.close()
        with contextlib.suppress(ClusterError), Executor(self._cluster) as reach:
            _, answers = ask(reach, self._hosts, program(_REPORTER, *self._of, EVERY_S, 0.0), limits=_LAST)
            for host, said in answers.items():
                self._heard(host, said)

    def _listen(self) -> None:
        with contextlib.suppress(_Over), Executor(self._cluster) as reach:
            while not self._end.is_set():
                frames, began = {h: Frames() for h in self._hosts}, time.monotonic()

                def note(host: Host, stream: str, data: bytes, frames: dict[Host, Frames] = frames) -> None:
                    if stream == "stdout":
                        for said in frames[host].feed(data):
                            self._heard(host, said)

                try:
                    results = reach.run(
                        self._hosts,
                        lambda _: self._program.command(),
                        stdin=self._program.stdin,
                        limits=_LIMITS,
                        environment=_NO_WORK,
                        on_output=note,
                        on_progress=self._go_on,
                        run_id=None,
                    )
                    for host, result in results.items():
                        if not result.ok:
                            print(f"watching: {host}: {result.problem}", file=sys.stderr, flush=True)
                except _Over:
                    raise
                except Exception as e:  # no descriptor free, say: ask again
                    print(f"watching: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
                self._end.wait(began + EVERY_S - time.monotonic())

    def _go_on(self, _: FanoutProgress) -> None:
        if self._end.is_set():
            raise _Over

"""Hosts that are folders of this machine: what they are sent runs in a shell here, at home in the host's folder."""

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cluster.hosts import Host
from cluster.ssh.fanout import Executor
from cluster.ssh.result import FanOut, Result
from tests.conftest import PATIENCE_S


class ReachHere(Executor):
    """Without a connection, and without root: where it is asked for, AS_ROOT says so to what runs."""

    def __init__(self, homes: Path, away: Mapping[str, str] | None = None, *, one_home: bool = False) -> None:
        """away: hosts by address that fail, with what they say then. one_home: all have the same, as on a file server."""
        self.homes, self.away, self.one_home = homes, away or {}, one_home

    def close(self) -> None:
        """There is nothing to let go of."""

    def home(self, host: Host) -> Path:
        """A host's folder."""
        home = self.homes if self.one_home else self.homes / host.address
        home.mkdir(parents=True, exist_ok=True)
        return home

    def run(
        self,
        hosts: Iterable[Host],
        command: str | Callable[[Host], str],
        *,
        stdin: Any = b"",
        sudo: bool = False,
        **_: Any,
    ) -> FanOut:
        """One host after the other."""
        return FanOut(
            "here", {h: self._one(h, command if isinstance(command, str) else command(h), stdin, sudo) for h in hosts}
        )

    def _one(self, host: Host, command: str, stdin: Any, sudo: bool) -> Result:
        if host.address in self.away:
            return Result(host=host, exit_code=255, stderr=self.away[host.address].encode(), seconds=0.0)
        done = subprocess.run(
            ["bash", "-c", command],
            input=stdin.read_bytes() if isinstance(stdin, Path) else stdin,
            cwd=self.home(host),
            env={**os.environ, "HOME": str(self.home(host)), "AS_ROOT": "yes" if sudo else ""},
            capture_output=True,
            timeout=PATIENCE_S,
        )
        return Result(host=host, exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr, seconds=0.0)

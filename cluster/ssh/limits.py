"""Time limits and environment of a remote command, and a command on this machine that needs no SSH."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.ssh.secret_variables import why_secret
from cluster.ssh.start_mark import PRINT_MARK

OnOutput = Callable[[Host, str, bytes], None]  # the host, "stdout" or "stderr", the data


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Time limits on each part of a remote command, in seconds. None: no limit."""

    connect_s: float = 10.0
    silence_s: float | None = None  # without a byte of output
    total_s: float | None = None  # from the command's start to its end


def with_environment(command: str, variables: dict[str, str], *, sudo: bool = False) -> str:
    """Return the shell command with these variables set for it and its children. sudo: as root.

    It first prints the mark of its start, which shows that the login shell has come to the command.
    """
    pairs = shlex.join(f"{k}={v}" for k, v in variables.items())
    text = f"env {pairs} sh -c {shlex.quote(command)}"
    return f"exec sh -c {shlex.quote(f'{PRINT_MARK}; {_AS_ROOT if sudo else _AS_USER}')} sh {text}"


_AS_USER = 'exec "$@"'
_AS_ROOT = '[ "$(id -u)" = 0 ] && exec "$@"; exec sudo -n "$@"'  # root's own account may have no sudo


def check_environment(pairs: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE words as a mapping. Raises ConfigError for any other word, and for what looks like a secret."""
    variables = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigError(f"{pair!r} is not NAME=VALUE")
        if why := why_secret(name, value):
            raise ConfigError(
                f"{name} {why} would be visible in the process list of every host: "
                "give the hosts a role or a file instead"
            )
        variables[name] = value
    return variables


class LocalCommand:
    """Shell command on this machine, in its own process group. It has the interface of `mux.Channel`, without SSH."""

    is_open = True
    refused: str | None = None

    def __init__(self, command: str, stdin: int) -> None:
        self.exit_code: int | None = None
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout and self._process.stderr
        self.stdout, self.stderr = self._process.stdout.fileno(), self._process.stderr.fileno()
        self.control, end = os.pipe()
        threading.Thread(target=self._watch, args=(end,), daemon=True).start()

    def read_control(self) -> bool:
        """Record the exit code, negative for a signal, and return False. It is called once the command has ended."""
        self.exit_code = self._process.wait()
        return False

    def close(self) -> None:
        """Kill the command if it still runs, and close its streams."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self.control)
        assert self._process.stdout and self._process.stderr
        self._process.stdout.close()
        self._process.stderr.close()

    def _watch(self, end: int) -> None:
        self._process.wait()
        os.close(end)

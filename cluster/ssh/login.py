"""Login to one host for a person: a shell, or a command with a terminal, over a Fabric connection.

The connection is the operator's own and ends with the login. Where the host has no open port, it runs inside the
connection that tasks share: each of its own would be one more session of the AWS CLI.
"""

import contextlib
import os
import signal
import socket
import sys
import termios
from collections.abc import Iterator
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor

_AGENT_S = 10


def login(cluster: Cluster, host: Host, command: str = "", *, forward_agent: bool = False) -> int:
    """Open a shell on the host, or run one command there as a shell reads it. Return the exit code.

    Raises ClusterError if the host cannot be reached, ConfigError if there is no agent to forward.
    """
    if host.is_local:
        raise ClusterError(f"{host} is this machine: you are logged in")
    if forward_agent:
        check_agent()
    with (
        _ended_by_signals(),
        Executor(cluster) as reach,
        _connection(reach, cluster, host, forward_agent) as connection,
    ):
        connection.open()
        if not command:
            return int(connection.shell().exited)
        done = connection.run(command, pty=sys.stdin.isatty(), warn=True, in_stream=_stdin())
        return int(done.exited)


def check_agent() -> None:
    """Raise ConfigError if no ssh-agent answers here.

    If a dead agent was forwarded, programs on the host that ask it would hang for ever.
    """
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(_AGENT_S)
        try:
            agent.connect(os.environ.get("SSH_AUTH_SOCK", ""))
        except OSError:
            raise ConfigError(
                "there is no ssh-agent to forward here: start one (eval $(ssh-agent); ssh-add) and try again"
            ) from None


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let TERM and HUP end this process at once. Fabric would pass them on as a Ctrl-C and stay.

    Restores the terminal's settings first.
    """
    saved = termios.tcgetattr(sys.stdin) if sys.stdin and sys.stdin.isatty() else None

    def leave(number: int, _frame: Any) -> None:
        if saved:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, saved)
        os._exit(128 + number)

    before = {s: signal.signal(s, leave) for s in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stdin() -> Any:
    """Return None to pass a terminal's input to the command.

    Return False to pass no input: a script's stays its own.
    """
    return None if sys.stdin.isatty() else False


def _connection(reach: Executor, cluster: Cluster, host: Host, forward_agent: bool) -> Any:
    """Return a Fabric connection, not yet open."""
    from cluster.ssh.fabric_connection import over_open_connection, own_connection

    if cluster.access.tunnel:
        return over_open_connection(reach, host, cluster.access, forward_agent=forward_agent)
    return own_connection(host, cluster.access, forward_agent=forward_agent)

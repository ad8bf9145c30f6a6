"""One host for a person: a shell, or a command with a terminal, over a Fabric connection.

It is the operator's own and ends with it, but where no port is open: there it is inside the one that tasks share, since
each of its own would be one more session of the AWS CLI.
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
from cluster.ssh.fanout import Reach

_AGENT_S = 10


def login(cluster: Cluster, host: Host, command: str = "", *, forward_agent: bool = False) -> int:
    """A shell on the host, or one command there as a shell reads it; its exit code.

    Raises ClusterError if the host cannot be reached, ConfigError if there is no agent to forward.
    """
    if host.is_local:
        raise ClusterError(f"{host} is this machine: you are logged in")
    if forward_agent:
        check_agent()
    with _ended_by_signals(), Reach(cluster) as reach, _connection(reach, cluster, host, forward_agent) as connection:
        connection.open()
        if not command:
            return int(connection.shell().exited)
        done = connection.run(command, pty=sys.stdin.isatty(), warn=True, in_stream=_stdin())
        return int(done.exited)


def check_agent() -> None:
    """Raises ConfigError if no ssh-agent answers here: forwarded, it would let who asks it there wait for ever."""
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
    """While it lasts TERM and HUP end this process at once: Fabric would pass them on as a Ctrl-C and stay.

    The terminal is left as it was found.
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
    """A terminal's input goes to the command; a script's is its own."""
    return None if sys.stdin.isatty() else False


def _connection(reach: Reach, cluster: Cluster, host: Host, forward_agent: bool) -> Any:
    """A Fabric connection, not yet open."""
    from cluster.ssh.fabric_connection import over_open_connection, own_connection

    if cluster.access.tunnel:
        return over_open_connection(reach, host, cluster.access, forward_agent=forward_agent)
    return own_connection(host, cluster.access, forward_agent=forward_agent)

"""One host for a person: a shell, or a command with a terminal, over a Fabric connection.

Fan-outs go another way (`fanout`): there connections are shared, here one is the operator's own and ends with it.
"""

import contextlib
import logging
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
from cluster.ssh.failure import failure_to_connect
from cluster.ssh.options import Way, way_to

CONNECT_S = 10


def login(cluster: Cluster, host: Host, command: str = "", *, forward_agent: bool = False) -> int:
    """A shell on the host, or one command there as a shell reads it; its exit code.

    Raises ClusterError if the host cannot be reached, ConfigError if there is no agent to forward.
    """
    if host.is_local:
        raise ClusterError(f"{host} is this machine: you are logged in")
    if forward_agent:
        check_agent()
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # its errors reach us as exceptions
    with _ended_by_signals(), _connection(way_to(host, cluster.access), forward_agent) as connection:
        try:
            connection.open()
        except Exception as e:
            raise ClusterError(f"{host}: {failure_to_connect(_complaint(e), cluster.access, CONNECT_S)}") from e
        if not command:
            return int(connection.shell().exited)
        done = connection.run(command, pty=sys.stdin.isatty(), warn=True, in_stream=_stdin())
        return int(done.exited)


def check_agent() -> None:
    """Raises ConfigError if no ssh-agent answers here: forwarded, it would let who asks it there wait for ever."""
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(CONNECT_S)
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


def _connection(way: Way, forward_agent: bool = False) -> Any:
    """A Fabric connection, not yet open, that trusts only host keys it knows."""
    import paramiko
    from fabric import Connection

    access = way.access
    keys = {"key_filename": str(access.key)} if access.key else {}
    connection = Connection(
        way.address,
        user=access.user,
        port=access.port,
        forward_agent=forward_agent,
        connect_timeout=CONNECT_S,
        gateway=_connection(way.gateway) if way.gateway else None,
        connect_kwargs={**keys, "banner_timeout": CONNECT_S, "auth_timeout": CONNECT_S},
    )
    connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    if access.known_hosts:
        connection.client.load_host_keys(str(access.known_hosts))
    else:
        connection.client.load_system_host_keys()
    return connection


def _complaint(e: Exception) -> str:
    """A failed connection in the words that ssh has for it."""
    import paramiko

    if isinstance(e, paramiko.BadHostKeyException):
        return "REMOTE HOST IDENTIFICATION HAS CHANGED"
    if "not found in known_hosts" in str(e):
        return "Host key verification failed"
    if isinstance(e, TimeoutError) or "timeout" in str(e).lower():
        return "timed out"
    if isinstance(e, paramiko.AuthenticationException):
        return "Permission denied"
    if isinstance(e, ConnectionRefusedError | paramiko.ssh_exception.NoValidConnectionsError):
        return "Connection refused"
    return str(e) or type(e).__name__

"""Fabric connection to a host that follows our rules: known host keys only, and the cluster's key and gateway.

Fan-outs use `fanout` instead. This is for one host and a person, and for those who know Fabric.
"""

import logging
from collections.abc import Callable
from typing import Any

import fabric
import paramiko

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.inventory import SshSettings
from cluster.ssh import mux, proxy
from cluster.ssh.failure import failure_to_connect
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import marked, output_between_marks
from cluster.ssh.options import Route, key_of, lending, way_to

CONNECT_S = 10
_FORWARD_S = 10.0
logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # its errors reach us as exceptions
_WHERE_ITS_SSHD_IS = 'echo "$SSH_CONNECTION"'  # client, port, server, port, as the host sees this very connection


class Connection(fabric.Connection):
    """Fabric connection that raises a ClusterError with our usual messages if it cannot connect."""

    def __init__(self, way: Route, *, dial: Callable[[], Any] | None = None, forward_agent: bool = False) -> None:
        """Prepare a connection, which is not open yet.

        dial: makes the socket to the host. Without it, the connection is made from this machine or through the gateway.
        """
        access, key = way.access, key_of(way.access)
        keys = {"key_filename": str(key), "allow_agent": access.key is not None} if key else {}
        super().__init__(
            way.address,
            user=access.user,
            port=access.port,
            gateway=True if dial else Connection(way.gateway) if way.gateway else None,
            forward_agent=forward_agent,
            connect_timeout=CONNECT_S,
            connect_kwargs={**keys, "banner_timeout": CONNECT_S, "auth_timeout": CONNECT_S},
        )
        self._set(_dial=dial, _access=access)
        self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        if access.known_hosts:
            self.client.load_host_keys(str(access.known_hosts))
        else:
            self.client.load_system_host_keys()

    def open_gateway(self) -> Any:
        """Return the socket to the host."""
        return self._dial() if self._dial else super().open_gateway()

    def open(self) -> Any:
        """Connect, unless the connection is open. Raises ClusterError if the host cannot be reached."""
        try:
            return super().open()
        except ClusterError:
            raise
        except Exception as e:
            raise ClusterError(f"{self.host}: {failure_to_connect(_complaint(e), self._access, CONNECT_S)}") from e


def own_connection(host: Host, access: SshSettings, *, forward_agent: bool = False) -> Connection:
    """Return a separate connection, from this machine or through the gateway. It ends with this process."""
    return Connection(way_to(host, access), forward_agent=forward_agent)


def over_open_connection(
    reach: Executor, host: Host, access: SshSettings, *, forward_agent: bool = False
) -> Connection:
    """Return a connection inside the one that all tasks share. It needs no other route to the host."""
    way = way_to(host, access)

    def dial() -> mux.Forwarded:
        asked = reach.run([host], marked(_WHERE_ITS_SSHD_IS), limits=Limits(connect_s=CONNECT_S, total_s=CONNECT_S))
        words = (output_between_marks(asked.check()[host]) or "").split()
        address, port = (words[2], int(words[3])) if len(words) == 4 else ("localhost", access.port or 22)
        if access.tunnel and access.tunnel.lends_key:
            _lend(host, way, connection.user)
        return mux.Forwarded(way.socket, address, port, _FORWARD_S)

    connection = Connection(way, dial=dial, forward_agent=forward_agent)
    return connection


def _lend(host: Host, way: Route, user: str) -> None:
    try:
        proxy.lend(user=user, **lending(way))
    except RuntimeError as e:
        raise ClusterError(f"{host}: {e}") from e


def _complaint(e: Exception) -> str:
    """Return a failure to connect in the words that ssh has for it."""
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

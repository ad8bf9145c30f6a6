"""Loopback port of this machine that leads to a port of the master, over the open SSH connection."""

import contextlib
import select
import socket
import socketserver
import ssl
import threading
from pathlib import Path

from cluster.ssh.mux import Forwarded

_CONNECT_S = 10.0


class LocalPort:
    """Loopback server that forwards each connection to `port` on the master's loopback, until it is closed.

    It runs in this process. Nothing stays behind in the SSH connection, however this process ends.
    """

    def __init__(self, connection: Path, port: int) -> None:
        """Open the port. connection: the control socket of the connection to the master."""

        class ForwardHandler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with (
                    contextlib.suppress(OSError),  # the client notices: its connection is closed
                    Forwarded(connection, "127.0.0.1", port, _CONNECT_S) as there,
                ):
                    join(self.request, there)

        self._server = _ForwardServer(("127.0.0.1", 0), ForwardHandler)
        self.number = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> "LocalPort":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _ForwardServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64  # a browser opens many connections at once


def join(one: socket.socket, other: socket.socket) -> None:
    """Copy data between two sockets in both directions until both have ended. Raises OSError."""
    goes_to = {one: other, other: one}
    while goes_to:
        for source in select.select(list(goes_to), [], [])[0]:
            data = source.recv(65536)
            # Already decrypted, so select does not report it
            while data and isinstance(source, ssl.SSLSocket) and source.pending():
                data += source.recv(65536)
            if data:
                goes_to[source].sendall(data)
            else:
                with contextlib.suppress(OSError):
                    goes_to.pop(source).shutdown(socket.SHUT_WR)

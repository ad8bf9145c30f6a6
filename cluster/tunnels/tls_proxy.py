"""TLS proxy from a port of the master's address to a page on loopback, for clients of the allowed networks."""

import contextlib
import hashlib
import hmac
import ipaddress
import secrets
import socket
import socketserver
import ssl
import threading
from pathlib import Path
from typing import Any

from cluster.broadcast.certificate import certificate
from cluster.errors import ConfigError
from cluster.files import write_atomically
from cluster.tunnels.local_port import join

DAYS = 30  # validity of its certificate
_HANDSHAKE_S = 10.0
_MOST = 200  # most connections at once
_ALGORITHM = "sha256"  # hash of the stored password, in Jupyter's format


def network(allow: str) -> Any:
    """Parse the network that is let in. Raises ConfigError if it is malformed, or everybody."""
    try:
        found = ipaddress.ip_network(allow)
    except ValueError as e:
        raise ConfigError(f"--allow {allow}: {e}; as in 203.0.113.7/32") from None
    if found.prefixlen == 0:
        raise ConfigError(f"--allow {allow} is everybody: give your own address, as in 203.0.113.7/32")
    return found


def hashed(password: str) -> str:
    """Return the stored form of a password: algorithm, salt, digest."""
    salt = secrets.token_hex(16)
    return f"{_ALGORITHM}:{salt}:{hashlib.new(_ALGORITHM, password.encode() + salt.encode()).hexdigest()}"


def is_right(password: str, kept: str) -> bool:
    """Return True if the password matches its stored form."""
    algorithm, salt, digest = kept.split(":")
    return hmac.compare_digest(hashlib.new(algorithm, password.encode() + salt.encode()).hexdigest(), digest)


class Front:
    """TLS server that forwards clients from the allowed networks to a port on loopback, until it is closed."""

    def __init__(
        self, address: str, port: int, allow: str, to_port: int, folder: Path, own: tuple[str, str] | None = None
    ) -> None:
        """Open the port. Raises OSError if it is taken.

        Args:
            allow: a network, or several with commas between them.
            folder: takes the certificate and its key.
            own: these two, as PEM; without them new ones are made.
        """
        allowed = [network(one) for one in allow.split(",")]
        pem, key = own or certificate(f"dlami {socket.gethostname()}", DAYS)
        write_atomically(folder / "certificate.pem", pem)
        write_atomically(folder / "key.pem", key, mode=0o600)
        self.fingerprint = fingerprint(pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        places = threading.BoundedSemaphore(_MOST)

        class ProxyHandler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError), places:
                    self.request.settimeout(_HANDSHAKE_S)
                    with context.wrap_socket(self.request, server_side=True) as browser:
                        browser.settimeout(None)
                        with socket.create_connection(("127.0.0.1", to_port)) as page:
                            join(browser, page)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, block_on_close, allow_reuse_address = True, False, True

            def verify_request(self, request: Any, client_address: Any) -> bool:
                """Return True if the client is allowed. Others do not even see the certificate."""
                address = ipaddress.ip_address(client_address[0])
                return any(address in one for one in allowed)

        self._server = Server((address, port), ProxyHandler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections."""
        self._server.shutdown()
        self._server.server_close()


def fingerprint(pem: str) -> str:
    """Return a certificate's SHA-256, as browsers show it."""
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest().upper()
    return ":".join(digest[n : n + 2] for n in range(0, len(digest), 2))

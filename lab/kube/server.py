"""HTTPS server of the simulated API on this machine's loopback, for clients with the token of its kubeconfig."""

import base64
import contextlib
import hmac
import http.server
import json
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Protocol

from cluster.broadcast.certificate import certificate
from cluster.files import write_atomically, write_json
from lab.kube import requests
from lab.kube.api_errors import Refusal
from lab.kube.kinds import Document, discovery
from lab.kube.port_forward import PROTOCOL, PortForward
from lab.kube.store import Store
from lab.kube.watches import watched
from lab.kube.websocket import WebSocket, accepted

_MOST_S = 3600.0  # idle time of a connection
_LOOK_S = 0.1  # how often a followed log is read


class Pods(Protocol):
    """Access to pods' logs and ports."""

    def log(self, namespace: str, pod: str, container: str, *, previous: bool) -> Path:
        """Return the file of a container's output. Raises Refusal if it does not exist."""

    def is_running(self, namespace: str, pod: str, container: str) -> bool:
        """Return True if the container runs, so that its log may grow."""

    def connected(self, namespace: str, pod: str, port: int) -> socket.socket:
        """Return a connection to a port of the pod's loopback. Raises Refusal or OSError if no process listens."""


class ApiServer(http.server.ThreadingHTTPServer):
    """API server of a store, until it is closed. `kubeconfig` is the path of kubectl's configuration."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, store: Store, pods: Pods, folder: Path, name: str) -> None:
        """Args:
        folder: for certificate, key and kubeconfig, which only their owner can read.
        name: of the cluster in the kubeconfig.
        """
        super().__init__(("127.0.0.1", 0), Handler)
        self.store, self.pods, self.token = store, pods, secrets.token_urlsafe(32)
        own, key = certificate("dlami lab", addresses=("127.0.0.1",))
        write_atomically(folder / "api.pem", own + key, mode=0o600)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(folder / "api.pem")
        self.kubeconfig = folder / "kubeconfig"
        write_json(self.kubeconfig, self._config(own, name), mode=0o600)
        self.ended = threading.Event()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True, name="api").start()

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. Its TLS handshake happens later, in the connection's own thread."""
        connection, address = super().get_request()
        connection.settimeout(_MOST_S)
        return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def lets_in(self, token: str) -> bool:
        """Return True if this token is the API's."""
        return hmac.compare_digest(token, self.token)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a connection, such as a client that went away."""

    def close(self) -> None:
        """End all watches and stop serving."""
        self.ended.set()
        self.shutdown()
        self.server_close()

    def _config(self, own: str, name: str) -> Document:
        authority = base64.b64encode(own.encode()).decode()
        server = {"server": f"https://127.0.0.1:{self.server_address[1]}", "certificate-authority-data": authority}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": server}],
            "users": [{"name": name, "user": {"token": self.token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }


class Handler(http.server.BaseHTTPRequestHandler):
    """Handler of one client connection."""

    protocol_version = "HTTP/1.1"
    server: ApiServer

    def setup(self) -> None:
        """Disable Nagle's algorithm, so that small answers are sent at once."""
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        """Answer with an object, a list, a watch, a log or a discovery document."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Create an object."""
        self._answer(lambda: (201, requests.create(self.server.store, self._request(), self._body())))

    def do_PUT(self) -> None:
        """Replace an object."""
        self._answer(lambda: (200, requests.replace(self.server.store, self._request(), self._body())))

    def do_PATCH(self) -> None:
        """Patch an object."""
        kind = self.headers.get("Content-Type", "").partition(";")[0]
        self._answer(lambda: (200, requests.patch(self.server.store, self._request(), self._body(), kind)))

    def do_DELETE(self) -> None:
        """Delete objects."""
        self._answer(lambda: (200, requests.delete(self.server.store, self._request(), self._body())))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the store records all changes."""

    def _answer(self, respond: Any) -> None:
        try:
            if not self.server.lets_in(self.headers.get("Authorization", "").removeprefix("Bearer ")):
                self._body()
                raise Refusal(401, "Unauthorized", "Unauthorized")
            code, document = respond()
        except Refusal as e:
            code, document = e.code, e.status()
        except (BrokenPipeError, ConnectionError, ssl.SSLError):
            self.close_connection = True
            return
        if document is not None:
            text = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def _request(self) -> requests.Request:
        return requests.parsed(self.path)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _get(self) -> tuple[int, Document | None]:
        path = self.path.partition("?")[0].strip("/")
        if path in ("healthz", "livez", "readyz"):
            return 200, {"status": "ok"}
        if found := discovery(path):
            return 200, found
        request = self._request()
        if request.part == "log":
            self._stream("text/plain", self._log(request))
        elif request.part == "portforward":
            self._forward(request)
        elif request.is_watch:
            self._stream("application/json", watched(self.server.store, request, self.server.ended))
        else:
            return 200, requests.read(self.server.store, request)
        return 200, None

    def _forward(self, request: requests.Request) -> None:
        """Turn the connection into a port-forward, until one side ends it."""
        key = self.headers.get("Sec-WebSocket-Key", "")
        if not key or PROTOCOL not in self.headers.get("Sec-WebSocket-Protocol", ""):
            raise Refusal(400, "BadRequest", f"ports are forwarded by WebSocket here, with {PROTOCOL}")
        self.server.store.get(request.kind, request.namespace, request.name)
        self.send_response(101)
        agreed = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": accepted(key)}
        for name, value in {**agreed, "Sec-WebSocket-Protocol": PROTOCOL}.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True

        def connected(port: int) -> socket.socket:
            return self.server.pods.connected(request.namespace, request.name, port)

        with contextlib.suppress(ValueError):  # invalid SPDY ends the connection
            PortForward(WebSocket(self.connection), connected, self.server.ended).serve()

    def _stream(self, content_type: str, parts: Generator[bytes, None, None]) -> None:
        """Send the parts as they come. An error before the first part becomes the answer."""
        first = next(parts)  # an error here becomes the answer
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.closing(parts):
            self._chunk(first)
            for part in parts:
                self._chunk(part)
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, part: bytes) -> None:
        if part:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()

    def _log(self, request: requests.Request) -> Generator[bytes, None, None]:
        """Yield a container's output; with `follow`, until it ends."""
        query, where = request.query, (request.namespace, request.name, request.query.get("container", ""))
        path = self.server.pods.log(*where, previous=query.get("previous") == "true")
        yield b""
        with path.open("rb") as file:
            if (lines := int(query.get("tailLines", -1))) >= 0:
                whole = file.read()
                yield b"".join(whole.splitlines(keepends=True)[-lines:] if lines else [])
            while not self.server.ended.is_set():
                runs = query.get("follow") == "true" and self.server.pods.is_running(*where)
                while part := file.read(1 << 16):
                    yield part
                if not runs:
                    return
                time.sleep(_LOOK_S)

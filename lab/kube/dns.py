"""DNS server of the cluster on the lab's bridge: pods by host name and Service, only while they are ready."""

import contextlib
import socket
import socketserver
import struct
import threading
from typing import Any

from lab.kube.kinds import kind
from lab.kube.mpijob_status import is_true
from lab.kube.selectors import has_labels
from lab.kube.store import Store

_A, _IN, _NO_SUCH_NAME, _TTL_S = 1, 1, 3, 1


def addresses(store: Store, name: str) -> list[str] | None:
    """Return the addresses of a name like `web-0.web.default.svc` or `web.default.svc.cluster.local`.

    Return None if the name does not exist. A Service resolves to its pods' addresses, because nothing here forwards.
    """
    words = name.lower().rstrip(".").removesuffix(".cluster.local").split(".")
    if len(words) not in (3, 4) or words[-1] != "svc":
        return None
    *host, service_name, space, _ = words
    service = store.find(kind("Service"), space, service_name)
    if service is None:
        return None
    spec = service["spec"]
    found = []
    for pod in store.listed(kind("Pod"), space):
        status = pod.get("status") or {}
        counts = spec.get("publishNotReadyAddresses") or is_true(status, "Ready")
        if not (spec.get("selector") and has_labels(pod, spec["selector"]) and counts and status.get("podIP")):
            continue
        if host and (pod["spec"].get("hostname"), pod["spec"].get("subdomain")) != (host[0], service_name):
            continue
        found.append(str(status["podIP"]))
    return found or (None if host else [])


class Names(socketserver.ThreadingUDPServer):
    """DNS server for the names of a store, until it is closed."""

    daemon_threads = True

    def __init__(self, store: Store, address: str) -> None:
        super().__init__((address, 53), _Question)
        self.store = store
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True, name="names").start()

    def close(self) -> None:
        """Stop the server."""
        self.shutdown()
        self.server_close()


class _Question(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        question, port = self.request
        with contextlib.suppress(OSError, ValueError, IndexError, struct.error):
            port.sendto(answer(self.server.store, question), self.client_address)

    server: Any


def answer(store: Store, question: bytes) -> bytes:
    """Return the datagram that answers a query with a single question (RFC 1035, section 4)."""
    number, flags = struct.unpack("!HH", question[:4])
    labels, at = [], 12
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    asked = question[12 : at + 5]
    kind_asked, _ = struct.unpack("!HH", question[at + 1 : at + 5])
    found = addresses(store, ".".join(labels))
    records = [
        struct.pack("!HHHIH", 0xC00C, _A, _IN, _TTL_S, 4) + socket.inet_aton(a)
        for a in (found or [] if kind_asked == _A else [])
    ]
    code = _NO_SUCH_NAME if found is None else 0
    head = struct.pack("!HHHHHH", number, 0x8480 | flags & 0x0100 | code, 1, len(records), 0, 0)
    return head + asked + b"".join(records)

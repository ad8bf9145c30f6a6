"""The lab's API of Kubernetes: the real kubectl on it, watches, selectors, patches and refusals."""

import contextlib
import os
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from eks.kubectl import Kubectl
from lab.kube.kinds import kind
from lab.kube.server import ApiServer
from lab.kube.store import Store
from tests.conftest import PATIENCE_S

Ask = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def kubectl(api: ApiServer, kube: Any, tmp_path: Path) -> Ask:
    """kubectl on it."""

    def ask(*words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [kube.kubectl, "--kubeconfig", api.kubeconfig, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={**os.environ, "KUBECACHEDIR": str(tmp_path / "cache")},
        )

    return ask


def config(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"a": "1"}}


def test_kubectl_creates_lists_changes_and_deletes(kubectl: Ask, store: Store) -> None:
    """By apply, by labels, by merge patch, by name; a second apply changes what is different and nothing else."""
    both = yaml.safe_dump_all([config("one", tier="web"), config("two", tier="db")])
    assert 0 == kubectl("apply", "-f", "-", stdin=both).returncode
    again = kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([{**config("one", tier="web"), "data": {"b": "2"}}]))

    assert "configmap/one configured\n" == again.stdout
    assert {"b": "2"} == store.get(kind("ConfigMap"), "default", "one")["data"]
    assert "configmap/two\n" == kubectl("get", "cm", "-l", "tier in (db)", "-o", "name").stdout
    assert 0 == kubectl("patch", "cm", "two", "--type=merge", "-p", '{"data":{"a":null,"c":"3"}}').returncode
    assert {"c": "3"} == store.get(kind("ConfigMap"), "default", "two")["data"]
    assert "configmap/two labeled\n" == kubectl("label", "cm", "two", "new=yes").stdout
    assert "two" in kubectl("delete", "cm", "-l", "new=yes").stdout
    assert ["one"] == [d["metadata"]["name"] for d in store.listed(kind("ConfigMap"))]


class Mirror(socketserver.StreamRequestHandler):
    """Says all that it was told backwards, once that is over."""

    def handle(self) -> None:
        self.wfile.write(self.rfile.read()[::-1])


def test_kubectl_forwards_a_port(store: Store, operators_kubectl: None) -> None:
    """Two connections at once through our own way to kubectl, each with more than a frame holds, in both directions;
    one to a port where nobody listens ends, and with the `with` the port is closed."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mirror) as mirror:
        threading.Thread(target=mirror.serve_forever, daemon=True).start()
        port = mirror.server_address[1]
        container = {"name": "c", "image": "i", "ports": [{"name": "page", "containerPort": port}]}
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        meta = {"name": "web", "labels": {"app": "web"}}
        store.create(kind("Pod"), "default", {"metadata": meta, "spec": {"containers": [container]}, "status": ready})
        spec = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "page"}]}
        store.create(kind("Service"), "default", {"metadata": {"name": "web"}, "spec": spec})
        with Kubectl().forward("service/web", 80) as here:
            sent = [os.urandom(300_000) for _ in range(2)]
            with ThreadPoolExecutor() as both:
                assert [data[::-1] for data in sent] == list(both.map(lambda data: answer_at(here, data), sent))
        with pytest.raises(ConnectionRefusedError):
            answer_at(here, b"")
        mirror.shutdown()
        mirror.server_close()
        with Kubectl().forward("pod/web", port) as here, contextlib.suppress(OSError):  # closed before all is sent
            assert b"" == answer_at(here, b"nobody")


def answer_at(port: int, data: bytes) -> bytes:
    """All that comes back for this from a port of this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))

"""The lab's API of Kubernetes: the real kubectl on it, watches, selectors, patches and refusals."""

import contextlib
import json
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

from cluster.eks.kubectl import Kubectl
from cluster.lab.kube import cleaning
from cluster.lab.kube.kinds import kind
from cluster.lab.kube.names import addresses, answer
from cluster.lab.kube.patches import patched
from cluster.lab.kube.refusals import Refusal
from cluster.lab.kube.selectors import chosen
from cluster.lab.kube.server import Server
from cluster.lab.kube.store import Store
from cluster.lab.kube.volumes import number
from tests.conftest import PATIENCE_S, wait_for
from tests.eks.few_pods import FewPods

Ask = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def kubectl(api: Server, kube: Any, tmp_path: Path) -> Ask:
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


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (config("One"), "must be a DNS name"),
        ({**config("large"), "data": {"a": "x" * ((1 << 20) + 1)}}, "Too long: may not be more than 1048576 bytes"),
        (
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "empty"}, "spec": {}},
            "spec.containers: Required value",
        ),
        (
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "low"},
                "spec": {"priorityClassName": "none", "containers": [{"name": "c", "image": "i"}]},
            },
            "no PriorityClass with name none was found",
        ),
    ],
)
def test_what_the_api_refuses_is_refused_in_its_words(kubectl: Ask, store: Store, document: Any, said: str) -> None:
    """Nothing of it is kept."""
    done = kubectl("create", "-f", "-", stdin=json.dumps(document))

    assert 1 == done.returncode and said in done.stderr
    assert None is store.find(kind(document["kind"]), "default", document["metadata"]["name"])


def test_a_second_of_the_same_name_and_one_that_is_not_there(kubectl: Ask) -> None:
    """AlreadyExists and NotFound, as kubectl and scripts know them."""
    kubectl("create", "-f", "-", stdin=json.dumps(config("one")))

    assert "AlreadyExists" in kubectl("create", "-f", "-", stdin=json.dumps(config("one"))).stderr
    assert 'configmaps "two" not found' in kubectl("get", "cm", "two").stderr
    assert (
        'namespaces "away" not found'
        in kubectl("-n", "away", "create", "-f", "-", stdin=json.dumps(config("x"))).stderr
    )


def test_without_the_token_nothing_is_told(kubectl: Ask) -> None:
    """Whoever else is on this machine cannot start pods."""
    assert "You must be logged in to the server" in kubectl("get", "cm", "--token=guess").stderr


def test_kubectl_waits_for_a_change(kubectl: Ask, store: Store) -> None:
    """`wait` and `delete` watch: the first until a condition holds, the second until the object is gone."""
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}
    store.create(kind("Pod"), "default", pod)
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    later = threading.Timer(1.0, lambda: store.change(kind("Pod"), "default", "p", lambda d: {**d, "status": ready}))
    later.start()
    assert "pod/p condition met\n" == kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=300s").stdout

    def goes() -> None:
        wait_for(lambda: "deletionTimestamp" in store.get(kind("Pod"), "default", "p")["metadata"], 60, "it is to go")
        store.remove(kind("Pod"), "default", "p")

    going = threading.Thread(target=goes)
    going.start()
    assert 0 == kubectl("delete", "pod", "p", "--timeout=300s").returncode
    going.join()
    assert None is store.find(kind("Pod"), "default", "p")


def test_a_log_is_followed_to_the_containers_end(kubectl: Ask, store: Store, logs: FewPods) -> None:
    """What comes while one listens comes, and the end ends it; a container that has not begun is told so."""
    for name in ("talker", "starting"):
        pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        store.create(kind("Pod"), "default", pod)
    logs.file.write_text("one\ntwo\n")

    def end() -> None:
        with logs.file.open("a") as file:
            file.write("three\n")
        logs.runs.clear()

    threading.Timer(1.0, end).start()
    assert "one\ntwo\nthree\n" == kubectl("logs", "-f", "talker").stdout
    assert "three\n" == kubectl("logs", "talker", "--tail=1").stdout
    assert "waiting to start" in kubectl("logs", "starting").stderr


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


def test_what_is_owned_goes_with_its_owner_and_with_its_namespace(store: Store) -> None:
    """Dependents are deleted after their owner; a namespace ends when nothing is in it any more."""
    store.create(kind("Namespace"), "", {"metadata": {"name": "away"}})
    owner = store.create(kind("ConfigMap"), "away", config("owner"))
    owned = config("owned")
    owned["metadata"]["ownerReferences"] = [{"uid": owner["metadata"]["uid"]}]
    store.create(kind("ConfigMap"), "away", owned)
    store.delete(kind("ConfigMap"), "away", "owner")
    cleaning.sync(store)
    assert [] == store.listed(kind("ConfigMap"), "away")

    store.create(kind("ConfigMap"), "away", config("left"))
    store.delete(kind("Namespace"), "", "away")
    for _ in range(2):
        cleaning.sync(store)
    assert None is store.find(kind("Namespace"), "", "away")


def test_a_claim_is_bound_to_the_volume_that_fits(store: Store) -> None:
    """By its name, or by class and access modes; a class with a driver makes one; else it waits."""
    for name, modes in (("slow", ["ReadWriteOnce"]), ("wide", ["ReadWriteMany"])):
        spec = {"accessModes": modes, "csi": {"driver": "d", "volumeHandle": name}, "capacity": {"storage": "1Gi"}}
        store.create(kind("PersistentVolume"), "", {"metadata": {"name": name}, "spec": spec})
    resources = {"requests": {"storage": "1Gi"}}
    for name, more in {"by-mode": {}, "by-name": {"volumeName": "slow"}, "none": {"storageClassName": "no"}}.items():
        spec = {"accessModes": ["ReadWriteMany"], "resources": resources, **more}
        store.create(kind("PersistentVolumeClaim"), "default", {"metadata": {"name": name}, "spec": spec})
    cleaning.sync(store)

    claims = {d["metadata"]["name"]: d for d in store.listed(kind("PersistentVolumeClaim"))}
    assert {"by-mode": "wide", "by-name": "slow"} == {
        n: d["spec"]["volumeName"] for n, d in claims.items() if d["status"]["phase"] == "Bound"
    }
    assert "Pending" == claims["none"]["status"]["phase"]


def test_a_change_with_an_old_version_is_refused(store: Store) -> None:
    """Two writers do not undo each other's work."""
    read = store.create(kind("ConfigMap"), "default", config("one"))
    store.change(kind("ConfigMap"), "default", "one", lambda d: {**d, "data": {"a": "2"}})
    with pytest.raises(Refusal, match="has been modified"):
        store.change(kind("ConfigMap"), "default", "one", lambda _: {**read, "data": {"a": "3"}})


@pytest.mark.parametrize(
    ("selector", "takes"),
    [
        ("", True), ("app=web", True), ("app==web", True), ("app!=web", False), ("app", True), ("!app", False),
        ("app in (db, web)", True), ("app notin (db, web)", False), ("app=web,tier", False), ("tier!=x,app=web", True),
    ],
)  # fmt: skip
def test_labels_select(selector: str, takes: bool) -> None:
    assert takes is chosen({"metadata": {"labels": {"app": "web"}}}, selector)


def test_patches_merge_replace_and_step() -> None:
    """Lists whose entries have names are merged by these in a strategic patch, and replaced in a merge patch."""
    old = {"env": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}], "x": {"y": 1, "z": 2}}
    new = {"env": [{"name": "b", "value": "3"}, {"name": "c", "value": "4"}], "x": {"y": None}}

    assert {"env": new["env"], "x": {"z": 2}} == patched(old, new, "application/merge-patch+json")
    merged = patched(old, new, "application/strategic-merge-patch+json")
    assert ["1", "3", "4"] == [e["value"] for e in merged["env"]]
    steps = [{"op": "remove", "path": "/env/0"}, {"op": "add", "path": "/x/w", "value": 3}]
    assert {"env": old["env"][1:], "x": {"w": 3, "y": 1, "z": 2}} == patched(old, steps, "application/json-patch+json")


def test_quantities() -> None:
    assert [8 << 30, 500_000_000, 2, 0] == [number(q) for q in ("8Gi", "500M", "2", "0")]


def test_names_are_those_of_ready_pods_of_the_service(store: Store) -> None:
    """A pod's name is there while it is ready; the Service's gives all; anything else does not exist."""
    store.create(kind("Service"), "default", {"metadata": {"name": "net"}, "spec": {"selector": {"job": "net"}}})
    for n, is_ready in enumerate(("True", "False")):
        meta = {"name": f"net-{n}", "labels": {"job": "net"}}
        spec = {"hostname": f"net-{n}", "subdomain": "net", "containers": [{"name": "c", "image": "i"}]}
        status = {"podIP": f"10.0.0.{n + 1}", "conditions": [{"type": "Ready", "status": is_ready}]}
        store.create(kind("Pod"), "default", {"metadata": meta, "spec": spec, "status": status})

    assert (
        ["10.0.0.1"] == addresses(store, "net-0.net.default.svc") == addresses(store, "net.default.svc.cluster.local")
    )
    assert None is addresses(store, "net-1.net.default.svc") is addresses(store, "example.org")
    name = b"".join(bytes([len(p)]) + p for p in b"net-0.net.default.svc".split(b".")) + b"\0"
    asked = b"\x12\x34\x01\x00\x00\x01\0\0\0\0\0\0" + name + b"\0\1\0\1"
    assert answer(store, asked).endswith(bytes([0, 4, 10, 0, 0, 1])) and answer(store, asked).startswith(
        b"\x12\x34\x85"
    )

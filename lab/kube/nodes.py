"""Simulated nodes, all of them on this machine: they run the pods that are scheduled to them."""

import signal
import socket
import threading
from ipaddress import IPv4Network
from pathlib import Path

from cluster.errors import ConfigError
from lab.kube.api_errors import Refusal
from lab.kube.container import Container
from lab.kube.kinds import Document, kind
from lab.kube.pod import Pod
from lab.kube.root import Root
from lab.kube.scheduler import node_for
from lab.kube.store import Store, now
from lab.record import Lab, LabHost

_POD = kind("Pod")
_MOST_PODS = 500


class Kubelets:
    """Kubelets of all nodes: start each pod in the store, and end those that are deleted."""

    def __init__(self, store: Store, lab: Lab, root: Root, number: int) -> None:
        """Args:
        number: how many nodes, each with its own folders.
        """
        self._store, self._lab, self._root = store, lab, root
        self._pods: dict[str, Pod] = {}  # by uid
        self._next = 0
        self._lock = threading.Lock()
        self.names = tuple(f"lab-node-{n}" for n in range(number))
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": now()}
        address = {"type": "InternalIP", "address": lab.bridge_address}
        status = {"conditions": [ready], "addresses": [address], "capacity": {"pods": str(_MOST_PODS)}}
        for name in self.names:
            labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
            store.create(kind("Node"), "", {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status})

    def sync(self) -> None:
        """Run one pass over all pods."""
        listed = {p["metadata"]["uid"]: p for p in self._store.listed(_POD)}
        for uid, pod in listed.items():
            led = self._pods.get(uid)
            if led is None and "deletionTimestamp" not in pod["metadata"] and not _has_ended(pod):
                self._schedule(pod)
            elif "deletionTimestamp" in pod["metadata"] and (led is None or not led.is_alive()):
                self._forget(pod)
        with self._lock:
            for uid in [u for u, p in self._pods.items() if u not in listed and not p.is_alive()]:
                del self._pods[uid]

    def stop(self) -> None:
        """Kill every pod."""
        for pod in self._pods.values():
            pod.stop()
        for pod in self._pods.values():
            pod.join(timeout=60)

    def container(self, namespace: str, pod: str, name: str = "") -> Container:
        """Return a running container, by default the pod's first. Raises ConfigError."""
        found = self._led(namespace, pod)
        one = found.container(name) if found else None
        if one is None or not one.is_running:
            raise ConfigError(f"pod {namespace}/{pod} has no running container {name}".rstrip())
        return one

    def crash(self, namespace: str, pod: str, name: str = "") -> None:
        """Kill a container's first process, as the kernel does when memory runs out. Raises ConfigError."""
        self.container(namespace, pod, name).signal(signal.SIGKILL)

    def log(self, namespace: str, pod: str, container: str, *, previous: bool) -> Path:
        """Return the file of a container's output. Raises Refusal if it does not exist."""
        self._store.get(_POD, namespace, pod)
        found = self._led(namespace, pod)
        one = found.container(container) if found else None
        if one is None or one.restarts < int(previous):
            said = f'container "{container}" in pod "{pod}" is waiting to start: ContainerCreating'
            raise Refusal(400, "BadRequest", said)
        return one.previous_log if previous else one.log

    def connected(self, namespace: str, pod: str, port: int) -> socket.socket:
        """Return a connection to a port of the pod's loopback. Raises Refusal or OSError if no process listens."""
        found = self._led(namespace, pod)
        if found is None:
            raise Refusal(404, "NotFound", f"pod {namespace}/{pod} does not run")
        return found.connected(port)

    def is_running(self, namespace: str, pod: str, container: str) -> bool:
        """Return True if the container runs, so that its log may grow before a restart."""
        found = self._led(namespace, pod)
        one = found.container(container) if found else None
        return one is not None and one.is_running

    def _led(self, namespace: str, name: str) -> Pod | None:
        found = self._store.find(_POD, namespace, name)
        return self._pods.get(found["metadata"]["uid"]) if found else None

    def _schedule(self, pod: Document) -> None:
        """Schedule the pod to a node, or set the condition that no node fits."""
        placed = [p for p in self._store.listed(_POD) if p["spec"].get("nodeName") and not _has_ended(p)]
        if name := node_for(pod, self.names, placed):
            self._take(pod, name)
            return
        count = len(self.names)
        why = f"0/{count} nodes are available: {count} node(s) didn't match pod anti-affinity rules."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
        status = {"phase": "Pending", "conditions": [condition]}
        meta = pod["metadata"]
        self._store.change(_POD, meta["namespace"], meta["name"], lambda d: {**d, "status": status})

    def _take(self, pod: Document, node: str) -> None:
        meta = pod["metadata"]
        placed = self._store.change(
            _POD, meta["namespace"], meta["name"], lambda d: {**d, "spec": {**d["spec"], "nodeName": node}}
        )
        folder = self._lab.nodes / meta["uid"]
        made = Pod(self._store, self._lab, self._place(meta["name"]), placed, self._root, folder)
        with self._lock:
            self._pods[meta["uid"]] = made
        made.start()

    def _place(self, name: str) -> LabHost:
        """Return a free address that was not just given back, so that clients of an old pod do not reach a new one."""
        taken = {p.host.rank for p in self._pods.values()}
        number = next(n % _MOST_PODS for n in range(self._next, self._next + _MOST_PODS) if n % _MOST_PODS not in taken)
        self._next = number + 1
        return LabHost(rank=number, name=name, address=str(IPv4Network(self._lab.network)[1 + number]), slots=1)

    def _forget(self, pod: Document) -> None:
        """Remove a pod that has ended, unless a finalizer still holds it."""
        meta = pod["metadata"]
        if meta.get("finalizers"):
            return
        self._store.remove(_POD, meta["namespace"], meta["name"])


def _has_ended(pod: Document) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")

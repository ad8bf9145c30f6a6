"""Life of a pod from scheduling to its end, as kubelet runs it: volumes, containers, restarts, readiness, status."""

import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from cluster.ssh.fanout import wait_until
from lab.kube import environment, pod_status
from lab.kube.api_errors import Refusal
from lab.kube.container import Container, Started
from lab.kube.environment import ImageConfig
from lab.kube.kinds import Document, kind
from lab.kube.probes import Probes
from lab.kube.root import Root
from lab.kube.sandbox import Sandbox
from lab.kube.store import Store, seconds_since
from lab.kube.volumes import NotYet, Volumes
from lab.record import Lab, LabHost

_POD = kind("Pod")
_LOOK_S = 0.1
_FIRST_BACK_OFF_S, _MOST_BACK_OFF_S, _RESET_S = 10.0, 300.0, 600.0  # kubelet's, between starts of a container


class Pod(threading.Thread):
    """Thread that runs one pod until it ends, is deleted, or `stop` is called."""

    def __init__(self, store: Store, lab: Lab, host: LabHost, pod: Document, root: Root, folder: Path) -> None:
        """Args:
        host: name and address of the pod on the lab's network.
        folder: for the pod's own files.
        """
        super().__init__(daemon=True, name=f"pod {host.name}")
        self._store, self._lab, self.host, self._root, self._folder = store, lab, host, root, folder
        self._space, self._name, self.uid = (pod["metadata"][k] for k in ("namespace", "name", "uid"))
        self.document = pod
        self._volumes = Volumes(store, lab, pod, folder / "volumes")
        spec = pod["spec"]
        made = [
            Container(lab.name, folder / c["name"], c["name"], c["image"])
            for c in [*(spec.get("initContainers") or []), *spec["containers"]]
        ]
        inits = len(spec.get("initContainers") or [])
        self._inits, self.containers = made[:inits], made[inits:]
        self._probes: dict[str, Probes] = {}
        self._again_at: dict[str, float] = {}  # by container: when it may be started again
        self._back_off_s: dict[str, float] = {}
        self._sandbox = Sandbox(lab, host, folder)
        self._stopped = threading.Event()
        self._phase, self._why = "Pending", ("", "")
        self._told: Document = {}

    def run(self) -> None:
        """Run the pod from its start to its end."""
        try:
            self._live()
        except (OSError, ValueError, subprocess.SubprocessError) as e:
            self._phase, self._why = "Failed", ("StartError", str(e))
        finally:
            self._end_containers()
            self._sandbox.close()
            self._tell()
            shutil.rmtree(self._folder / "volumes", ignore_errors=True)

    def stop(self) -> None:
        """Kill the pod at once, without an update of its status, because the lab is being taken down."""
        self._stopped.set()
        for container in [*self._inits, *self.containers]:
            container.signal(signal.SIGKILL)

    def container(self, name: str) -> Container | None:
        """Return the container with this name; "" selects the first."""
        both = [*self.containers, *self._inits]
        return next((c for c in both if name in ("", c.name)), None)

    def connected(self, port: int) -> socket.socket:
        """Return a connection to a port of the pod's loopback.

        Raises OSError if no process listens or the pod does not run.
        """
        return self._sandbox.connected(port)

    def _live(self) -> None:
        if not self._prepare():
            return
        self._sandbox.open(environment.hostname(self.document), self._volumes.memory())
        for container in self._inits:
            while not _has_succeeded(container):
                if self._is_over():
                    return
                if not self._step(container) and not _has_succeeded(container):
                    self._phase, self._why = "Failed", ("Init:Error", f"{container.name} has failed")
                    return
                self._pause()
        self._phase = "Running"
        while not self._is_over():
            goes_on = [self._step(c) for c in self.containers]
            if not any(goes_on):
                return
            if all(c.restarts >= 0 for c in self.containers):
                self._refresh_volumes()
            self._pause()

    def _prepare(self) -> bool:
        """Wait for the volumes. Return False if the pod is deleted before they exist."""
        self._folder.mkdir(parents=True, exist_ok=True)
        while not self._is_over():
            try:
                self._volumes.prepare()
                for c in self._specs().values():
                    self._volumes.mounts(c)
                    environment.variables(self._store, self.document, c, self._root.config)
                return True
            except NotYet as e:
                for container in self.containers:
                    container.waits_for = ("ContainerCreating", str(e))
                self._pause()
        return False

    def _step(self, container: Container) -> bool:
        """Start a container, probe it, or record its end. Return False if it has ended for good."""
        if container.poll():
            self._set_back_off(container)
        if container.is_running:
            self._ask(container)
            return True
        if container.restarts >= 0 and not self._starts_again(container):
            return False
        if time.monotonic() >= self._again_at.get(container.name, 0.0):
            self._start(container)
        else:
            container.waits_for = ("CrashLoopBackOff", f"back-off restarting failed container {container.name}")
        return True

    def _starts_again(self, container: Container) -> bool:
        policy = self.document["spec"]["restartPolicy"]
        failed = container.ended is None or container.ended["exitCode"] != 0
        if container in self._inits:
            return failed and policy != "Never"
        return bool(policy == "Always" or (policy == "OnFailure" and failed))

    def _set_back_off(self, container: Container) -> None:
        """Set when a container may start again.

        That is at once after its first failure, then after 10 s, doubled each time up to 5 minutes.
        """
        ran_s = seconds_since(container.started_at)
        last = None if ran_s > _RESET_S else self._back_off_s.get(container.name)
        self._back_off_s[container.name] = min(last * 2, _MOST_BACK_OFF_S) if last else _FIRST_BACK_OFF_S
        self._again_at[container.name] = time.monotonic() + (last or 0.0)

    def _start(self, container: Container) -> None:
        said = self._specs()[container.name]
        image: ImageConfig = self._root.config
        try:
            given = environment.variables(self._store, self.document, said, image)
            mounts = [*self._root.mounts, *self._own_files(), *self._volumes.mounts(said)]
        except NotYet as e:
            container.waits_for = ("CreateContainerConfigError", str(e))
            return
        try:
            security = environment.security(self.document, said, image)
        except ValueError as e:
            container.waits_for = ("CreateContainerConfigError", str(e))
            return
        how = Started(
            command=environment.command(said, image, given),
            variables=given,
            mounts=mounts,
            lower=self._root.lower,
            layer=self._root.layer,
            working_dir=said.get("workingDir") or image.working_dir,
            security=security,
            has_init=bool(self.document["spec"].get("shareProcessNamespace")),
        )
        container.waits_for = ("ContainerCreating", "")
        container.start(self._sandbox.pid, how)
        self._probes[container.name] = Probes(said)

    def _ask(self, container: Container) -> None:
        probes = self._probes[container.name]
        container.is_ready = probes.is_ready(container, self.host.address)
        if not probes.is_alive(container, self.host.address):
            container.signal(signal.SIGKILL)

    def _own_files(self) -> list[str]:
        """Write the hosts, hostname and resolv.conf files that kubelet gives to each container. Return their mounts."""
        meta, name = self.document["metadata"], environment.hostname(self.document)
        subdomain = self.document["spec"].get("subdomain")
        whole = f"{name}.{subdomain}.{meta['namespace']}.svc.cluster.local\t" if subdomain else ""
        domains = [f"{meta['namespace']}.svc.cluster.local", "svc.cluster.local", "cluster.local"]
        domains += (self.document["spec"].get("dnsConfig") or {}).get("searches") or []
        files = {
            "hosts": f"127.0.0.1\tlocalhost\n{self.host.address}\t{whole}{name}\n",
            "hostname": f"{name}\n",
            "resolv.conf": f"nameserver {self._lab.bridge_address}\nsearch {' '.join(domains)}\noptions ndots:5\n",
        }
        for file, text in files.items():
            (self._folder / file).write_text(text)
        return [f"rw\t{self._folder / file}\t/etc/{file}" for file in files]

    def _specs(self) -> dict[str, Document]:
        spec = self.document["spec"]
        return {c["name"]: c for c in [*(spec.get("initContainers") or []), *spec["containers"]]}

    def _refresh_volumes(self) -> None:
        try:
            self._volumes.prepare()
        except NotYet:
            return  # keep the previous content

    def _end_containers(self) -> None:
        """Send SIGTERM, wait for the grace period, then send SIGKILL.

        There is no grace period if the lab is taken down.
        """
        both = [*self.containers, *self._inits]
        meta = (self._store.find(_POD, self._space, self._name) or self.document)["metadata"]
        grace_s = 0.0 if self._stopped.is_set() else float(meta.get("deletionGracePeriodSeconds", 30))
        for container in both:
            if grace_s:
                container.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self._any_runs(both) and time.monotonic() < deadline and not self._stopped.is_set():
            time.sleep(_LOOK_S)
        for container in both:
            container.signal(signal.SIGKILL)
        wait_until(lambda: not self._any_runs(both), 60)
        if self._phase != "Failed" and all(c.ended for c in self.containers):
            self._phase = "Failed" if any(c.ended["exitCode"] for c in self.containers if c.ended) else "Succeeded"

    @staticmethod
    def _any_runs(containers: list[Container]) -> bool:
        for c in containers:
            c.poll()
        return any(c.is_running for c in containers)

    def _is_over(self) -> bool:
        if self._stopped.is_set():
            return True
        found = self._store.find(_POD, self._space, self._name)
        return found is None or found["metadata"]["uid"] != self.uid or "deletionTimestamp" in found["metadata"]

    def _pause(self) -> None:
        self._tell()
        self._stopped.wait(_LOOK_S)

    def _tell(self) -> None:
        """Write the pod's status if it has changed."""
        place = (self._lab.bridge_address, self.host.address if self._sandbox.is_open else "")
        status = pod_status.status_of(self._phase, self.containers, self._inits, place, self._why)
        if status == self._told or self._stopped.is_set():
            return
        try:
            self._store.change(
                _POD, self._space, self._name, lambda d: pod_status.with_condition_times(d, self.uid, status)
            )
            self._told = status
        except Refusal:
            return  # the pod is gone, or another pod has its name


def _has_succeeded(container: Container) -> bool:
    return container.ended is not None and container.ended["exitCode"] == 0

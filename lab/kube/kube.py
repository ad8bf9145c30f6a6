"""Simulated Kubernetes as a whole: a lab of pods, the API for kubectl, and the controllers behind it."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from cluster.errors import ConfigError
from lab import lab as labs
from lab import machine, network
from lab.kube import garbage_collection, load_balancers, operator, root, workloads
from lab.kube.api_errors import Refusal
from lab.kube.dns import Names
from lab.kube.nodes import Kubelets
from lab.kube.server import ApiServer
from lab.kube.store import Store
from lab.record import Lab

NODES = 4
_TICK_S = 0.5  # between passes without a change, for what only depends on time


class Kube:
    """Simulated Kubernetes that exists until its `with` block ends. Nothing of it is left then."""

    def __init__(self, name: str, image: Path | None = None, num_nodes: int = NODES) -> None:
        """Args:
        name: of the lab; 1 to 8 lower-case letters and digits.
        image: an unpacked image, the root of all pods; without one they use this machine's root.
        """
        if num_nodes < 1:
            raise ConfigError(f"a Kubernetes has one node at least, not {num_nodes}")
        self._name, self._image, self._num_nodes = name, image, num_nodes
        self._ended = threading.Event()
        self.errors: list[str] = []

    def __enter__(self) -> "Kube":
        machine.require("a lab's Kubernetes")
        if labs.is_anything_left(self._name):
            raise ConfigError(f"there is a lab {self._name} already: 'inv lab.down --name {self._name}' removes it")
        with labs.locked():
            self.lab = labs.build(Lab(name=self._name, network=str(network.free_network()), hosts=()))
        try:
            layer = self.lab.nodes / "layer"
            self._root = root.of_image(self._image) if self._image else root.of_machine(layer, self.lab.project)
            self.store = Store()
            self.nodes = Kubelets(self.store, self.lab, self._root, self._num_nodes)
            self._names = Names(self.store, self.lab.bridge_address)
            self.server = ApiServer(self.store, self.nodes, self.lab.folder, f"lab-{self._name}")
        except BaseException:
            labs.down(self._name)
            raise
        self._thread = threading.Thread(target=self._control, daemon=True, name="controllers")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=60)
        self.nodes.stop()
        self.server.close()
        self._names.close()
        labs.down(self._name)

    @property
    def kubeconfig(self) -> Path:
        """The path for `kubectl --kubeconfig`."""
        return self.server.kubeconfig

    def _control(self) -> None:
        """Run every controller, again after each change."""
        jobs = workloads.Workloads()
        version = -1
        while not self._ended.is_set():
            version = self.store.version
            for look in (
                operator.sync,
                jobs.sync,
                garbage_collection.sync,
                lambda _: self.nodes.sync(),
                load_balancers.sync,
            ):
                try:
                    look(self.store)
                except Refusal as e:  # the object changed meanwhile; the next pass sees its new state
                    self.errors.append(e.message)
            self.store.wait(version, _TICK_S)


def serve(name: str, image: Path | None, ready: Callable[[Kube], None], num_nodes: int = NODES) -> None:
    """Run a simulated Kubernetes until Ctrl-C, SIGTERM or SIGHUP, then remove it. `ready` is called once it serves.

    Raises ConfigError if it cannot be started.
    """
    ended = threading.Event()
    before = {s: signal.signal(s, lambda *_: ended.set()) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        with Kube(name, image, num_nodes) as kube:
            ready(kube)
            ended.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Client of a pod's page on the operator's machine: starts it, and forwards its port until Ctrl-C or leaves it open."""

import contextlib
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cluster.errors import ClusterError, ConfigError
from cluster.ssh.progress import StatusLine
from cluster.ssh.terminate import undisturbed
from eks.cluster import EksCluster
from eks.document import Document
from eks.kubectl import Kubectl, KubectlError
from eks.prerequisites import require
from eks.services import PageManifest, page_documents, page_secret
from eks.waiting import HOPELESS, reason

_START_S = 1200.0  # until it serves: a node may have to come, the image be pulled, Jupyter be installed
_BALANCER_S = 600.0  # until a load balancer has its name
_LOOK_S = 2.0
_DAYS = 30  # for which its certificate is valid
_KINDS = ("deployment", "service", "networkpolicy", "secret")


@dataclass(frozen=True)
class PageAddress:
    """Address of a page that is being served."""

    url: str
    fingerprint: str = ""  # of its certificate; "" where a port-forward leads to it


class PodPage:
    """A cluster's page (TensorBoard or Jupyter), as objects in Kubernetes."""

    def __init__(self, cluster: EksCluster, page: PageManifest, job: str = "all") -> None:
        self._cluster, self._page, self._job = cluster, page, job
        self._name = page.name(cluster)
        self._kubectl = Kubectl(cluster.settings.context, cluster.settings.namespace)

    def look(self, show: Callable[[PageAddress], None]) -> None:
        """Start the page, report its address and forward its port until Ctrl-C.

        Afterwards the page is deleted, unless it existed before. Raises ClusterError if it does not start to serve.
        """
        self._require()
        found = self._kubectl.get("secret", self._name)
        token = _kept(found[0], "token") if found else secrets.token_urlsafe(24)
        if found and not token:
            raise ConfigError(f"{self._name} is served by TLS, from when eks.allow_cidrs was set: {self._end_it()}")
        try:
            if not found:
                self._make(token)
            self._await_pod()
            self._stay(token, show)
        except KeyboardInterrupt:
            print(f"\n{self._left(bool(found))}", file=sys.stderr)
        finally:
            if not found:
                with undisturbed():
                    self.end()

    def open(self, password: str) -> PageAddress:
        """Serve the page by TLS to the allowed networks and leave it running. Raises ConfigError if it exists already.

        password: salted and hashed.
        """
        from cluster.broadcast.certificate import certificate
        from cluster.tunnels.tls_proxy import fingerprint

        self._require()
        if self._kubectl.get("secret", self._name):
            raise ConfigError(f"{self._name} is there already: {self._end_it()}")
        pem, key = certificate(f"dlami {self._name}", _DAYS)
        try:
            self._make(password=password, certificate=(pem, key))
            self._await_pod()
            return PageAddress(f"https://{self._balancer()}/", fingerprint(pem))
        except BaseException:
            with undisturbed():
                self.end()
            raise

    def end(self) -> list[str]:
        """Delete the page's objects. Return the kinds of those that existed."""
        gone = []
        for kind in _KINDS:
            try:
                if self._kubectl.delete(kind, self._name):
                    gone.append(kind)
            except KubectlError as e:
                print(f"{kind} {self._name} stays: {e}", file=sys.stderr)
        return gone

    def _require(self) -> None:
        """Raise ConfigError if a prerequisite of the page is missing. Its own Secret is created with it."""
        require(self._kubectl, self._cluster, [self._secret(), *self._documents()])

    def _make(self, token: str = "", password: str = "", certificate: tuple[str, str] = ("", "")) -> None:
        self._kubectl.create([self._secret(token, password, certificate)])
        self._kubectl.apply(self._documents())

    def _documents(self) -> list[Document]:
        return page_documents(self._cluster, self._page, self._job)

    def _secret(self, token: str = "", password: str = "", certificate: tuple[str, str] = ("", "")) -> Document:
        return page_secret(self._cluster, self._page, token=token, password=password, certificate=certificate)

    def _await_pod(self) -> None:
        """Wait until the page's pod serves. Raises ClusterError with the reason if it does not."""
        line, deadline = StatusLine(), time.monotonic() + _START_S
        selector = f"app.kubernetes.io/name={self._page.kind},dlami/cluster={self._cluster.object_name}"
        try:
            while True:
                found = self._kubectl.get("deployment", self._name)
                if not found:
                    raise ClusterError(f"{self._name} was ended meanwhile")
                if found[0].get("status", {}).get("availableReplicas"):
                    return
                said = [reason(pod) for pod in self._kubectl.get("pods", selector=selector)]
                why = next((sentence for _, sentence in said if sentence), "its pod starts")
                if time.monotonic() > deadline or any(word in HOPELESS for word, _ in said):
                    raise ClusterError(f"{self._name} does not serve: {why}")
                line.show(f"{self._name}: {why}")
                time.sleep(_LOOK_S)
        finally:
            line.clear()

    def _stay(self, token: str, show: Callable[[PageAddress], None]) -> None:
        """Keep forwarding the page's port while its pod exists.

        A broken port-forward is opened again on the same port.
        """
        path = f"/lab?token={token}" if self._page.kind == "jupyter" else f"/{token}/"
        port = 0
        while True:
            with self._forwarded(port) as port:
                show(PageAddress(f"http://127.0.0.1:{port}{path}"))
                while _answers(port):
                    time.sleep(_LOOK_S)
            print("the port-forward is lost; it is made anew until Ctrl-C", file=sys.stderr)
            self._await_pod()

    @contextlib.contextmanager
    def _forwarded(self, port: int) -> Iterator[int]:
        with self._kubectl.forward(f"service/{self._name}", self._page.port, port) as opened:
            yield opened

    def _balancer(self) -> str:
        """Wait for the load balancer's host name and return it. Raises ClusterError if it gets none in time."""
        line, deadline = StatusLine(), time.monotonic() + _BALANCER_S
        try:
            while time.monotonic() < deadline:
                for service in self._kubectl.get("service", self._name):
                    for one in service.get("status", {}).get("loadBalancer", {}).get("ingress") or ():
                        return str(one.get("hostname") or one.get("ip"))
                line.show(f"{self._name}: AWS makes its load balancer")
                time.sleep(_LOOK_S)
        finally:
            line.clear()
        raise ClusterError(
            f"{self._name} got no load balancer within {_BALANCER_S:g} s: 'kubectl describe service' says why"
        )

    def _end_it(self) -> str:
        return f"'inv eks.{self._page.kind} --end' ends it"

    def _left(self, was_there: bool) -> str:
        return f"{self._name} goes on, others began it" if was_there else f"{self._name} has ended"


def _kept(secret: Document, key: str) -> str:
    """Return the value of a Secret's key; "" if it has none."""
    import base64

    return base64.b64decode(secret.get("data", {}).get(key, "")).decode()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False

"""Readiness, liveness and startup probes of containers, run from this machine."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from lab.kube.container import Container
from lab.kube.kinds import Document


class Probe:
    """Probe of a container with its counts of successes and failures. It runs once per period."""

    def __init__(self, said: Document, ports: Mapping[str, int], initial: bool) -> None:
        """Args:
        ports: names of the container's ports and their numbers.
        initial: the result before the first answer.
        """
        self._said, self._ports, self.holds = said, ports, initial
        self._next_at = time.monotonic() + float(said.get("initialDelaySeconds", 0))
        self._streak, self._last = 0, initial

    def ask(self, container: Container, address: str) -> bool:
        """Run the probe if it is due. Return its result, which changes only after enough equal answers."""
        if time.monotonic() >= self._next_at:
            answered = self._answers(container, address)
            self._streak = self._streak + 1 if answered == self._last else 1
            self._last = answered
            needed = self._said.get("successThreshold", 1) if answered else self._said.get("failureThreshold", 3)
            if self._streak >= needed:
                self.holds = answered
            self._next_at = time.monotonic() + float(self._said.get("periodSeconds", 10))
        return self.holds

    def _answers(self, container: Container, address: str) -> bool:
        limit_s = float(self._said.get("timeoutSeconds", 1))
        try:
            if "exec" in self._said:
                pid = container.pid()
                enter = ["nsenter", "--target", str(pid), "--all", *self._said["exec"]["command"]]
                return pid is not None and not subprocess.run(enter, timeout=limit_s, capture_output=True).returncode
            if "httpGet" in self._said:
                return self._gets(self._said["httpGet"], address, limit_s)
            with socket.create_connection((address, self._port(self._said["tcpSocket"])), timeout=limit_s):
                return True
        except (OSError, subprocess.TimeoutExpired):
            return False

    def _gets(self, said: Document, address: str, limit_s: float) -> bool:
        import ssl

        scheme = said.get("scheme", "HTTP").lower()
        url = f"{scheme}://{address}:{self._port(said)}{said.get('path', '/')}"
        anyone = ssl.create_default_context()
        anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE  # as kubelet: it is the pod that is asked
        headers = {h["name"]: h["value"] for h in said.get("httpHeaders") or []}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, headers=headers), timeout=limit_s, context=anyone
            ) as answer:
                return bool(200 <= answer.status < 400)
        except urllib.error.HTTPError as e:
            return 200 <= e.code < 400

    def _port(self, said: Document) -> int:
        port: str | int = said["port"]
        return int(self._ports.get(str(port), port))


class Probes:
    """All probes of one container since its start."""

    def __init__(self, container: Document) -> None:
        ports: dict[str, int] = {p["name"]: p["containerPort"] for p in container.get("ports") or [] if "name" in p}
        made = {
            name: Probe(container[name], ports, initial)
            for name, initial in (("startupProbe", False), ("readinessProbe", False), ("livenessProbe", True))
            if name in container
        }
        self._startup, self._readiness = made.get("startupProbe"), made.get("readinessProbe")
        self._liveness = made.get("livenessProbe")

    def is_ready(self, container: Container, address: str) -> bool:
        """Return True if the container can receive requests."""
        if self._startup and not self._startup.holds and not self._startup.ask(container, address):
            return False
        return self._readiness is None or self._readiness.ask(container, address)

    def is_alive(self, container: Container, address: str) -> bool:
        """Return False if the container must be killed and restarted."""
        if self._liveness is None or (self._startup and not self._startup.holds):
            return True
        return self._liveness.ask(container, address)

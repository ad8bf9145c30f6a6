"""Namespaces that the containers of one pod share: network, host name and memory volumes, held by an idle process."""

import ctypes
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Mapping
from ipaddress import IPv4Network
from pathlib import Path

from cluster.files import shipped
from cluster.ssh.fanout import wait_until
from lab import network
from lab.record import Lab, LabHost

_START_S = 60.0
_ANSWER_S = 60.0  # for a program in a pod to accept a connection and to answer
_NETWORK = 0x40000000  # CLONE_NEWNET, as setns(2) takes it


class Sandbox:
    """Namespaces of a pod. They exist from `open` to `close`."""

    def __init__(self, lab: Lab, host: LabHost, folder: Path) -> None:
        """Args:
        folder: the pod's own, for the log of the start.
        """
        self._lab, self._host, self._log = lab, host, folder / "sandbox.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.is_open = False

    @property
    def pid(self) -> int:
        """The pid of a process in the namespaces."""
        assert self._process
        return self._process.pid

    def open(self, hostname: str, memory: Mapping[Path, int]) -> None:
        """Create the namespaces. Raises OSError with a message if that fails.

        Args:
            memory: folders to mount in memory, and their size in bytes; 0 sets no limit.
        """
        variables = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "DLAMI_LAB": self._lab.name,
            "DLAMI_LAB_HOST": hostname,
            "DLAMI_LAB_ADDRESS": f"{self._host.address}/{IPv4Network(self._lab.network).prefixlen}",
            "DLAMI_LAB_MEMORY": "\n".join(f"{size}\t{folder}" for folder, size in memory.items()),
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "--net", "--uts", "--ipc", "--mount", str(shipped("scripts/lab-pod.sh")), "sandbox"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=variables,
                start_new_session=True,
            )
        ours = Path("/proc/self/ns/net").readlink()
        if not wait_until(lambda: Path(f"/proc/{self.pid}/ns/net").readlink() != ours, _START_S, pause_s=0.002):
            raise OSError(f"pod {self._host.name} had no network of its own within {_START_S:g} s")
        network.plug_in(self._lab, {self._host: self.pid})
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(b"go\n")
        self._process.stdin.close()
        if self._process.stdout.readline() != b"ready\n":
            said = self._log.read_text(errors="replace").strip()
            raise OSError(f"the pod's network and memory could not be made: {said[-300:]}")
        self.is_open = True

    def connected(self, port: int) -> socket.socket:
        """Return a connection to a port of its loopback. Raises OSError."""
        if not self.is_open:
            raise OSError(f"pod {self._host.name} has no network")
        made: queue.SimpleQueue[socket.socket | OSError] = queue.SimpleQueue()
        threading.Thread(target=lambda: made.put(_connected(self.pid, port)), daemon=True).start()
        found = made.get()
        if isinstance(found, OSError):
            raise found
        return found

    def close(self) -> None:
        """Remove the namespaces. The cable is removed first, because a namespace ends late."""
        network.unplug(self._lab.name, [self._lab.cable(self._host)])
        if self._process:
            self._process.kill()
            self._process.wait(timeout=60)
            assert self._process.stdout
            self._process.stdout.close()


def _connected(pid: int, port: int) -> "socket.socket | OSError":
    """Return a connection to a port of that process's loopback, or the OSError.

    Call it in a new thread, which moves into the process's network namespace for good. The connection stays in there.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        with Path(f"/proc/{pid}/ns/net").open("rb") as network_of_pod:
            if libc.setns(network_of_pod.fileno(), _NETWORK):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S)
    except OSError as e:
        return e

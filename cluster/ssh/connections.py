"""Connections that stay open between tasks: each is an `ssh -M` in the background, reached by its control socket."""

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from cluster.ssh import mux, proxy
from cluster.ssh.failure import PROXY_SAID
from cluster.ssh.options import Route, connect_command, key_of, sockets_folder

# Variables of processes that end with a run, a job or a page. A connection outlives those.
TAGS = ("DLAMI_RUN", "DLAMI_JOB", "DLAMI_TUNNEL")


class Connecting:
    """An ssh that connects to a host. Its stderr ends once the connection is open, or has failed."""

    def __init__(self, way: Route, connect_s: float) -> None:
        self.way = way
        self._said = bytearray()
        way.socket.parent.mkdir(mode=0o700, exist_ok=True)
        forget_if_dead(way.socket)
        make_key(way)
        environment = {k: v for k, v in os.environ.items() if k not in TAGS}
        self._process = subprocess.Popen(
            connect_command(way, connect_s),
            stdin=subprocess.DEVNULL,
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stderr
        self.stderr = self._process.stderr.fileno()

    def read(self) -> bool:
        """Read what ssh prints. Return False once it prints no more."""
        data = os.read(self.stderr, 65536)
        self._said += data
        return bool(data) and not self._is_there_already

    def outcome(self) -> str | None:
        """Return None if the connection is open, or else ssh's error output. Call it once `read` has returned False."""
        if self._is_there_already:  # another process was faster
            self.kill()
            return None
        assert self._process.stderr
        self._process.stderr.close()
        is_open = self._process.wait() == 0
        from_proxy = proxy.complaint(self.way.said)
        if is_open:
            return None
        return self._said.decode(errors="replace") + (f"\n{PROXY_SAID}{from_proxy}" if from_proxy else "")

    def kill(self) -> None:
        """Kill the ssh, and the proxy that it may have started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stderr:
            self._process.stderr.close()
        self._process.wait()
        proxy.complaint(self.way.said)

    @property
    def _is_there_already(self) -> bool:
        return b"already exists, disabling multiplexing" in self._said


def connect(way: Route, connect_s: float) -> str | None:
    """Wait for the connection to one host. Return None once it is open, or else ssh's error output."""
    if mux.is_alive(way.socket):
        return None
    try:
        connecting = Connecting(way, connect_s)
    except OSError as e:
        return why_no_ssh(e)
    deadline = time.monotonic() + connect_s
    while select.select([connecting.stderr], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if not connecting.read():
            return connecting.outcome()
    connecting.kill()
    return "timed out"


def why_no_ssh(e: OSError) -> str:
    """Return why ssh could not be started on this machine, and what to do."""
    if isinstance(e, FileNotFoundError) and e.filename in ("ssh", "ssh-keygen"):
        return f"no ssh could be started on this machine: there is no '{e.filename}' on PATH, install openssh-client"
    return f"no ssh could be started on this machine: {e.strerror or e}" + (f": {e.filename}" if e.filename else "")


def make_key(way: Route) -> None:
    """Create the key that we lend to hosts, if the cluster lends one, names none and we have none yet.

    Raises OSError if that fails.
    """
    key = key_of(way.access)
    if key is None or key == way.access.key or key.exists():
        return
    with tempfile.TemporaryDirectory(dir=key.parent) as folder:
        new = Path(folder) / "key"
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lent by dlami-cluster", "-f", str(new)]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"ssh-keygen made no key: {done.stderr.strip()}")
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.link(new, key)


def forget_if_dead(socket: Path) -> None:
    """Remove a control socket on which no process listens. An ssh that was killed leaves it behind."""
    with contextlib.suppress(FileNotFoundError):
        before = socket.stat().st_ino
        if not mux.is_alive(socket) and socket.stat().st_ino == before:
            socket.unlink()


def disconnect_idle(ways: list[Route]) -> tuple[int, list[Route]]:
    """Close the connections of these ways that run no command. Return how many that were, and the ways still in use."""
    in_use = [way for way in ways if mux.is_in_use(way.socket)]
    return disconnect([way for way in ways if way not in in_use]), in_use


def disconnect(ways: list[Route] | None = None) -> int:
    """Close the connections of these ways (default: all of this user's). Return how many were open."""
    wanted = {w.socket for w in ways} if ways is not None else None
    ended = 0
    for socket in sorted(sockets_folder().glob("*/*")):
        if socket.is_socket() and (wanted is None or socket in wanted):
            ended += mux.terminate(socket)
            with contextlib.suppress(FileNotFoundError):
                socket.unlink()
    return ended

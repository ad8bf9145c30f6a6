"""Progress of a training on pods, served by its launcher on the pod's loopback and read through a port-forward.

No pod may write to Kubernetes, and the operator's machine does not have the shared folder: so the launcher is queried.
"""

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from cluster.errors import ClusterError
from cluster.jobs.record import DamagedRecord, JobPaths, TrainingProgress, read_job
from cluster.jobs.records import read_progress
from cluster.jobs.status import read_status
from cluster.typed import from_json
from eks.kubectl import Kubectl

PORT = 6009  # of the launcher's loopback
_ANSWER_S = 20.0
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class LauncherAnswer:
    """Answer of a launcher."""

    progress: TrainingProgress | None = None  # None: no step yet, or its ranks do not run
    trouble: str = ""  # why the progress is unknown


@contextlib.contextmanager
def serve_progress(paths: JobPaths, port: int = PORT) -> Iterator[int]:
    """Serve the job's progress on this port of the loopback during the `with` block. Yields the port.

    port: 0 for a free one. Raises OSError if it is taken.
    """

    class Answer(socketserver.BaseRequestHandler):
        """Handler that sends the progress to every client."""

        def handle(self) -> None:
            """Send the progress, without reading a request."""
            self.request.settimeout(_ANSWER_S)
            with contextlib.suppress(OSError):
                self.request.sendall(json.dumps(asdict(_how_far(paths))).encode())

    with _Server(("127.0.0.1", port), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True, name="progress")
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()


def ask(kubectl: Kubectl, pod: str, port: int = PORT) -> TrainingProgress | None:
    """Return the progress of this launcher pod's training; None before its first step. Raises ClusterError."""
    with kubectl.forward(f"pod/{pod}", port) as opened:
        said = _read(opened)
    try:
        answer = from_json(LauncherAnswer, json.loads(said or b"null"))
    except ValueError:
        raise ClusterError(
            f"{pod} does not say how far its training is: it starts just now, or its image is older than that question"
        ) from None
    if answer.trouble:
        raise ClusterError(f"{pod} cannot say how far it is: {answer.trouble}")
    return answer.progress


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


def _how_far(paths: JobPaths) -> LauncherAnswer:
    """Read the progress from the job's records, as the master of a bare cluster does."""
    try:
        if not paths.folder.exists() or not read_status(paths).state.is_going:
            return LauncherAnswer()
        return LauncherAnswer(progress=read_progress(paths, read_job(paths)))
    except (DamagedRecord, OSError) as e:
        return LauncherAnswer(trouble=str(e))


def _read(port: int) -> bytes:
    """Read a local port until the sender closes it. Return what was received, also after an error."""
    said = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S) as connection:
        while len(said) < _MOST_BYTES and (part := connection.recv(1 << 14)):
            said += part
    return said

"""Program of a training's worker pod, `python -m eks.worker`: it runs sshd and lets ranks save before it ends.

Kubernetes sends SIGTERM to a pod that must go: its node is drained, reclaimed or scaled in, or its job is deleted. Then
the ranks on this pod save and leave first. The job's supervisor finds the notice, like one of EC2 on the bare cluster.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from cluster.files import write_atomically
from cluster.jobs.record import ATTEMPT_TAG
from cluster.recovery.onhost.notice import FILE
from eks.image import SSHD

GRACE_VARIABLE = "DLAMI_GRACE_S"  # how long Kubernetes waits between SIGTERM and SIGKILL
_MARGIN_S = 10.0  # of that time, for sshd's own end
_LOOK_S = 0.5
_TOLD = 128 + signal.SIGTERM
# Variables that EKS sets in containers whose service account has rights in AWS. No secret is
# among them. Source: EKS User Guide, "How EKS Pod Identity works"; the last two are those of IRSA.
_OF_AWS = (
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_STS_REGIONAL_ENDPOINTS"),
    *("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
)


class PodWorker:
    """Worker of this pod: runs sshd, and shuts down in good order on SIGTERM."""

    def __init__(self, sshd: Sequence[str], notice: Path, grace_s: float, has_ranks: Callable[[], bool]) -> None:
        self._sshd, self._notice, self._grace_s, self._has_ranks = sshd, notice, grace_s, has_ranks
        self._is_told = False
        signal.signal(signal.SIGTERM, self._note)

    def serve(self) -> int:
        """Run until sshd ends, or until SIGTERM has come and the ranks have left. Return the exit code."""
        with contextlib.suppress(OSError):
            self._notice.unlink(missing_ok=True)  # of an earlier container in the same pod
        try:
            process = subprocess.Popen(self._sshd, stdin=subprocess.DEVNULL)
        except OSError as e:
            print(f"dlami: {self._sshd[0]} cannot be started: {e.strerror}", file=sys.stderr)
            return 1
        try:
            while process.poll() is None and not self._is_told:
                time.sleep(_LOOK_S)
            if self._is_told:
                self._say_leaving()
                self._await_ranks(process)
        finally:
            process.terminate()
            process.wait()
        return _TOLD if self._is_told else process.returncode or 1

    def _say_leaving(self) -> None:
        """Write a preemption notice. The job's supervisor then starts no attempt here and ends the running one."""
        said = {"kind": "shutdown", "at": time.time(), "text": "Kubernetes has told its pod to go", "source": "pod"}
        with contextlib.suppress(OSError):
            write_atomically(self._notice, json.dumps(said))

    def _await_ranks(self, sshd: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + self._grace_s - _MARGIN_S
        while self._has_ranks() and sshd.poll() is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._is_told = True


def has_ranks(proc: Path = Path("/proc")) -> bool:
    """Return True if an attempt of a job has processes here."""
    tag = f"{ATTEMPT_TAG}=".encode()
    for process in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(v.startswith(tag) for v in (process / "environ").read_bytes().split(b"\0")):
                return True
    return False


def sshd_words(environment: Mapping[str, str]) -> list[str]:
    """Return the command of a pod's sshd. It passes the pod's AWS variables to sessions, and so to ranks.

    An SSH session does not inherit sshd's environment. Of several SetEnv options sshd uses only the first.
    """
    said = [f"{name}={environment[name]}" for name in _OF_AWS if name in environment]
    return [*SSHD, *(["-o", f"SetEnv={' '.join(said)}"] if said else [])]


def main() -> int:
    """Serve as this pod's worker. Return the exit code."""
    return PodWorker(sshd_words(os.environ), Path(FILE), float(os.environ.get(GRACE_VARIABLE, "30")), has_ranks).serve()


if __name__ == "__main__":
    sys.exit(main())

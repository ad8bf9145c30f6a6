"""What a worker pod of a training runs: `python -m cluster.eks.worker`, which is its sshd, and a good end.

Kubernetes tells a pod that is to go (its node is drained, taken back or scaled in, its job deleted) with SIGTERM. Then
the ranks here save and leave first: the job's supervisor finds the notice, as it finds one of EC2 on the bare cluster.
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

from cluster.eks.image import SSHD
from cluster.files import write_atomically
from cluster.healing.onhost.notice import FILE
from cluster.jobs.record import ATTEMPT_TAG

GRACE_VARIABLE = "DLAMI_GRACE_S"  # how long Kubernetes waits between SIGTERM and SIGKILL
_MARGIN_S = 10.0  # of that time, for sshd's own end
_LOOK_S = 0.5
_TOLD = 128 + signal.SIGTERM
# Where a pod finds its own rights in AWS, as EKS says it to each container of an account that has any; no secret is
# among them. Source: EKS User Guide, "How EKS Pod Identity works"; the last two are those of IRSA.
_OF_AWS = (
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_STS_REGIONAL_ENDPOINTS"),
    *("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
)


class Worker:
    """An sshd, and what is done when this pod is told to go."""

    def __init__(self, sshd: Sequence[str], notice: Path, grace_s: float, has_ranks: Callable[[], bool]) -> None:
        self._sshd, self._notice, self._grace_s, self._has_ranks = sshd, notice, grace_s, has_ranks
        self._is_told = False
        signal.signal(signal.SIGTERM, self._note)

    def serve(self) -> int:
        """Until sshd ends, or this pod is told to go and its ranks have left; the exit code."""
        with contextlib.suppress(OSError):
            self._notice.unlink(missing_ok=True)  # of a container before this one in the same pod
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
        """Have the job's supervisor know, so that it begins no attempt here and ends the one that runs."""
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
    """Whether an attempt of a job has processes here."""
    tag = f"{ATTEMPT_TAG}=".encode()
    for process in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(v.startswith(tag) for v in (process / "environ").read_bytes().split(b"\0")):
                return True
    return False


def sshd_words(environment: Mapping[str, str]) -> list[str]:
    """The command of a pod's sshd: what it starts, ranks among it, has the rights of the pod.

    A session of sshd's begins with nothing of its environment; of several SetEnv it takes the first alone.
    """
    said = [f"{name}={environment[name]}" for name in _OF_AWS if name in environment]
    return [*SSHD, *(["-o", f"SetEnv={' '.join(said)}"] if said else [])]


def main() -> int:
    """Serve as this pod's worker; the exit code."""
    return Worker(sshd_words(os.environ), Path(FILE), float(os.environ.get(GRACE_VARIABLE, "30")), has_ranks).serve()


if __name__ == "__main__":
    sys.exit(main())

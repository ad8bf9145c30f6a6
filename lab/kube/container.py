"""Container of a pod as processes of this machine: start, restart, state and end."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.files import shipped
from lab.kube.kinds import Document
from lab.kube.store import now


@dataclass(frozen=True, kw_only=True)
class Started:
    """Parameters of a container's start."""

    command: Sequence[str]
    variables: Mapping[str, str]
    mounts: Sequence[object]  # each as a line of scripts/lab-pod.sh
    lower: Path  # what its root is
    layer: Path | None  # files over it
    working_dir: str
    security: Document  # of environment.security
    has_init: bool  # whether its first process is one that reaps: where the pod shares its process numbers


class Container:
    """Container and its state; `folder` belongs to it alone."""

    def __init__(self, lab_name: str, folder: Path, name: str, image: str) -> None:
        self._lab_name, self._folder, self.name, self._image = lab_name, folder, name, image
        self._outer: subprocess.Popen[bytes] | None = None
        self._has_init = False
        self.restarts = -1
        self.started_at = ""
        self.ended: Document | None = None  # as `state.terminated`
        self._before: Document | None = None
        self.is_ready = False
        self.waits_for = ("ContainerCreating", "")

    @property
    def log(self) -> Path:
        """The output file since its last start."""
        return self._folder / f"{max(self.restarts, 0)}.log"

    @property
    def previous_log(self) -> Path:
        """The output file of the run before."""
        return self._folder / f"{self.restarts - 1}.log"

    @property
    def is_running(self) -> bool:
        """True if its first process lives. `poll` updates this."""
        return self._outer is not None and self.ended is None

    def start(self, sandbox: int, how: Started) -> None:
        """Start it in the pod's namespaces, which are those of process `sandbox`. Its root is reset to the image's."""
        self._before, self.ended = self.ended, None
        self.restarts += 1
        for part in ("upper", "work", "root"):
            shutil.rmtree(self._folder / part, ignore_errors=True)
            (self._folder / part).mkdir(parents=True)
        if how.layer:
            subprocess.run(["cp", "-a", f"{how.layer}/.", str(self._folder / "upper")], check=True, timeout=60)
        security = how.security
        groups = ",".join(map(str, security["groups"]))
        own = {
            "DLAMI_LAB": self._lab_name,
            "DLAMI_LAB_FOLDER": str(self._folder),
            "DLAMI_LAB_LOWER": str(how.lower),
            "DLAMI_LAB_MOUNTS": "\n".join(map(str, how.mounts)),
            "DLAMI_LAB_WORKDIR": how.working_dir,
            "DLAMI_LAB_IDS": f"{security['uid']}:{security['gid']}:{groups}",
            "DLAMI_LAB_CAPABILITIES": "".join(f",+{c}" for c in security["capabilities"]),
            "DLAMI_LAB_NO_NEW_PRIVILEGES": str(int(security["no_new_privileges"])),
            "DLAMI_LAB_INIT": str(int(how.has_init)),
            "DLAMI_LAB_READ_ONLY_ROOT": str(int(security["read_only_root"])),
        }
        enter = ["/usr/bin/nsenter", "--target", str(sandbox), "--net", "--uts", "--ipc", "--mount"]
        apart = ["/usr/bin/unshare", "--pid", "--mount", "--fork", "--kill-child"]
        with self.log.open("ab") as log:
            self._outer = subprocess.Popen(
                [*enter, *apart, str(shipped("scripts/lab-pod.sh")), "container", *how.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**how.variables, **own},
                start_new_session=True,
            )
        self._has_init = how.has_init
        self.started_at = now()

    def poll(self) -> bool:
        """Check the process. Return True if it has ended since the last call."""
        if self._outer is None or self.ended is not None or (code := self._outer.poll()) is None:
            return False
        status = 128 - code if code < 0 else code
        self.ended = {
            "exitCode": status,
            "reason": "Completed" if status == 0 else "Error",
            "startedAt": self.started_at,
            "finishedAt": now(),
        }
        self.is_ready = False
        return True

    def pid(self) -> int | None:
        """Return the host's pid of its command; None if it does not run."""
        if not self.is_running or self._outer is None:
            return None
        first = _first_child(self._outer.pid)
        return _first_child(first) if first and self._has_init else first

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the first process. SIGKILL ends all others with it."""
        pid = self.pid()
        try:
            if pid is not None:
                os.kill(pid, number)
            elif self.is_running and number == signal.SIGKILL and self._outer is not None:
                self._outer.kill()
        except ProcessLookupError:
            return

    def status(self) -> Document:
        """Return its entry for `containerStatuses`."""
        if self._outer is None or (self.ended and self.waits_for[0] == "CrashLoopBackOff"):
            reason, message = self.waits_for
            state: Document = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        elif self.ended:
            state = {"terminated": self.ended}
        else:
            state = {"running": {"startedAt": self.started_at}}
        last = self.ended if "waiting" in state and self.ended else self._before
        return {
            "name": self.name,
            "image": self._image,
            "imageID": "",
            **({"containerID": f"lab://{self._folder.parent.name}/{self.name}/{self.restarts}"} if self._outer else {}),
            "ready": self.is_ready,
            "started": self.is_running,
            "restartCount": max(self.restarts, 0),
            "state": state,
            "lastState": {"terminated": last} if last else {},
        }


def _first_child(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    except (OSError, IndexError):
        return None

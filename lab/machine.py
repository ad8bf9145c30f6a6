"""Requirements of a lab on this machine, each tested in namespaces that end at once."""

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ConfigError
from cluster.locate import LABS

TOOLS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "ssh-keygen": "openssh-client",
    "/usr/sbin/sshd": "openssh-server",
}
CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_NET_ADMIN": 12}
CONTAINER = "start the container with --privileged, or use a machine of its own"
# Each line that fails ends the script and prints the text after `or`.
TRIAL = """\
or() { echo "$1"; exit 1; }
ip link add lab0 type veth peer name lab1 || or "virtual network cables (veth)|a kernel with the module veth"
ip link add lab2 type bridge || or "network bridges|a kernel with the module bridge"
mount --make-rprivate / || or "changes to mounts|CONTAINER"
mount -t proc proc "$1/proc" || or "a /proc of its own for each host|CONTAINER"
mount -t sysfs sysfs "$1/proc" || or "a /sys of its own for each host|CONTAINER"
mount -t tmpfs tmpfs "$1/memory" || or "file systems in memory|CONTAINER"
mkdir "$1/memory/upper" "$1/memory/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/memory/upper,workdir=$1/memory/work" "$1/root" ||
    or "an overlay over /|a / that is not itself two overlays deep, on a kernel with overlayfs"
"""
TRIAL_OF_UPPER = 'mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"'


@dataclass(frozen=True)
class Missing:
    """Missing requirement of a lab, and its remedy."""

    what: str
    remedy: str
    is_permission: bool = False
    """Whether it is this user's or container's rights, and nothing that is broken."""

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


def missing() -> Missing | None:
    """Return the first requirement of a lab that this machine lacks; None if a lab can be built."""
    if os.geteuid() != 0:
        return Missing(
            "needs root, for its network and file system namespaces",
            "run this with sudo, or use one host ('localhost slots=2' in hosts)",
            is_permission=True,
        )
    if lacking := [name for name, number in CAPABILITIES.items() if not has_capability(number)]:
        return Missing(
            f"needs {' and '.join(lacking)}, which this container's root does not have", CONTAINER, is_permission=True
        )
    if absent := [tool for tool in TOOLS if not shutil.which(tool)]:
        packages = sorted({TOOLS[tool] for tool in absent})
        return Missing(f"needs {', '.join(absent)}", f"apt-get install {' '.join(packages)}, or 'make install'")
    return _tried()


def require(what: str) -> None:
    """Raise ConfigError with the missing requirement and its remedy if a lab cannot be built."""
    if lack := missing():
        raise ConfigError(f"{what} {lack}")


def holds_uppers(folder: Path) -> bool:
    """Return True if this folder can hold an overlay's upper part. A folder that is itself on an overlay cannot."""
    with tempfile.TemporaryDirectory(prefix="trial-", dir=folder) as trial:
        for part in ("upper", "work", "root"):
            (Path(trial) / part).mkdir()
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", TRIAL_OF_UPPER, "sh", trial],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        return done.returncode == 0


def has_capability(number: int) -> bool:
    """Return True if this process has the capability with this number in effect."""
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> number & 1)


def _tried() -> Missing | None:
    LABS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trial-", dir=LABS.parent) as folder:
        for part in ("proc", "memory", "root"):
            (Path(folder) / part).mkdir()
        try:
            os.setxattr(folder, "trusted.overlay.opaque", b"y")
        except OSError as e:
            return Missing(
                f"needs overlay attributes on {LABS.parent} ({e.strerror})",
                f"{CONTAINER}; root of a user namespace is not enough",
            )
        return _tried_in_namespaces(folder)


def _tried_in_namespaces(folder: str) -> Missing | None:
    own = ("unshare", "--net", "--pid", "--uts", "--ipc", "--mount", "--fork", "--kill-child")
    done = subprocess.run(
        [*own, "sh", "-c", TRIAL.replace("CONTAINER", CONTAINER), "sh", folder],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode == 0:
        return None
    why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
    what, _, remedy = done.stdout.strip().partition("|")
    return Missing(f"needs {what or 'namespaces of its own'} ({why})", remedy or CONTAINER)

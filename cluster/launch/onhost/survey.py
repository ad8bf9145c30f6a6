"""Survey of a host: its versions, network, cores, GPUs and MPI.

Arguments: the shared folder to try, and directories whose `mpirun` comes before the one on PATH.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import shutil
import subprocess
from typing import Any

from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.free_port import free_port

_PACKAGES = ("tensorflow", "tensorflow-cpu", "horovod", "tensorpack", "numpy")


def _said(*words: str, timeout_s: float = 5.0) -> str | None:
    """Return what a command prints; None if it is missing, fails or hangs."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _packages() -> dict[str, str]:
    from importlib import metadata

    versions = {}
    for name in _PACKAGES:
        try:
            versions[name.removesuffix("-cpu")] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _mpiruns(first: list[str]) -> list[str]:
    """Return mpirun candidates, best first: those asked for, EFA's, the active conda's, PATH's, conda's others."""
    conda = [os.environ.get("CONDA_PREFIX", "/nowhere") + "/bin"]
    others = sorted(glob.glob(os.path.expanduser("~/*conda3/envs/*/bin")) + glob.glob("/opt/conda/envs/*/bin"))
    on_path = shutil.which("mpirun")
    folders = [
        *first,
        "/opt/amazon/openmpi/bin",
        *conda,
        *([os.path.dirname(on_path)] if on_path else []),
        "/usr/bin",
        *others,
    ]
    return list(dict.fromkeys(f"{f}/mpirun" for f in folders if os.access(f"{f}/mpirun", os.X_OK)))


def _interfaces() -> dict[str, dict[str, Any]]:
    links = json.loads(_said("ip", "-j", "addr") or "[]")
    return {
        link["ifname"]: {
            "mtu": link["mtu"],
            "addresses": [f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"] if "local" in a],
        }
        for link in links
    }


def _gpus() -> list[str] | None:
    """Return one line per GPU; [] without GPUs, None if the driver's tool does not answer."""
    if not shutil.which("nvidia-smi"):
        return []
    listed = _said("nvidia-smi", "-L", timeout_s=20)
    return None if listed is None else [line for line in listed.splitlines() if line.startswith("GPU")]


def _is_writable(folder: str) -> str:
    """Return "yes" or why the folder cannot be written.

    A child process tries it for 5 s, because a dead mount hangs.
    """
    script = (
        'd=$1; [ -d "$d" ] || { echo "is not there"; exit; }; f="$d/.probe-$$-$(hostname)"; '
        'echo probe 2>/dev/null >"$f" && [ "$(cat "$f")" = probe ] && rm "$f" && echo yes || '
        'echo "cannot be written"'
    )
    try:
        done = subprocess.run(["sh", "-c", script, "probe", folder], capture_output=True, text=True, timeout=5)
    except subprocess.TimeoutExpired:
        return "does not answer within 5 s"
    return done.stdout.strip() or "cannot be written"


def facts(shared: str, mpi_first: list[str]) -> dict[str, Any]:
    """Return the survey of this host."""
    mpiruns = _mpiruns(mpi_first)
    version = (_said(mpiruns[0], "--version") or "").splitlines() if mpiruns else []
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": _packages(),
        "mpirun": mpiruns[0] if mpiruns else None,
        "mpirun_version": version[0].split()[-1] if version else None,
        "interfaces": _interfaces(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": _gpus(),
        "efa": bool(glob.glob("/sys/class/infiniband/*")),
        "shared": _is_writable(shared),
        "user": os.environ.get("USER") or str(os.geteuid()),
        "is_root": os.geteuid() == 0,
        "free_port": free_port(),
    }


def main(shared: str, *mpi_first: str) -> None:
    """Send the survey of this host."""
    say(facts(shared, list(mpi_first)))

"""Report of a host that joins: the address at which it was reached, its user, its GPUs, and whether it may use sudo."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import subprocess
from typing import Any

from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.pci import devices


def _ends_well(*words: str, timeout_s: float = 10.0) -> bool:
    try:
        return (
            subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=timeout_s,
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def _gpus() -> int | None:
    """Return the number of GPUs; None if there are NVIDIA cards and nvidia-smi fails."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
        found = sum(line.startswith("GPU ") for line in said.stdout.splitlines())
        if found and not said.returncode:
            return found
    return None if shutil.which("nvidia-smi") and devices()["gpus"] else 0


def probe(project: str) -> dict[str, Any]:
    """Return the report of this host."""
    project = os.path.expanduser(project)
    own = os.environ.get("SSH_CONNECTION", "").split()  # client, its port, this host, its port
    return {
        "address": own[2] if len(own) == 4 else "",
        "user": getpass.getuser(),
        "home": os.path.expanduser("~"),
        "gpus": _gpus(),
        "may_be_root": os.geteuid() == 0 or _ends_well("sudo", "-n", "true"),
        "has_project": os.path.exists(os.path.join(project, "tasks.py")),
        "has_runtime": os.access(os.path.join(project, ".venv/bin/python"), os.X_OK),
    }


def main(project: str) -> None:
    """Send the report of this host."""
    say(probe(project))

"""Jupyter's environment: one per user beside the runtime, whose packages it imports and never changes."""

import fcntl
import hashlib
import os
import shutil
import site
import subprocess
import sys
import time
from pathlib import Path

from cluster.errors import ClusterError
from cluster.ssh.onhost.telling_line import telling_line

PACKAGES = ("jupyterlab>=4.4,<5", "ipykernel>=6.29,<8")
_INSTALL_S = 900.0
# Without these, pip retries for minutes if no index is reachable, as in a lab
_SOON = ("--retries", "1", "--timeout", "20")
_MARK = "installed-by-dlami"


def python() -> Path | None:
    """Return the interpreter that has Jupyter and the runtime; None until it is installed."""
    folder = _folder()
    return folder / "bin/python" if (folder / _MARK).exists() else None


def install() -> Path:
    """Make the environment and return its interpreter. Raises ClusterError with pip's last output."""
    folder = _folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        _wait_for(lock.fileno(), folder)
        if found := python():  # another `inv jupyter` has installed it meanwhile
            return found
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        # The runtime's packages come after Jupyter's on the path. Kernels import them, and pip does not reinstall them.
        own = next((folder / "lib").glob("python3*/site-packages"))
        (own / "runtime.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))
        _run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-input", *_SOON, *PACKAGES])
        (folder / _MARK).touch()
    return folder / "bin/python"


def _folder() -> Path:
    """Return the environment's folder. Each runtime has its own, so that two versions do not share one."""
    key = hashlib.sha256(f"{sys.prefix} {sys.version} {PACKAGES}".encode()).hexdigest()[:8]
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local/share")
    return Path(base) / "dlami" / f"jupyter-{key}"


def _run(words: list[str]) -> None:
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_INSTALL_S, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"Jupyter is not installed: pip did not end within {_INSTALL_S:g} s") from None
    if done.returncode:
        why = telling_line(done.stderr) or telling_line(done.stdout) or "it said nothing"
        raise ClusterError(
            f"Jupyter is not installed: {why}; it needs a way to a package index from the master, "
            "which a lab's has not, "
            f"or these packages in its environment: {', '.join(PACKAGES)}"
        )


def _wait_for(lock: int, folder: Path) -> None:
    deadline = time.monotonic() + _INSTALL_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise ClusterError(f"another process has held {folder}.lock for {_INSTALL_S:g} s") from None
            time.sleep(0.5)

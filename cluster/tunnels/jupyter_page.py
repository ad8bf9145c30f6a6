"""Jupyter server: on loopback, with a token or password, the runtime as its kernel, and the project's notebooks."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from cluster.errors import ClusterError
from cluster.files import write_atomically, write_json
from cluster.inventory import ROOT
from cluster.ssh.onhost import trusted_files
from cluster.tunnels import jupyter_packages
from cluster.tunnels.service import ServicePaths, ServiceRequest

KERNEL = "dlami"
NOTEBOOKS = {
    "train.ipynb": "cluster/tunnels/train.ipynb",
    "watch.ipynb": "cluster/tunnels/watch.ipynb",
    "predict.ipynb": "trainer/maskrcnn/newest_checkpoint.ipynb",
}
_END_S = 8.0  # for Jupyter to end its kernels


class JupyterPage:
    """JupyterLab process over a folder of this user's notebooks."""

    def __init__(self, wanted: ServiceRequest, paths: ServicePaths) -> None:
        python = jupyter_packages.python()
        if python is None:
            raise ClusterError("Jupyter is not installed here")
        token = "" if wanted.password else wanted.token or secrets.token_urlsafe(24)
        self.port, self.path = wanted.page_port or _free_port(), f"/lab?token={token}" if token else "/lab"
        settings = paths.folder / "jupyter_server_config.py"
        write_atomically(settings, self._settings(wanted, token), mode=0o600)
        write_kernel(paths.folder / "data/kernels" / KERNEL, python, wanted)
        folders = {f"JUPYTER_{name}_DIR": str(paths.folder / name.lower()) for name in ("DATA", "RUNTIME", "CONFIG")}
        self._process = subprocess.Popen(
            [str(python), "-m", "jupyterlab", f"--config={settings}"],
            cwd=notebooks(wanted),
            stdin=subprocess.DEVNULL,
            env={**os.environ, **folders, "PYTHONUNBUFFERED": "1"},
        )

    def _settings(self, wanted: ServiceRequest, token: str) -> str:
        """Return Jupyter's settings. They go to a file, because everybody can read a process's arguments."""
        given = {
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.port": self.port,
            "ServerApp.port_retries": 0,
            "ServerApp.open_browser": False,
            "ServerApp.root_dir": str(notebooks(wanted)),
            "ServerApp.allow_root": True,  # where the cluster's user is root, as in the lab, nobody else is there
            "ServerApp.allow_remote_access": bool(wanted.password),  # by TLS it is asked for by another name
            "IdentityProvider.token": token,
            "PasswordIdentityProvider.hashed_password": wanted.password,
            "MultiKernelManager.default_kernel_name": KERNEL,
            "KernelSpecManager.ensure_native_kernel": False,
            "LabApp.news_url": None,
            "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        }
        return "".join(f"c.{name} = {value!r}\n" for name, value in given.items())

    def has_ended(self) -> bool:
        """Return True if Jupyter has exited."""
        return self._process.poll() is not None

    def end(self) -> None:
        """End Jupyter with its kernels."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def notebooks(wanted: ServiceRequest) -> Path:
    """Make this user's folder of notebooks and add the project's. Existing notebooks stay as they are.

    Raises ClusterError if another user could have put files there, which this user's kernels would import.
    """
    shared = Path(wanted.shared)
    home = shared if os.access(shared, os.W_OK) else Path.home()
    above = home / "notebooks"
    try:
        above.mkdir(mode=0o1777, exist_ok=True)
        if home == shared and trusted_files.folder_owner(above) == os.getuid():
            above.chmod(0o1777)
        trusted_files.require_place(above, f": as root on the master, 'chown root {above} && chmod 1777 {above}'")
        folder = Path(trusted_files.own_folder(above, str(os.getuid()))) if home == shared else above
        trusted_files.require_own(folder)
        for name, one in NOTEBOOKS.items():
            if not (folder / name).exists():
                shutil.copyfile(ROOT / one, folder / name)
    except trusted_files.Untrusted as e:
        raise ClusterError(f"notebooks: {e.filename} {e.strerror}") from None
    except OSError as e:
        raise ClusterError(f"the notebooks' folder cannot be made: {e.filename}: {e.strerror}") from None
    return folder


def write_kernel(folder: Path, python: Path, wanted: ServiceRequest) -> None:
    """Write the kernel's specification: the runtime's packages, the project's modules, this cluster."""
    folder.mkdir(parents=True)
    environment = {"PYTHONPATH": str(ROOT), "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment["DLAMI_JOBS"] = f"{wanted.shared}/jobs"
    if wanted.cluster and Path(wanted.cluster, "hosts").exists():
        environment["CLUSTER"] = wanted.cluster
    words = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    write_json(
        folder / "kernel.json",
        {"argv": words, "display_name": "dlami (the trainers' runtime)", "language": "python", "env": environment},
    )


def _free_port() -> int:
    """Return a free port on loopback. If another process takes it meanwhile, Jupyter exits with an error."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])

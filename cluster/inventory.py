"""Which cluster a task means: a folder that holds a hostfile and, where SSH needs more than that, a `cluster.toml`."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ConfigError
from cluster.hosts import Host, read_hostfile

ROOT = Path(__file__).resolve().parent.parent
LABS = Path("/var/lib/dlami-cluster/lab")


@dataclass(frozen=True, kw_only=True)
class Access:
    """How SSH gets in. What is not set comes from the user's agent and ~/.ssh/config."""

    user: str | None = None
    port: int | None = None
    key: Path | None = None  # a private key; without one the agent and the usual keys are tried
    known_hosts: Path | None = None  # host keys to trust; without one ~/.ssh/known_hosts
    gateway: str | None = None  # address by which the master is reached from here; it passes on to the others


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A name and its hosts, wherever they come from."""

    name: str
    hosts: tuple[Host, ...]
    folder: Path  # where hostfile and settings were read
    shared: str  # the shared folder's path, equal on every host
    project: str  # where this project and its .venv are on every host
    access: Access = Access()

    @property
    def master(self) -> Host:
        """Rank 0: jobs are started and kept from here."""
        return self.hosts[0]

    @property
    def python(self) -> str:
        """The interpreter of the project's environment, on every host."""
        return f"{self.project}/.venv/bin/python"


def cluster_folder(where: str | None = None) -> Path:
    """The folder that a name means: a folder's path, `lab` or `lab:NAME`; the project's own without one.

    The environment variable CLUSTER is the default, so that one `export` serves a whole session.
    """
    where = where or os.environ.get("CLUSTER") or str(ROOT)
    if where == "lab" or where.startswith("lab:"):
        return LABS / (where.partition(":")[2] or "lab")
    return Path(where).expanduser().resolve()


def load_cluster(where: str | None = None) -> Cluster:
    """The cluster that `where` (or CLUSTER, or the project's own folder) describes. Raises ConfigError."""
    folder = cluster_folder(where)
    path = folder / "hosts"
    if not path.exists():
        raise ConfigError(
            f"there is no hostfile {path}: 'inv hosts.write' makes it from a stack or a lab, "
            "or copy hosts.example and edit it"
        )
    hosts = read_hostfile(path)
    settings = _settings(folder / "cluster.toml")
    ssh = settings.get("ssh", {})
    all_local = all(h.is_local for h in hosts)
    return Cluster(
        name=settings.get("name", folder.name),
        hosts=hosts,
        folder=folder,
        shared=settings.get("shared", str(Path("~/dlami-cluster").expanduser()) if all_local else "/efs"),
        project=settings.get("project", str(ROOT)),
        access=Access(
            user=ssh.get("user"),
            port=ssh.get("port"),
            key=_path(ssh, "key", folder),
            known_hosts=_path(ssh, "known_hosts", folder),
            gateway=ssh.get("gateway"),
        ),
    )


_TYPES: dict[str, type] = {"name": str, "shared": str, "project": str, "ssh": dict}
_SSH_TYPES: dict[str, type] = {"user": str, "port": int, "key": str, "known_hosts": str, "gateway": str}


def _settings(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    import tomllib

    try:
        settings = tomllib.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path}: {e}") from e
    _check_types(path, settings, _TYPES)
    _check_types(path, settings.get("ssh", {}), _SSH_TYPES, prefix="ssh.")
    return settings


def _check_types(path: Path, settings: dict[str, Any], types: dict[str, type], prefix: str = "") -> None:
    """Only the keys that this package reads; the stack checks its own."""
    for key, kind in types.items():
        if key in settings and not isinstance(settings[key], kind):
            raise ConfigError(f"{path}: {prefix}{key} is {settings[key]!r}, expected {kind.__name__}")


def _path(ssh: dict[str, Any], key: str, folder: Path) -> Path | None:
    return folder / Path(ssh[key]).expanduser() if key in ssh else None

"""Which cluster a task means: a folder that holds a hostfile and, where SSH needs more than that, a `cluster.toml`."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ConfigError
from cluster.files import IS_CHECKOUT
from cluster.hosts import ADDRESS, Host, read_hostfile
from cluster.settings import FieldError, read

ROOT = Path(__file__).resolve().parent.parent
ON_NODES = "/opt/dlami-cluster"  # where a stack's nodes have the project, if their cluster file says nothing else
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
    """The folder that a name means: a folder's path, `lab` or `lab:NAME`.

    The environment variable CLUSTER is the default, so that one `export` serves a whole session. Without it, the folder
    with a cluster file where one stands or above; in a checkout the project's own if there is none.
    """
    where = where or os.environ.get("CLUSTER")
    if not where:
        return folder_upwards(Path.cwd()) or (ROOT if IS_CHECKOUT else Path.cwd())
    if where == "lab" or where.startswith("lab:"):
        return LABS / (where.partition(":")[2] or "lab")
    return Path(where).expanduser().resolve()


def folder_upwards(start: Path) -> Path | None:
    """The nearest folder, from this one upwards, that holds a cluster file or a hostfile."""
    for folder in (start, *start.parents):
        is_a_machines_own = folder == Path("/etc")  # whose file `hosts` is another thing
        if (folder / "cluster.toml").is_file() or ((folder / "hosts").is_file() and not is_a_machines_own):
            return folder
    return None


def cluster_file(name: str) -> Path:
    """A cluster file by its name: where CLUSTER says, here, or in the nearest folder above that has it."""
    path, where = Path(name), os.environ.get("CLUSTER", "")
    if len(path.parts) != 1:
        return path
    named = cluster_folder(where) / name if where else path
    folders = (Path.cwd(), *Path.cwd().parents)
    return next((p for p in (named, *(folder / name for folder in folders)) if p.is_file()), path)


def load_cluster(where: str | None = None) -> Cluster:
    """The cluster that `where` (or CLUSTER, or the project's own folder) describes. Raises ConfigError."""
    folder = cluster_folder(where)
    path = folder / "hosts"
    if not path.exists():
        if not (where or os.environ.get("CLUSTER") or IS_CHECKOUT or folder_upwards(folder)):
            raise ConfigError(
                f"there is no cluster in {folder} or above it: go to the folder of its cluster.toml or name it: "
                "CLUSTER=/a/folder, CLUSTER=lab:NAME. A new one: dlami stack.init, or dlami lab.up"
            )
        raise ConfigError(
            f"there is no hostfile {path}: 'inv hosts.write' makes it from a stack or a lab, "
            "or copy hosts.example and edit it"
        )
    hosts = read_hostfile(path)
    settings = folder / "cluster.toml"

    def cluster(values: dict[str, Any]) -> Cluster:
        return _cluster(values, hosts, folder)

    return read(settings, cluster) if settings.exists() else cluster({})


def _cluster(values: dict[str, Any], hosts: tuple[Host, ...], folder: Path) -> Cluster:
    """Raises FieldError for a value that no cluster can have."""
    for name in ("name", "shared", "project"):
        if values.get(name) == "":
            raise FieldError(name, "is empty", "give it a value, or leave the line out")
    for name in ("shared", "project"):
        if name in values and not values[name].startswith("/"):
            raise FieldError(name, f"{values[name]!r} is not an absolute path", "write it like '/efs'")
    all_local = all(h.is_local for h in hosts)
    return Cluster(
        name=values.get("name", folder.name),
        hosts=hosts,
        folder=folder,
        shared=values.get("shared", str(Path("~/dlami-cluster").expanduser()) if all_local else "/efs"),
        project=values.get("project", str(ROOT) if IS_CHECKOUT else ON_NODES),
        access=_access(values.get("ssh", {}), folder),
    )


def _access(ssh: dict[str, Any], folder: Path) -> Access:
    check_ssh(ssh)
    return Access(
        user=ssh.get("user"),
        port=ssh.get("port"),
        key=_path(ssh, "key", folder),
        known_hosts=_path(ssh, "known_hosts", folder),
        gateway=ssh.get("gateway"),
    )


def check_ssh(ssh: dict[str, Any]) -> None:
    """Raises FieldError for an [ssh] table with which no ssh could be started."""
    for name, value in ssh.items():
        if value == "":
            raise FieldError(f"ssh.{name}", "is empty", "give it a value, or leave the line out")
    if not 1 <= ssh.get("port", 22) <= 65535:
        raise FieldError("ssh.port", f"{ssh['port']} is not a port", "22 is usual")
    if "user" in ssh and not re.fullmatch(r"[A-Za-z_][\w.@\\-]{0,63}", ssh["user"]):
        raise FieldError("ssh.user", f"{ssh['user']!r} is not a login name", "give one such as 'ubuntu'")
    if "gateway" in ssh and not ADDRESS.fullmatch(ssh["gateway"]):
        raise FieldError("ssh.gateway", f"{ssh['gateway']!r} is not an address", "give a host's name or address")
    for name in ("key", "known_hosts"):
        if name in ssh:
            _expanded(f"ssh.{name}", ssh[name])


def _expanded(name: str, value: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError as e:
        raise FieldError(name, f"{value!r}: no user of that name is here", "write the whole path") from e


def _path(ssh: dict[str, Any], key: str, folder: Path) -> Path | None:
    return folder / _expanded(f"ssh.{key}", ssh[key]) if key in ssh else None

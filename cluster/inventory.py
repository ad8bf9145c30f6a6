"""Cluster of a task: its folder has a hostfile and, if SSH needs more settings, a `cluster.toml`."""

import getpass
import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.clusterfile import reader
from cluster.clusterfile.checks import REGION, FieldError, expanded
from cluster.clusterfile.model import ON_NODES, ClusterFile, is_of_a_stack
from cluster.errors import ConfigError
from cluster.files import IS_CHECKOUT
from cluster.hosts import Host, read_hostfile
from cluster.locate import ROOT, existing_folder, no_hostfile

INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")


@dataclass(frozen=True, kw_only=True)
class Tunnel:
    """Connection through the AWS CLI to a gateway that has no open port for this machine."""

    mode: str  # "ssm": by Session Manager; "eic": by the VPC's EC2 Instance Connect Endpoint
    region: str
    lends_key: bool  # EC2 Instance Connect accepts our key for each connection


@dataclass(frozen=True, kw_only=True)
class SshSettings:
    """SSH settings. Settings that are None come from the user's agent and ~/.ssh/config."""

    user: str | None = None
    port: int | None = None
    key: Path | None = None  # a private key; without one the agent and the usual keys are tried
    known_hosts: Path | None = None  # host keys to trust; without one ~/.ssh/known_hosts
    gateway: str | None = None  # the master's address from this machine; it is the jump host to the others
    tunnel: Tunnel | None = None  # the tunnel to the gateway, if that is an instance's id


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Name, hosts and settings of a cluster, whatever made it."""

    name: str
    hosts: tuple[Host, ...]
    folder: Path  # the folder of the hostfile and the settings
    shared: str  # the shared folder's path, equal on every host
    is_shared: bool = True  # True if all hosts see the same folder, else it is on the master's own disk
    project: str  # the folder of this project and its .venv on every host
    access: SshSettings = SshSettings()
    stack: str = ""  # region and name of its stack, as `us-east-1/training`; "" for none
    notify: str = ""  # receiver of notifications about jobs: a command on the master, or an SNS topic
    results: str = ""  # destination of jobs' results, as `s3://bucket/prefix`; "" for none
    setup: Path | None = None  # the operator's own setup script for every node

    @property
    def master(self) -> Host:
        """Return rank 0, which starts and keeps the jobs."""
        return self.hosts[0]

    @property
    def python(self) -> str:
        """Return the path of the interpreter of the project's environment, on every host."""
        return f"{self.project}/.venv/bin/python"


def load_cluster(where: str | None = None) -> Cluster:
    """Return the cluster that `where` (or CLUSTER, or the project's own folder) describes. Raises ConfigError."""
    folder = existing_folder(where)
    path = folder / "hosts"
    try:
        is_there = path.exists()
    except PermissionError:
        raise ConfigError(
            f"{folder} may not be read by {getpass.getuser()}: a lab is root's, 'sudo -E' uses it"
        ) from None
    if not is_there:
        raise ConfigError(no_hostfile(folder, where))
    hosts = read_hostfile(path)
    settings = folder / "cluster.toml"

    def cluster(values: dict[str, Any]) -> Cluster:
        return _cluster(values, hosts, folder)

    return reader.read(settings, cluster) if settings.exists() else cluster({})


def _cluster(values: dict[str, Any], hosts: tuple[Host, ...], folder: Path) -> Cluster:
    """Return the cluster with these values. Raises FieldError for a value that no cluster can have."""
    all_local = all(h.is_local for h in hosts)
    file = reader.parse(
        values,
        name=folder.name,
        region="",
        shared=str(Path("~/dlami-cluster").expanduser()) if all_local else "/efs",
        project=str(ROOT) if IS_CHECKOUT else ON_NODES,
    )
    if file.shared_by == "master" and is_of_a_stack(values):
        raise FieldError("shared_by", "is for a cluster without a stack", "leave it out: a stack's nodes share one")
    return Cluster(
        name=file.name,
        hosts=hosts,
        folder=folder,
        shared=file.shared,
        is_shared=file.shared_by == "all",
        project=file.project,
        access=access_of(file, folder, values.get("ssh", {})),
        stack=_stack(values),
        notify=file.notify,
        results=file.results,
        setup=folder / expanded("setup", file.setup) if file.setup else None,
    )


def _stack(values: dict[str, Any]) -> str:
    """Return the file's stack as region/name, "" if it describes no stack or lacks region or name."""
    return f"{values['region']}/{values['name']}" if is_of_a_stack(values) and {"region", "name"} <= set(values) else ""


def access_of(file: ClusterFile, folder: Path, given: Container[str] = ("user", "port")) -> SshSettings:
    """Return the SSH settings of a cluster file in this folder. Raises FieldError.

    given: the fields of [ssh] that the file sets. User and port are else left to ssh.
    """
    ssh = file.ssh
    return SshSettings(
        user=ssh.user if "user" in given else None,
        port=ssh.port if "port" in given else None,
        key=folder / expanded("ssh.key", ssh.key) if ssh.key else None,
        known_hosts=folder / expanded("ssh.known_hosts", ssh.known_hosts) if ssh.known_hosts else None,
        gateway=ssh.gateway or None,
        tunnel=_tunnel(file),
    )


def _tunnel(file: ClusterFile) -> Tunnel | None:
    """Return the tunnel to the gateway, None if the gateway is not an instance's id. Raises FieldError."""
    mode = file.access.mode
    if mode == "ssh" or not INSTANCE.fullmatch(file.ssh.gateway):
        return None
    if not re.fullmatch(REGION, file.region):
        problem = f"{file.region!r} is no region, and access.mode {mode!r} needs it"
        raise FieldError("region", problem, "write it like 'us-east-1'")
    has_own_key = bool(file.access.key_pair or file.access.public_key)
    return Tunnel(mode=mode, region=file.region, lends_key=mode == "eic" or not has_own_key)


def results_url(results: str, job_id: str) -> str:
    """Return the S3 URL of one job's results."""
    return f"{results.rstrip('/')}/{job_id}"

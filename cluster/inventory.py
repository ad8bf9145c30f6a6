"""Cluster of a task: its folder has a hostfile and, if SSH needs more settings, a `cluster.toml`."""

import getpass
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ConfigError
from cluster.files import IS_CHECKOUT
from cluster.hosts import ADDRESS, Host, read_hostfile
from cluster.locate import ROOT, existing_folder, no_hostfile
from cluster.settings import ACCESS_MODES, STACK, FieldError, read

ON_NODES = "/opt/dlami-cluster"  # the project's folder on a stack's nodes, unless their cluster file has another one
REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
SNS_TOPIC = re.compile(r"arn:aws[a-z-]*:sns:([a-z]{2}(?:-[a-z]+)+-\d):\d{12}:[\w-]{1,256}")  # group 1 is its region
# Bucket, and a prefix of characters without a special meaning to S3 or IAM.
RESULTS = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_.=+-]+)*/?")


@dataclass(frozen=True, kw_only=True)
class Tunnel:
    """Connection through the AWS CLI to a gateway that has no open port for this machine."""

    mode: str  # "ssm": by Session Manager; "eic": by the VPC's EC2 Instance Connect Endpoint
    region: str
    lends_key: bool  # EC2 Instance Connect accepts our key for each connection


@dataclass(frozen=True, kw_only=True)
class Access:
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
    access: Access = Access()
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

    return read(settings, cluster) if settings.exists() else cluster({})


def _cluster(values: dict[str, Any], hosts: tuple[Host, ...], folder: Path) -> Cluster:
    """Return the cluster with these values. Raises FieldError for a value that no cluster can have."""
    for name in ("name", "shared", "project"):
        if values.get(name) == "":
            raise FieldError(name, "is empty", "give it a value, or leave the line out")
    for name in ("shared", "project"):
        if name in values and not values[name].startswith("/"):
            raise FieldError(name, f"{values[name]!r} is not an absolute path", "write it like '/efs'")
    check_notify(values.get("notify", ""))
    check_results(values.get("results", ""))
    all_local = all(h.is_local for h in hosts)
    return Cluster(
        name=values.get("name", folder.name),
        hosts=hosts,
        folder=folder,
        shared=values.get("shared", str(Path("~/dlami-cluster").expanduser()) if all_local else "/efs"),
        is_shared=_is_shared(values),
        project=values.get("project", str(ROOT) if IS_CHECKOUT else ON_NODES),
        access=read_access(values, folder),
        stack=_stack(values),
        notify=values.get("notify", ""),
        results=values.get("results", ""),
        setup=folder / _expanded("setup", values["setup"]) if values.get("setup") else None,
    )


def _stack(values: dict[str, Any]) -> str:
    """Return the file's stack as region/name, "" if it describes no stack or lacks region or name."""
    return f"{values['region']}/{values['name']}" if is_of_a_stack(values) and {"region", "name"} <= set(values) else ""


def is_of_a_stack(values: dict[str, Any]) -> bool:
    """Return True if a cluster file has a table that only a stack needs."""
    return any(isinstance(values.get(name), dict) for name in STACK)


def _is_shared(values: dict[str, Any]) -> bool:
    """Return True if all hosts see the same shared folder. Raises FieldError."""
    by = values.get("shared_by", "all")
    if by not in ("all", "master"):
        raise FieldError("shared_by", f"{by!r} is unknown", "choose 'all', or 'master': it is on the master's own disk")
    if by == "master" and is_of_a_stack(values):
        raise FieldError("shared_by", "is for a cluster without a stack", "leave it out: a stack's nodes share one")
    return by == "all"


def read_access(values: dict[str, Any], folder: Path) -> Access:
    """Return the SSH settings of a cluster file. Raises FieldError."""
    ssh = values.get("ssh", {})
    check_ssh(ssh)
    return Access(
        user=ssh.get("user"),
        port=ssh.get("port"),
        key=_path(ssh, "key", folder),
        known_hosts=_path(ssh, "known_hosts", folder),
        gateway=ssh.get("gateway"),
        tunnel=_tunnel(values, ssh),
    )


def _tunnel(values: dict[str, Any], ssh: dict[str, Any]) -> Tunnel | None:
    """Return the tunnel to the gateway, None if the gateway is not an instance's id. Raises FieldError."""
    access = values.get("access", {})
    mode = access.get("mode", "ssh")
    check_mode(mode, ssh.get("port", 22))
    if mode == "ssh" or not INSTANCE.fullmatch(ssh.get("gateway", "")):
        return None
    if not REGION.fullmatch(values.get("region", "")):
        problem = f"{values.get('region', '')!r} is no region, and access.mode {mode!r} needs it"
        raise FieldError("region", problem, "write it like 'us-east-1'")
    has_own_key = bool(access.get("key_pair") or access.get("public_key"))
    return Tunnel(mode=mode, region=values["region"], lends_key=mode == "eic" or not has_own_key)


def check_mode(mode: str, port: int = 22) -> None:
    """Raise FieldError for an access mode that does not exist, or that cannot reach sshd at this port."""
    if mode not in ACCESS_MODES:
        raise FieldError("access.mode", f"{mode!r} is unknown", "choose 'ssh', 'ssm' or 'eic'")
    if mode == "eic" and port != 22:
        raise FieldError("ssh.port", f"is {port}, and an Instance Connect Endpoint leads to port 22", "use mode 'ssm'")


def check_notify(notify: str) -> None:
    """Raise FieldError for a text that is neither an SNS topic nor a command that a process list may show."""
    if notify.startswith("arn:"):
        if not SNS_TOPIC.fullmatch(notify):
            raise FieldError(
                "notify",
                f"{notify!r} is not the ARN of a standard SNS topic",
                "write it like 'arn:aws:sns:us-east-1:123456789012:trainings'",
            )
        return
    try:
        words = shlex.split(notify)
    except ValueError as e:
        raise FieldError("notify", f"is no command: {str(e).lower()}", "close the quotes") from e
    if any("://" in word for word in words):
        raise FieldError(
            "notify",
            "has a web address in it, which the stack and every list of processes would show to others",
            "put it into a script that only you can read on the master, and give the script's path",
        )


def check_results(results: str) -> None:
    """Raise FieldError for a text that is no place in S3."""
    if results and not RESULTS.fullmatch(results):
        raise FieldError("results", f"{results!r} is no place in S3", "write it like 's3://bucket/trainings'")


def results_url(results: str, job_id: str) -> str:
    """Return the S3 URL of one job's results."""
    return f"{results.rstrip('/')}/{job_id}"


def check_ssh(ssh: dict[str, Any]) -> None:
    """Raise FieldError for an [ssh] table with which ssh cannot be started."""
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

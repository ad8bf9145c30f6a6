"""Service: a page that the master serves for one user, as a process with a private folder."""

import contextlib
import dataclasses
import json
import os
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cluster.errors import ClusterError, ConfigError
from cluster.files import write_json
from cluster.jobs.record import JOB_TAG
from cluster.ssh.onhost import trusted_files
from cluster.typed import from_json

Kind = Literal["tensorboard", "jupyter"]
TAG = "DLAMI_TUNNEL"  # variable of a service's processes: its id
FOLDER_TAG = "DLAMI_TUNNEL_FOLDER"  # variable with its folder, in which viewers touch `seen`
ATTENDED_S = 45.0  # a page counts as viewed for this time after the last touch of `seen`
_STARTED_S = 60.0  # a folder this old without a process was left by a killed service
_BASE = Path("/var/tmp")  # the master's own disk, so that a hung shared folder blocks no page


@dataclass(frozen=True, kw_only=True)
class ServiceRequest:
    """Request for a service: what is served, and to whom."""

    kind: str  # a `Kind`
    shared: str  # the cluster's shared folder
    job: str = ""  # id of the job whose numbers are shown, or "all"; "" for a notebook
    asked_by: str = ""  # user and machine, as `inv tunnels` shows them
    cluster: str = ""  # the cluster's folder on the requesting machine; a lab's is the same on the master
    stays_s: float = 600.0  # the service ends after this time without a viewer
    address: str = ""  # address that is also served by TLS; "" for loopback only
    port: int = 0  # port of that address
    allow: str = ""  # networks that are let in there, as CIDRs with commas between them
    password: str = ""  # salted and hashed (`front.hashed`); "" if a secret in the address protects the page
    token: str = ""  # that secret; "" to have the page make one
    page_port: int = 0  # port on loopback; 0 for a free one


@dataclass(frozen=True, kw_only=True)
class Service:
    """Running service."""

    id: str
    kind: str
    job: str
    asked_by: str
    pid: int  # PID of its keeper
    started: float  # seconds since 1970
    port: int  # on the master's loopback
    path: str  # path of its page, with the secret in it
    public: str = ""  # its address by TLS
    fingerprint: str = ""  # SHA-256 of the certificate there
    folder: str = ""
    attended: bool = False  # whether somebody views it now


@dataclass(frozen=True)
class ServicePaths:
    """Files of one service, for its user alone."""

    folder: Path

    @property
    def wanted(self) -> Path:
        """Return the path of the request."""
        return self.folder / "wanted.json"

    @property
    def ready(self) -> Path:
        """Return the path of the service's record, which exists once it serves."""
        return self.folder / "service.json"

    @property
    def seen(self) -> Path:
        """Return the path of a file that each viewer touches every few seconds."""
        return self.folder / "seen"

    @property
    def log(self) -> Path:
        """Return the path of its processes' output."""
        return self.folder / "log"


def services_folder() -> Path:
    """Return the folder of this user's services on this machine. Raises ConfigError if another user could use it."""
    name = f"dlami-tunnels-{os.getuid()}"
    try:
        folder = Path(trusted_files.own_folder(_BASE, name))
    except trusted_files.Untrusted as e:
        raise ConfigError(f"{_BASE / name}: {e.strerror}") from None
    if folder.lstat().st_mode & 0o077:
        raise ConfigError(f"{folder} is not a folder of this user alone: remove it")
    return folder


def new_service(wanted: ServiceRequest) -> ServicePaths:
    """Make the folder of a new service, with its request.

    Folders without a process, left by killed ones, are removed.
    """
    for old in map(ServicePaths, services_folder().iterdir()):
        with contextlib.suppress(FileNotFoundError):  # a service that ends at this moment
            if time.time() - old.folder.stat().st_mtime > _STARTED_S and not tagged(old.folder.name):
                remove(old)
    paths = ServicePaths(services_folder() / f"{wanted.kind}-{secrets.token_hex(3)}")
    paths.folder.mkdir(mode=0o700)
    write_json(paths.wanted, dataclasses.asdict(wanted), mode=0o600)
    return paths


def read_wanted(paths: ServicePaths) -> ServiceRequest:
    """Return the request for a service."""
    return from_json(ServiceRequest, json.loads(paths.wanted.read_bytes()))


def read_services() -> tuple[Service, ...]:
    """Return this user's running services, the oldest first."""
    found = []
    for paths in map(ServicePaths, sorted(services_folder().iterdir())):
        with contextlib.suppress(OSError, ValueError):
            one = from_json(Service, json.loads(paths.ready.read_bytes()))
            if one.id in tagged(one.id).values():
                found.append(dataclasses.replace(one, attended=is_attended(paths)))
    return tuple(sorted(found, key=lambda one: one.started))


def is_attended(paths: ServicePaths) -> bool:
    """Return True if a person views the page."""
    return unattended_s(paths) < ATTENDED_S


def unattended_s(paths: ServicePaths) -> float:
    """Return the seconds since the page's last viewer."""
    try:
        return max(0.0, time.time() - paths.seen.stat().st_mtime)
    except FileNotFoundError:
        return max(0.0, time.time() - paths.wanted.stat().st_mtime)


def end_service(paths: ServicePaths, grace_s: float = 5.0) -> None:
    """End the service's processes, and remove its folder. Raises ClusterError that names one that cannot be ended."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + wait_s
        for pid in tagged(paths.folder.name):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        while tagged(paths.folder.name) and time.monotonic() < deadline:
            time.sleep(0.05)
    if left := sorted(tagged(paths.folder.name)):
        raise ClusterError(f"{paths.folder.name}: process {left[0]} cannot be ended")
    remove(paths)


def remove(paths: ServicePaths) -> None:
    """Remove the service's folder."""
    import shutil

    shutil.rmtree(paths.folder, ignore_errors=True)


def tagged(service_id: str) -> dict[int, str]:
    """Return a service's processes by PID.

    Jobs that were started in a notebook are left out, with all that they run.
    """
    wanted = f"{TAG}={service_id}".encode()
    return {pid: service_id for pid, words in _environments() if wanted in words and not _is_of_a_job(words)}


def _is_of_a_job(words: list[bytes]) -> bool:
    return any(word.startswith(f"{JOB_TAG}=".encode()) for word in words)


def _environments() -> Iterator[tuple[int, list[bytes]]]:
    for one in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if one.name.isdigit():
                yield int(one.name), (one / "environ").read_bytes().split(b"\0")

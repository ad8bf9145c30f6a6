"""Record of a lab and its hosts, kept in the lab's folder and written before anything else is created."""

import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from cluster.errors import ConfigError
from cluster.files import IS_CHECKOUT, write_json
from cluster.locate import LABS, ROOT
from cluster.typed import from_json

SHARED = "/shared"  # where every lab host sees the shared folder


@dataclass(frozen=True, kw_only=True)
class LabHost:
    """Host of a lab."""

    rank: int
    name: str  # its host name, also in every host's /etc/hosts
    address: str  # on the lab's own network
    slots: int
    is_spare: bool = False  # a spare host of the cluster: it waits to replace another


@dataclass(frozen=True, kw_only=True)
class Lab:
    """Lab: its name, network and hosts, and all its paths."""

    name: str
    network: str  # like 10.231.4.0/22; its last usable address is this machine's
    hosts: tuple[LabHost, ...]
    may_mount: bool = False  # whether root on a host may mount: for tests, since that root can change this machine

    @property
    def folder(self) -> Path:
        """Return the folder with all files of the lab."""
        return LABS / self.name

    @property
    def bridge(self) -> str:
        """Return the name of the lab's bridge, a network device of this machine."""
        return f"lab-{self.name}"

    @property
    def bridge_address(self) -> str:
        """Return this machine's address on the lab's network."""
        return str(IPv4Network(self.network)[-2])

    @property
    def shared(self) -> Path:
        """Return the path of the shared folder on this machine."""
        return self.folder / "shared"

    @property
    def key(self) -> Path:
        """Return the path of the private key for all hosts."""
        return self.folder / "id_ed25519"

    @property
    def project(self) -> Path:
        """Return this project's path on the hosts and here: the checkout, or else a copy of the installed package."""
        return ROOT if IS_CHECKOUT else self.folder / "project"

    @property
    def nodes(self) -> Path:
        """Return the folder with the hosts' own files."""
        return self.folder / "nodes"

    def host_folder(self, host: LabHost) -> Path:
        """Return the folder with the host's own files: what it wrote, and its host key."""
        return self.nodes / host.name

    def cable(self, host: LabHost) -> str:
        """Return the device name of the host's network cable, at the end that is plugged into the bridge."""
        return f"lab{self.name}.{host.rank}"

    def find(self, which: str) -> LabHost:
        """Return the host with this rank, name or address. Raises ConfigError."""
        for host in self.hosts:
            if which in (str(host.rank), host.name, host.address):
                return host
        raise ConfigError(
            f"lab {self.name} has no host {which!r}: give a rank (0 to {len(self.hosts) - 1}), a name or an address"
        )

    def write(self) -> None:
        """Write the record to disk."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)  # root on a lab host can leave programs in it that run as root
        write_json(self.folder / "lab.json", dataclasses.asdict(self))

    def remove(self) -> None:
        """Remove all files of the lab, and unmount the hosts' files if they are in memory."""
        if self.nodes.is_mount():
            subprocess.run(["umount", "--lazy", str(self.nodes)], check=True, timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)


def check_name(name: str) -> str:
    """Return the name if it is valid for a lab, else raise ConfigError.

    It becomes part of short network device names.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]{0,7}", name):
        raise ConfigError(f"lab name {name!r}: expected 1 to 8 small letters and digits, a letter first")
    return name


def load_lab(name: str) -> Lab | None:
    """Return the lab on record, or None. Raises ConfigError if its record cannot be read."""
    path = LABS / check_name(name) / "lab.json"
    try:
        return from_json(Lab, json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{path} is damaged ({e}): 'inv lab.down --name {name}' removes the lab") from None


def table(statuses: Sequence[tuple[LabHost, str]]) -> str:
    """Return a lab's hosts and their states as a table."""
    return "\n".join(
        f"{host.rank:>4}  {host.name:<12}  {host.address:<15}  slots={host.slots}  {state}"
        f"{'  spare' if host.is_spare else ''}"
        for host, state in statuses
    )

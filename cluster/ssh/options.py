"""Options and control sockets with which we call ssh. Nothing is run here."""

import hashlib
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.hosts import Host
from cluster.inventory import SshSettings
from cluster.ssh import proxy
from cluster.ssh.launcher import launcher
from cluster.user_folders import runtime_folder

LIFETIME_S = 600  # how long an unused connection stays open
_SOCKET_PATH = 85  # bytes: ssh adds 17 while it makes one, the kernel allows 107


@dataclass(frozen=True)
class Route:
    """Route to one host: the address, and the gateway if there is one."""

    address: str
    access: SshSettings
    gateway: "Route | None" = None
    label: str = ""  # of a connection beside the one that all tasks share; "": the shared one

    @property
    def socket(self) -> Path:
        """Return the control socket of the connection.

        Each user, key and list of known hosts has a connection of its own.
        """
        access = self.access
        parts = (
            access.user,
            access.port,
            access.key,
            access.known_hosts,
            self.gateway and self.gateway.address,
            self.label,
        )
        folder = sockets_folder() / hashlib.sha256(repr(parts).encode()).hexdigest()[:8]
        name = (
            self.address
            if len(str(folder)) + len(self.address) < _SOCKET_PATH
            else hashlib.sha256(self.address.encode()).hexdigest()[:16]
        )
        return folder / name

    @property
    def said(self) -> Path:
        """Return the file for the error output of the connection's proxy."""
        return self.socket.with_name(f"{self.socket.name}.said")


def way_to(host: Host, access: SshSettings) -> Route:
    """Return the route to a host.

    Where there is a gateway, the master is the gateway itself, and other hosts are behind it.
    """
    if not access.gateway:
        return Route(host.address, access)
    gateway = Route(access.gateway, access)
    return gateway if host.rank == 0 else Route(host.address, access, gateway)


# curve25519 goes first: OpenSSH's own first choice costs each side 60 ms of CPU per connection.
_QUIET = {"BatchMode": "yes", "LogLevel": "ERROR", "KexAlgorithms": "^curve25519-sha256"}
_STRICT = {
    "StrictHostKeyChecking": "yes",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "UpdateHostKeys": "no",
    "GSSAPIAuthentication": "no",
}


# What a host's own ~/.ssh/config may say that keeps ssh from running one command there and passing on its streams.
# An ssh before 8.7, or 7.6, does not know all of them.
_ONE_COMMAND = {
    "IgnoreUnknown": "*",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "SessionType": "default",
    "StdinNull": "no",
    "ForkAfterAuthentication": "no",
    "PermitLocalCommand": "no",
    "ClearAllForwardings": "yes",
}


def options(access: SshSettings) -> list[str]:
    """Return the options of every ssh that we start.

    It never asks, trusts known host keys only, and detects a dead host in 15 s.
    """
    return [*launcher().ssh_settings, *_as_words({**_QUIET, **_STRICT, **_of_access(access)})]


def options_for_a_person(way: Route, *, forward_agent: bool) -> list[str]:
    """Return the options for a login shell. It may ask for a passphrase, and forwards the agent if asked to."""
    asks = {name: value for name, value in _QUIET.items() if name != "BatchMode"}
    agent = {"ForwardAgent": "yes" if forward_agent else "no"}
    given = _as_words({**asks, **_STRICT, **agent, **_of_access(way.access)})
    return [*launcher().ssh_settings, *given, *proxy_options(way, for_a_person=True)]


def options_on_hosts() -> list[str]:
    """Return the options for an ssh from one host to another: the hosts' own settings apply, and it never prompts."""
    return [*launcher().ssh_settings, *_as_words({**_ONE_COMMAND, **_QUIET})]


def _as_words(given: Mapping[str, str]) -> list[str]:
    return [word for name, value in given.items() for word in ("-o", f"{name}={value}")]


def _of_access(access: SshSettings) -> dict[str, str]:
    given = {}
    if access.user:
        given["User"] = access.user
    if access.port:
        given["Port"] = str(access.port)
    if key := key_of(access):
        given |= {"IdentityFile": quoted(key), "IdentitiesOnly": "yes"}
    if access.known_hosts:
        given |= {"UserKnownHostsFile": quoted(access.known_hosts), "GlobalKnownHostsFile": "/dev/null"}
    return given


def connect_command(way: Route, connect_s: float, lifetime_s: int = LIFETIME_S) -> list[str]:
    """Return the ssh command that opens a connection in the background. It exits with 0 once the connection is open."""
    words = [
        "ssh",
        "-N",
        "-o",
        "ControlMaster=yes",
        "-o",
        f"ControlPath={_literal(way.socket)}",
        "-o",
        f"ControlPersist={lifetime_s}",
        "-o",
        f"ConnectTimeout={max(1, int(connect_s + 1))}",
        *options(way.access),
    ]
    return [*words, *proxy_options(way), "--", way.address]


def key_of(access: SshSettings) -> Path | None:
    """Return the key that we show. Return None to use the agent's and the usual ones.

    If the cluster lends a key and names none, it is our own.
    """
    is_our_own = access.key is None and access.tunnel is not None and access.tunnel.lends_key
    return sockets_folder() / "lent-key" if is_our_own else access.key


def needed_programs(mode: str) -> list[str]:
    """Return the programs that this machine needs for an access.mode."""
    return {"ssm": ["aws", "session-manager-plugin"], "eic": ["aws"]}.get(mode, [])


def proxy_options(way: Route, *, for_a_person: bool = False) -> list[str]:
    """Return the ssh options for a host that ssh does not connect to directly.

    for_a_person: leave the proxy's errors on the terminal, and write them to no file.
    """
    tunnel, gateway = way.access.tunnel, way.gateway
    if gateway is None and tunnel is None:
        return []
    if gateway is not None and not (tunnel and tunnel.lends_key):
        return ["-o", f"ProxyCommand={_through(gateway)}"]
    given: dict[str, object] = {"needs": needed_programs(tunnel.mode) if tunnel and gateway is None else []}
    if not for_a_person:
        given["said"] = _literal(way.said)
    if tunnel and tunnel.lends_key:
        given["lend"] = {key: _escaped(value) for key, value in lending(way).items()} | {"user": "%r"}
    words = [sys.executable, "-P", proxy.__file__, json.dumps(given)]
    before = " ".join(shlex.quote(word if word == words[-1] else _escaped(word)) for word in words)
    return ["-o", f"ProxyCommand={before} {_through(gateway) if gateway else _by_cli(way)}"]


def lending(way: Route) -> dict[str, str]:
    """Return the arguments of `proxy.lend` for a host, without the user."""
    tunnel, key, access = way.access.tunnel, key_of(way.access), way.access
    assert tunnel and key and access.gateway
    given = {"region": tunnel.region, "key": str(key), "instance": access.gateway}
    return {**given, "address": way.address} if way.gateway else given


def _by_cli(way: Route) -> str:
    """Return the AWS CLI command by which ssh reaches an instance."""
    tunnel = way.access.tunnel
    assert tunnel
    if tunnel.mode == "eic":
        words = ["aws", "ec2-instance-connect", "open-tunnel", "--instance-id", way.address, "--remote-port", "%p"]
    else:
        words = ["aws", "ssm", "start-session", "--target", way.address]
        words += ["--document-name", "AWS-StartSSHSession", "--parameters", "portNumber=%p"]
    return shlex.join([*words, "--region", tunnel.region])


def agent_command(way: Route) -> list[str]:
    """Return an ssh for other programs (mpirun, rsync) over the open connections to hosts reached this way."""
    return [
        "ssh",
        "-o",
        "ControlMaster=no",
        "-o",
        f"ControlPath={_literal(way.socket.parent)}/%h",
        *_as_words(_ONE_COMMAND),
        *options(way.access),
    ]


def sockets_folder() -> Path:
    """Return the folder of our control sockets, mode 0700. Raises ConfigError if another folder is in its place."""
    return runtime_folder()


def quoted(path: Path) -> str:
    """Return a path quoted for an ssh option, in which blanks and `%` have a meaning."""
    return f'"{_literal(path)}"'


def _literal(path: Path) -> str:
    return _escaped(str(path))


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _through(gateway: Route) -> str:
    """Return the command by which ssh reaches a host behind a gateway, over the gateway's own connection."""
    socket = str(gateway.socket).replace("%", "%%%%")
    return (
        "ssh "
        + shlex.join(["-o", f"ControlPath={socket}", "-o", "ControlMaster=no", "-o", "BatchMode=yes"])
        + f" -W '[%h]:%p' {shlex.quote(gateway.address)}"
    )

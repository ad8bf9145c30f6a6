"""[ssh] of a cluster file."""

from dataclasses import dataclass

from cluster.clusterfile.checks import FieldError, expanded, match
from cluster.clusterfile.schema import filled
from cluster.hosts import ADDRESS


@dataclass(frozen=True, kw_only=True)
class Ssh:
    """Login on the nodes, for the tasks."""

    user: str = filled("ubuntu")
    """Login name: 'ubuntu' on Ubuntu AMIs, 'admin' on Debian's."""
    key: str = filled("")
    """Private key file on this machine. Empty: the agent's keys, then the cluster key."""
    port: int = 22
    """Port of sshd on the nodes."""
    known_hosts: str = filled("")
    """File with the nodes' host keys. Empty: the one the nodes publish on the shared file system."""
    gateway: str = filled("")
    """Host to jump over on the way to the nodes. Empty: the master, when this is not the master."""

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise FieldError("ssh.port", f"{self.port} is not a port", "22 is usual")
        match("ssh.user", self.user, r"[A-Za-z_][\w.@\\-]{0,63}", "give one such as 'ubuntu'", "is not a login name")
        if self.gateway and not ADDRESS.fullmatch(self.gateway):
            raise FieldError("ssh.gateway", f"{self.gateway!r} is not an address", "give a host's name or address")
        for name in ("key", "known_hosts"):
            expanded(f"ssh.{name}", getattr(self, name))

    def check_stack(self) -> None:
        """Raise FieldError if first boot cannot make this login on a stack's nodes."""
        match("ssh.user", self.user, r"[a-z_][a-z0-9_-]{0,31}", "give a login name such as 'ubuntu'")

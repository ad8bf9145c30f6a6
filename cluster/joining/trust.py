"""Which host keys are believed, and by what. No hosts, no questions."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from cluster.errors import ClusterError
from cluster.joining.keys import HostKey


class Proof(Enum):
    """What vouches for a host's key."""

    HERE = "this machine itself"
    KNOWN = "known to this machine already"
    CONSOLE = "the same as on its EC2 console"
    NOBODY = "vouched for by nobody: compare it"


class NotTheHost(ClusterError):
    """A host shows another key than the one it must have."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The keys of a host that go into `known_hosts`, once they are believed."""

    address: str
    keys: tuple[HostKey, ...]
    proof: Proof

    def __str__(self) -> str:
        return f"{self.address}  {self.keys[0].kind}  {self.keys[0].fingerprint}  {self.proof.value}"


def judged(
    address: str, keys: Collection[HostKey], known: Collection[HostKey], console: Collection[str], file: object = ""
) -> Shown:
    """What is believed of the keys that a host shows: those that are vouched for, else the best one, unproven.

    known: those this machine knows it by, as the file says. console: fingerprints on its EC2 console. Raises
    NotTheHost for a host whose keys are all others than those.
    """
    first = next(iter(keys))
    if console:
        proven = tuple(k for k in keys if k.fingerprint in console)
        if not proven:
            raise NotTheHost(
                f"{address} shows the host key {first.fingerprint}, and its EC2 console has another: do not log in to "
                "it; somebody is in between, or its keys were made anew after its boot"
            )
        return Shown(address=address, keys=proven, proof=Proof.CONSOLE)
    if known:
        proven = tuple(k for k in keys if k in known)
        if not proven:
            raise NotTheHost(
                f"{address} shows the host key {first.fingerprint}, which is not the one this machine knows it by: if "
                f"it was replaced, 'ssh-keygen -R {address} -f {file}', else do not log in to it"
            )
        return Shown(address=address, keys=proven, proof=Proof.KNOWN)
    return Shown(address=address, keys=(first,), proof=Proof.NOBODY)

"""Trust in host keys, and the proof for it. Pure functions."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from cluster.errors import ClusterError
from cluster.join.keys import HostKey


class Proof(Enum):
    """Kinds of proof for a host's key."""

    HERE = "this machine itself"
    KNOWN = "known to this machine already"
    CONSOLE = "the same as on its EC2 console"
    NOBODY = "vouched for by nobody: compare it"


class NotTheHost(ClusterError):
    """Error: a host shows a key other than the expected one."""


@dataclass(frozen=True, kw_only=True)
class ProvenKeys:
    """Keys of a host that go into `known_hosts` once they are trusted."""

    address: str
    keys: tuple[HostKey, ...]
    proof: Proof

    def __str__(self) -> str:
        return f"{self.address}  {self.keys[0].kind}  {self.keys[0].fingerprint}  {self.proof.value}"


def judged(
    address: str, keys: Collection[HostKey], known: Collection[HostKey], console: Collection[str], file: object = ""
) -> ProvenKeys:
    """Return the proven keys among those that a host shows; if there is no proof, the best one, unproven.

    known: those this machine knows it by, according to `file`. console: fingerprints on its EC2 console. Raises
    NotTheHost if none of the host's keys is among those.
    """
    first = next(iter(keys))
    if console:
        proven = tuple(k for k in keys if k.fingerprint in console)
        if not proven:
            raise NotTheHost(
                f"{address} shows the host key {first.fingerprint}, and its EC2 console has another: do not log in to "
                "it; somebody is in between, or its keys were made anew after its boot"
            )
        return ProvenKeys(address=address, keys=proven, proof=Proof.CONSOLE)
    if known:
        proven = tuple(k for k in keys if k in known)
        if not proven:
            raise NotTheHost(
                f"{address} shows the host key {first.fingerprint}, which is not the one this machine knows it by: if "
                f"it was replaced, 'ssh-keygen -R {address} -f {file}', else do not log in to it"
            )
        return ProvenKeys(address=address, keys=proven, proof=Proof.KNOWN)
    return ProvenKeys(address=address, keys=(first,), proof=Proof.NOBODY)

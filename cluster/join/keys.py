"""SSH host keys: collection from hosts, fingerprints, and the format of `known_hosts`."""

import base64
import binascii
import hashlib
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError

SCAN_S = 5  # for a host to send its keys
KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")  # best first
KEY = re.compile(rf"({'|'.join(KINDS)}) ([A-Za-z0-9+/]{{40,2000}}={{0,2}})")


@dataclass(frozen=True, order=True)
class HostKey:
    """Public key of a host."""

    kind: str
    blob: str  # base64

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint as OpenSSH and EC2's console show it."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    def __str__(self) -> str:
        return f"{self.kind} {self.blob}"


def key_in(text: str) -> HostKey | None:
    """Return the key in a line, or None."""
    match = KEY.search(text)
    if not match:
        return None
    try:
        base64.b64decode(match[2], validate=True)
    except binascii.Error:
        return None
    return HostKey(match[1], match[2])


def collected(addresses: Sequence[str], port: int) -> dict[str, tuple[HostKey, ...]]:
    """Return the keys that each host shows now, best first; () if it shows none. They are not verified yet.

    Raises ClusterError if ssh-keyscan is missing or takes too long.
    """
    words = ["ssh-keyscan", "-T", str(SCAN_S), "-p", str(port), "--", *addresses]
    limit_s = SCAN_S * (2 + len(addresses))  # it queries all hosts at once, for each kind of key
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=limit_s, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise ClusterError("ssh-keyscan is not on this machine: install OpenSSH's client") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"ssh-keyscan did not end within {limit_s} s: try again, with fewer hosts") from None
    return shown(done.stdout, addresses, port)


def shown(text: str, addresses: Sequence[str], port: int) -> dict[str, tuple[HostKey, ...]]:
    """Parse the output of ssh-keyscan, by address."""
    address_of = {known_as(a, port): a for a in addresses}
    found: dict[str, set[HostKey]] = {a: set() for a in addresses}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name in address_of and (key := key_in(rest)):
            found[address_of[name]].add(key)
    return {a: tuple(sorted(keys, key=lambda k: KINDS.index(k.kind))) for a, keys in found.items()}


def known_in(file: Path, address: str, port: int) -> frozenset[HostKey]:
    """Return the keys under which a `known_hosts` knows the host, hashed names included."""
    words = ["ssh-keygen", "-F", known_as(address, port), "-f", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=30, stdin=subprocess.DEVNULL)
    lines = [line for line in done.stdout.splitlines() if not line.startswith(("#", "@"))]
    return frozenset(key for line in lines if (key := key_in(line)))


def known_as(address: str, port: int) -> str:
    """Return the name of a host in `known_hosts`."""
    return address if port == 22 else f"[{address}]:{port}"


def known_hosts(keys: Mapping[str, Iterable[HostKey]], port: int) -> str:
    """Return the text of a `known_hosts` with these hosts."""
    return "".join(f"{known_as(address, port)} {key}\n" for address, own in keys.items() for key in own)

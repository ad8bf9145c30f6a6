"""Discovery of the hosts that join, and of proof for their host keys. No host is logged in to."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError
from cluster.hosts import is_this_machine
from cluster.inventory import SshSettings
from cluster.join import keys
from cluster.join.console import Consoles, consoles
from cluster.join.host_keys import NotTheHost, Proof, ProvenKeys, judged
from cluster.join.members import NamedHost, in_hostfile, named, with_new_members


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """Options of `inv hosts.join`."""

    words: tuple[str, ...]  # hosts, as typed
    name: str
    access: SshSettings  # how to log in now; its known_hosts is ignored
    slots: int | None = None
    shared: str = ""  # a folder that all hosts have already, or the mount point of the leader's
    nfs: bool = False
    project: str = "~/dlami-cluster"  # path on every host, now or later


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Hosts that join, with the proof for their host keys."""

    members: tuple[NamedHost, ...]  # the leader first
    shown: Mapping[str, ProvenKeys]
    consoles: Consoles

    @property
    def unproven(self) -> tuple[ProvenKeys, ...]:
        """Return the hosts whose keys a person has to confirm."""
        return tuple(s for s in self.shown.values() if s.proof is Proof.NOBODY)

    def record(self) -> dict[str, Any]:
        """Return the hosts and their keys as JSON data."""
        return {
            "hosts": [
                {
                    "address": s.address,
                    "keys": [{"kind": k.kind, "fingerprint": k.fingerprint} for k in s.keys],
                    "vouched_for_by": s.proof.name.lower(),
                }
                for s in self.shown.values()
            ]
        }


def gather(request: JoinRequest, folder: Path) -> Gathered:
    """Find out which hosts join and what their host keys are. No host is logged in to.

    Raises ConfigError, NotTheHost for hosts with a wrong key, and ClusterError that names each host without an answer.
    """
    members = _members(request, folder)
    port = request.access.port or 22
    found = keys.collected([m.address for m in members], port)
    if silent := [a for a, shown in found.items() if not shown]:
        raise ClusterError(
            f"no SSH host key from {', '.join(silent)} within {keys.SCAN_S} s: are they up, is port {port} open to "
            "this machine (security group), or can only the leader reach them? Then run this on the leader"
        )
    told = consoles([m.address for m in members if not m.is_here])
    files = [f for f in (folder / "known_hosts", Path("~/.ssh/known_hosts").expanduser()) if f.exists()]
    shown: dict[str, ProvenKeys] = {}
    wrong: list[str] = []
    for member in members:
        address = member.address
        if member.is_here:
            shown[address] = ProvenKeys(address=address, keys=found[address], proof=Proof.HERE)
            continue
        known = {file: keys.known_in(file, address, port) for file in files}
        file = next((f for f, own in known.items() if own), None)  # the cluster's own file comes first
        prints = told.fingerprints.get(address, frozenset())
        try:
            shown[address] = judged(address, found[address], known[file] if file else (), prints, file)
        except NotTheHost as e:
            wrong.append(str(e))
    if wrong:
        raise NotTheHost("\n".join(wrong))
    return Gathered(members=members, shown=shown, consoles=told)


def _members(request: JoinRequest, folder: Path) -> tuple[NamedHost, ...]:
    """Return the members.

    On the leader new hosts are added to `hosts`; elsewhere the named hosts replace it, if any.
    """
    new = ["localhost" if is_this_machine(a) else a for a in named(request.words)]
    path = folder / "hosts"
    there = in_hostfile(path.read_text(errors="replace"), str(path)) if path.is_file() else []
    there = [dataclasses.replace(m, address="localhost") if is_this_machine(m.address) else m for m in there]
    is_the_leaders = any(m.is_here for m in there) or "localhost" in new
    return tuple(with_new_members(there if is_the_leaders or not new else [], new, request.slots))

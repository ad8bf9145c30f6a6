"""Members of a cluster that is joined by hand: addresses, the leader, slots. Pure functions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster import hostset
from cluster.errors import ConfigError
from cluster.hosts import ADDRESS, LOCAL, Host, parse_hostfile
from cluster.hostset import fold

NO_GPU_SLOTS = 1


@dataclass(frozen=True, kw_only=True)
class NamedHost:
    """Host as the operator named it."""

    address: str  # address used from this machine; `localhost` is this machine
    slots: int | None = None  # as given by the operator
    is_spare: bool = False

    @property
    def is_here(self) -> bool:
        """Return True if the host is this machine."""
        return self.address in LOCAL


@dataclass(frozen=True, kw_only=True)
class JoiningHost:
    """Host as it reported on itself."""

    address: str  # its own address, after any address translation
    user: str
    home: str
    gpus: int | None  # None: there are some, and nvidia-smi fails
    may_be_root: bool
    has_project: bool
    has_runtime: bool


def named(words: Sequence[str]) -> list[str]:
    """Return the addresses that the words of the command line name, `gpu[1-3]` included. Raises ConfigError."""
    addresses = [a for word in words for a in hostset.names_in(word)]
    for address in addresses:
        if address.startswith("@") or not ADDRESS.fullmatch(address) or re.fullmatch(r"[0-9]+(-[0-9]+)?", address):
            raise ConfigError(f"{address!r} is not an address: give hosts that you can log in to, and localhost")
    return addresses


def in_hostfile(text: str, name: str) -> list[NamedHost]:
    """Return the hosts of a hostfile. The line of `localhost`, the leader, may stand anywhere.

    AWS's tutorial has it last. Raises ConfigError that names each bad line.
    """
    lines = text.splitlines()
    of_leader = [n for n, line in enumerate(lines) if line.split()[:1] and line.split()[0] in LOCAL]
    if of_leader:
        first = of_leader[0]
        line = lines[first]
        lines = [line, *lines[:first], *lines[first + 1 :]]
    hosts = parse_hostfile("\n".join(lines), name)
    return [NamedHost(address=h.address, slots=h.slots, is_spare=h.is_spare) for h in hosts]


def with_new_members(there: Sequence[NamedHost], new: Sequence[str], slots: int | None) -> list[NamedHost]:
    """Return present and new members, the leader first: this machine if it is among them, else the first one.

    Raises ConfigError if there is none at all.
    """
    known = {m.address: m for m in there}
    for address in new:
        old = known.get(address)
        known[address] = NamedHost(
            address=address,
            slots=old.slots if old and (slots is None or old.slots == 0) else slots,
            is_spare=old.is_spare if old else False,
        )
    members = list(known.values())
    if not members:
        raise ConfigError("no host is named: inv hosts.join 10.0.0.2 10.0.0.3 localhost, which is the leader")
    first = next((m for m in members if m.is_here), members[0])
    return [first, *(m for m in members if m != first)]


def seen(said: Mapping[str, Any], fallback: str) -> JoiningHost:
    """Parse a host's report; `fallback` is its address if it does not know at which it was reached."""
    return JoiningHost(
        address=str(said["address"] or fallback),
        user=str(said["user"]),
        home=str(said["home"]),
        gpus=None if said["gpus"] is None else int(said["gpus"]),
        may_be_root=bool(said["may_be_root"]),
        has_project=bool(said["has_project"]),
        has_runtime=bool(said["has_runtime"]),
    )


def hosts_of(members: Sequence[NamedHost], seen: Mapping[str, JoiningHost]) -> tuple[Host, ...]:
    """Return the hosts for the hostfile: private addresses, GPUs as slots.

    Raises ConfigError if one is named twice, or if its GPUs cannot be counted and its slots were not given.
    """
    hosts: dict[str, Host] = {}
    if unknown := [m.address for m in members if m.slots is None and seen[m.address].gpus is None]:
        raise ConfigError(
            f"nvidia-smi fails on {fold(unknown)}, so its GPUs cannot be counted: 'nvidia-smi -L' there says why; "
            "mend that, or give the number of GPUs with --slots"
        )
    for member in members:
        told = seen[member.address]
        if told.address in hosts:
            raise ConfigError(f"{member.address} is a host that is named already: its own address is {told.address}")
        trains = bool(hosts) or member.slots != 0
        slots = (member.slots or told.gpus or NO_GPU_SLOTS) if trains else 0
        hosts[told.address] = Host(rank=len(hosts), address=told.address, slots=slots, is_spare=member.is_spare)
    ordered = sorted(hosts.values(), key=lambda h: (h.is_spare, h.rank))
    return tuple(replace(h, rank=n) for n, h in enumerate(ordered))

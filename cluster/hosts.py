"""Hosts and the hostfile: `address slots=N` per line, master first, what `mpirun --hostfile` reads."""

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ConfigError
from cluster.terminal import counted

ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?")
ADDRESS_LENGTH = 253  # of a name in the DNS, too
MOST_SLOTS = 4096  # no host has so many GPUs or processors: a slip of the finger
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, kw_only=True, order=True)
class Host:
    """One instance of the cluster."""

    rank: int  # place in the hostfile; 0 is the master
    address: str  # private address or name: where SSH, MPI and NCCL reach it
    slots: int  # GPUs, or on a machine without them the ranks it may hold

    @property
    def is_local(self) -> bool:
        """This very machine, reached without SSH."""
        return self.address in LOCAL

    def __str__(self) -> str:
        return self.address


def hostfile(hosts: Iterable[Host]) -> str:
    """The hostfile's text, master first: one `<address> slots=<n>` per line."""
    return "".join(f"{h.address} slots={h.slots}\n" for h in sorted(hosts))


def table(hosts: Sequence[Host]) -> str:
    """Rank, address and slots, a host per line, as a person reads them."""
    width = max(len(h.address) for h in hosts)
    lines = [f"{h.rank:>4}  {h.address:<{width}}  {h.slots:>5}{'  master' if h.rank == 0 else ''}" for h in hosts]
    slots = counted(sum(h.slots for h in hosts), "slot")
    return "\n".join([f"rank  {'address':<{width}}  slots", *lines, f"{counted(len(hosts), 'host')}, {slots}"])


def is_this_machine(address: str) -> bool:
    """Whether the address is one of this machine's own: only those can be bound."""
    if not address or address in LOCAL:
        return bool(address)
    try:
        family, kind, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(place)
    except OSError:
        return False
    return True


def parse_hostfile(text: str, name: str) -> tuple[Host, ...]:
    """The hosts of a hostfile's text, in its order; `name` is what errors call it.

    Blank lines and `#` comments are allowed. Raises ConfigError that names each bad line and what was expected there.
    """
    hosts: list[Host] = []
    line_of: dict[str, int] = {}
    wrong: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        address = "localhost" if words[0] in LOCAL else words[0]
        problem = _line_problem(words) or _place_problem(address, line_of)
        if problem:
            wrong.append(f"{name}:{number}: {problem}")
            continue
        line_of[address] = number
        hosts.append(Host(rank=len(hosts), address=address, slots=int(words[1].removeprefix("slots="))))
    if wrong:
        raise ConfigError("\n".join(wrong))
    if not hosts:
        raise ConfigError(f"{name}: no host in it; write one '<address> slots=<n>' per line, the master first")
    return tuple(hosts)


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts of a hostfile. Raises ConfigError if it cannot be read or has a bad line."""
    try:
        return parse_hostfile(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: cannot be read as a hostfile: {e}") from e


def _line_problem(words: list[str]) -> str | None:
    got = _cut(" ".join(words))
    expected = f"expected '<address> slots=<n>', got {got!r}"
    if not ADDRESS.fullmatch(words[0]) or len(words[0]) > ADDRESS_LENGTH:
        return f"{expected}: {_cut(words[0])!r} is not an address"
    if re.fullmatch(r"[0-9]+(-[0-9]+)?", words[0]):
        return f"{expected}: {_cut(words[0])!r} names ranks in every task: give the host's address"
    if len(words) == 1:
        return f"{expected}: say how many ranks it may hold, for example '{words[0]} slots=8'"
    if len(words) > 2 or not words[1].startswith("slots="):
        return expected
    slots = words[1].removeprefix("slots=")
    if not re.fullmatch(r"[+-]?[0-9]+", slots):
        return f"{expected}: {_cut(slots)!r} is not a number"
    if slots.startswith("-") or not slots.strip("+0"):
        return f"slots is {_cut(slots)}, a host holds at least 1 rank: leave the line out to leave the host out"
    if len(slots) > 9 or int(slots) > MOST_SLOTS:
        return f"slots is {_cut(slots)}, a host holds at most {MOST_SLOTS} ranks: give its GPUs"
    return None


def _place_problem(address: str, line_of: dict[str, int]) -> str | None:
    """What is wrong with a host's place among the lines before it."""
    if address in line_of:
        return f"{address} is already on line {line_of[address]}: one line per host"
    if address == "localhost" and line_of:
        return (
            "localhost is this machine, and the first line is the master: move this line to the top if this is the "
            "master, otherwise give this machine's private address"
        )
    return None


def _cut(text: str) -> str:
    """Text that fits into a message."""
    return text if len(text) <= 80 else text[:79] + "…"

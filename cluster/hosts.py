"""Hosts and the hostfile that `mpirun --hostfile` reads: `address slots=N` per line, master first.

A master with `slots=0` runs mpirun and no rank. A spare is a comment to mpirun, `# spare address slots=N`: with
`slots=0` mpirun would still start a daemon there.
"""

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.errors import ConfigError
from cluster.terminal import counted

ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?")
ADDRESS_LENGTH = 253  # the limit of DNS names, too
MOST_SLOTS = 4096  # no host has so many GPUs or processors: more is a typing error
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_COLON = re.compile(r"([^:]+):([0-9]+)")  # `host:8`; an IPv6 address has more colons
_SPARE = re.compile(r"\s*#\s*spare\s+(\S+\s+slots=\S*)\s*(#.*)?")


@dataclass(frozen=True, kw_only=True, order=True)
class Host:
    """Instance of the cluster."""

    rank: int  # place in the hostfile; 0 is the master
    address: str  # private address or name, which SSH, MPI and NCCL use
    slots: int  # GPUs, or on a machine without them the ranks it may hold; 0: a master that does not train
    is_spare: bool = False  # replaces a dead host; no training uses it until then

    @property
    def trains(self) -> bool:
        """Return True if the host may hold ranks: it is no spare, and no master of 0 slots."""
        return self.slots > 0 and not self.is_spare

    @property
    def is_local(self) -> bool:
        """Return True for this machine itself, which is reached without SSH."""
        return self.address in LOCAL

    def __str__(self) -> str:
        return self.address


def hostfile(hosts: Iterable[Host]) -> str:
    """Return the hostfile's text, master first: one `<address> slots=<n>` per line, the spares last."""
    ordered = sorted(hosts, key=lambda h: (h.is_spare, h))
    return "".join(f"{'# spare ' if h.is_spare else ''}{h.address} slots={h.slots}\n" for h in ordered)


def that_train(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Return the hosts without the spares and without a master that does not train."""
    return tuple(h for h in hosts if h.trains)


def table(hosts: Sequence[Host]) -> str:
    """Return a table for people: rank, address and slots, one host per line."""
    width = max(len(h.address) for h in hosts)
    lines = [f"{h.rank:>4}  {h.address:<{width}}  {h.slots:>5}{_role(h)}" for h in hosts]
    return "\n".join([f"rank  {'address':<{width}}  slots", *lines, totals(hosts)])


def totals(hosts: Sequence[Host]) -> str:
    """Return a text with the number of hosts and slots that can train, the spares, and a master that does not train."""
    training, spares = that_train(hosts), sum(h.is_spare for h in hosts)
    text = f"{counted(len(training), 'host')}, {counted(sum(h.slots for h in training), 'slot')}"
    text += f", and {counted(spares, 'spare')}" if spares else ""
    return text + (", and a master that does not train" if any(h.slots == 0 for h in hosts) else "")


def _role(host: Host) -> str:
    if host.rank == 0:
        return "  master" if host.slots else "  master, does not train"
    return "  spare" if host.is_spare else ""


def is_this_machine(address: str) -> bool:
    """Return True if the address is one of this machine's own: only those can be bound."""
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
    """Return the hosts of a hostfile's text, in its order, the spares last.

    Blank lines and `#` comments are allowed. Raises ConfigError with each bad line and the expected text.

    Args:
        name: name of the file in errors.
    """
    hosts: list[Host] = []
    line_of: dict[str, int] = {}
    wrong: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        spare = _SPARE.fullmatch(line)
        words = (spare[1] if spare else line.partition("#")[0]).split()
        if not words:
            continue
        address = "localhost" if words[0] in LOCAL else words[0]
        problem = _problem_with_hint(words, may_be_idle=not hosts and not spare) or _place_problem(address, line_of)
        if problem:
            wrong.append(f"{name}:{number}: {problem}")
            continue
        line_of[address.lower()] = number
        slots = int(words[1].removeprefix("slots="))
        hosts.append(Host(rank=len(hosts), address=address, slots=slots, is_spare=bool(spare)))
    if wrong:
        raise ConfigError("\n".join(wrong))
    if all(h.is_spare for h in hosts):
        raise ConfigError(f"{name}: no host in it; write one '<address> slots=<n>' per line, the master first")
    hosts.sort(key=lambda h: (h.is_spare, h.rank))
    return tuple(replace(h, rank=n) for n, h in enumerate(hosts))


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Return the hosts of a hostfile. Raises ConfigError if it cannot be read or has a bad line."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")  # comments may be of any encoding
        return parse_hostfile(text, str(path))
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read as a hostfile: {e}") from e


def _problem_with_hint(words: list[str], *, may_be_idle: bool) -> str | None:
    """Return what is wrong with a line, None if nothing. If the intended line is clear and valid, name it."""
    problem = _line_problem(words, may_be_idle=may_be_idle)
    if problem is None or "for example" in problem:
        return problem
    meant = words[0].rpartition("@")[2]  # the login name is a setting: [ssh] user
    address, number = (found[1], found[2]) if (found := _COLON.fullmatch(meant)) else (meant, "")
    told = (re.fullmatch(r"(?:slots?=?|np=?|:|=)?([0-9]+)", word) for word in (number, *words[1:]))
    slots = next((t[1] for t in told if t), "")
    hint = [address, f"slots={slots}"]
    is_taken = slots and hint != words and _line_problem(hint, may_be_idle=may_be_idle) is None
    return f"{problem}: write '{' '.join(hint)}'" if is_taken else problem


def _line_problem(words: list[str], *, may_be_idle: bool) -> str | None:
    """Return what is wrong with a line by itself, None if nothing.

    Args:
        may_be_idle: the line is the master's, which need not train.
    """
    expected = f"expected '<address> slots=<n>', got {_quoted(' '.join(words))}"
    if not ADDRESS.fullmatch(words[0]) or len(words[0]) > ADDRESS_LENGTH:
        return f"{expected}: {_quoted(words[0])} is not an address"
    if _COLON.fullmatch(words[0]):
        return f"{expected}: {_quoted(words[0])} is horovodrun's and MPICH's way to say slots"
    if re.fullmatch(r"[0-9]+(-[0-9]+)?", words[0]):
        return f"{expected}: {_quoted(words[0])} names ranks in every task: give the host's address"
    if len(words) == 1:
        return f"{expected}: say how many ranks it may hold, for example '{words[0]} slots=8'"
    if len(words) > 2 or not words[1].startswith("slots="):
        return expected
    slots = words[1].removeprefix("slots=")
    if not re.fullmatch(r"[+-]?[0-9]+", slots):
        return f"{expected}: {_quoted(slots)} is not a number"
    is_none = not slots.strip("+0")
    if slots.startswith("-") or (is_none and not may_be_idle):
        only = "; only the master, on the first line, may have slots=0" if is_none else ""
        return f"slots is {_cut(slots)}, a host holds at least 1 rank: leave the line out to leave the host out{only}"
    if len(slots) > 9 or int(slots) > MOST_SLOTS:
        return f"slots is {_cut(slots)}, a host holds at most {MOST_SLOTS} ranks: give its GPUs"
    return None


def _place_problem(address: str, line_of: dict[str, int]) -> str | None:
    """Return what is wrong with a host in relation to the lines before it, None if nothing."""
    if address.lower() in line_of:
        return f"{address} is already on line {line_of[address.lower()]}: one line per host"
    if address == "localhost" and line_of:
        return (
            "localhost is this machine, and the first line is the master: move this line to the top if this is the "
            "master, otherwise give this machine's private address"
        )
    return None


def _quoted(text: str) -> str:
    """Return the text in quotes, cut to fit into a message, even if its characters have long escapes."""
    return _cut(repr(text))


def _cut(text: str) -> str:
    """Return the text, cut to fit into a message."""
    return text if len(text) <= 80 else text[:79] + "…"

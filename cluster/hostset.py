"""The language that names hosts in every task: `0`, `1-3`, `@workers`, `!3`, names, addresses, `10.0.0.[1-7,9]`."""

import re
from collections.abc import Iterable, Sequence

from cluster.errors import ConfigError
from cluster.hosts import Host

HELP = "ranks and ranges (0,2-4), @all, @master, @workers, @failed, addresses (10.0.0.[1-7,9]), !X to leave X out"


def select(hosts: Sequence[Host], expression: str | None, *, failed: Iterable[str] | None = None) -> tuple[Host, ...]:
    """The hosts that an expression names, in rank order.

    Terms are separated by commas and add up; a term after `!` is taken away; only `!` terms start from all hosts.
    `failed` holds the addresses that `@failed` means, None if there was no earlier run.
    Raises ConfigError for a term that names nothing, and when nothing is left.
    """
    terms = _terms(expression or "@all")
    wanted = [t for t in terms if not t.startswith("!")] or ["@all"]
    chosen: set[Host] = set()
    for term in wanted:
        chosen |= _named_by(hosts, term, failed)
    for term in terms:
        if term.startswith("!"):
            chosen -= _named_by(hosts, term[1:], failed)
    if not chosen:
        raise ConfigError(f"{expression!r} leaves none of the {len(hosts)} hosts: give {HELP}")
    return tuple(sorted(chosen))


def fold(names: Iterable[str]) -> str:
    """Names in their short form, order of numbers kept: `10.0.0.[1-7,9]`, `gpu[0-3],login`."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)(\D*)", name)
        prefix, number, suffix = match.groups() if match else (name, "", "")
        groups.setdefault((prefix, suffix), []).append(number)
    return ",".join(_fold_group(prefix, numbers, suffix) for (prefix, suffix), numbers in groups.items())


def _fold_group(prefix: str, numbers: list[str], suffix: str) -> str:
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]}{suffix}"
    spans: list[list[str]] = []
    for number in sorted(set(numbers), key=lambda n: (int(n), n)):
        if spans and _follows(spans[-1][-1], number):
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return f"{prefix}[{','.join('-'.join(s) for s in spans)}]{suffix}"


def _follows(a: str, b: str) -> bool:
    padded = a.startswith("0") or b.startswith("0")
    return int(b) == int(a) + 1 and (len(a) == len(b) or not padded)


def _terms(expression: str) -> list[str]:
    """Split at the commas that are not inside brackets."""
    terms = [t.strip() for t in re.split(r",(?![^\[\]]*\])", expression)]
    if not all(t.strip("! ") for t in terms):
        raise ConfigError(f"{expression!r} has an empty term: give {HELP}")
    return terms


def _named_by(hosts: Sequence[Host], term: str, failed: Iterable[str] | None) -> set[Host]:
    if term.startswith("@"):
        return _group(hosts, term, failed)
    if re.fullmatch(r"\d+(-\d+)?", term):
        return _rank_range(hosts, term)
    by_address = {h.address: h for h in hosts}
    missing = [a for a in _unfold(term) if a not in by_address]
    if missing:
        raise ConfigError(f"{', '.join(missing)} is not a host of this cluster, which has {fold(by_address)}")
    return {by_address[a] for a in _unfold(term)}


def _group(hosts: Sequence[Host], term: str, failed: Iterable[str] | None) -> set[Host]:
    if term == "@failed" and failed is None:
        raise ConfigError("@failed: no earlier run is on record here; name the hosts instead")
    groups = {
        "@all": set(hosts),
        "@master": {h for h in hosts if h.rank == 0},
        "@workers": {h for h in hosts if h.rank > 0},
        "@failed": {h for h in hosts if h.address in set(failed or ())},
    }
    if term not in groups:
        raise ConfigError(f"{term!r} is not a group of hosts: there are {', '.join(groups)}")
    return groups[term]


def _rank_range(hosts: Sequence[Host], term: str) -> set[Host]:
    first, _, last = term.partition("-")
    low, high = int(first), int(last or first)
    known = {h.rank: h for h in hosts}
    if low > high or low not in known or high not in known:
        raise ConfigError(f"{term!r}: ranks here are 0 to {max(known)}, the smaller one first")
    return {h for h in hosts if low <= h.rank <= high}


def _unfold(term: str) -> list[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([\d,-]+)\]([^\[\]]*)", term)
    if not match:
        return [term]
    prefix, spans, suffix = match.groups()
    numbers: list[str] = []
    for span in spans.split(","):
        bounds = re.fullmatch(r"(\d+)(?:-(\d+))?", span)
        if not bounds or int(bounds[2] or bounds[1]) < int(bounds[1]):
            raise ConfigError(f"{term!r}: {span!r} is not a number or a range, smaller one first")
        width = len(bounds[1]) if bounds[1].startswith("0") else 0
        numbers += [str(n).zfill(width) for n in range(int(bounds[1]), int(bounds[2] or bounds[1]) + 1)]
    return [f"{prefix}{n}{suffix}" for n in numbers]

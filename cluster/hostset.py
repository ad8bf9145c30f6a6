"""Host expressions of every task: `0`, `1-3`, `@workers`, `!3`, names, addresses, `gpu[1-9/2]-[0,1]`."""

import itertools
import math
import re
from collections.abc import Iterable, Sequence

from cluster.errors import ConfigError
from cluster.hosts import Host, that_train
from cluster.terminal import counted

_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)", re.DOTALL)
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?(?:/([0-9]+))?")
_MOST_NAMES = 100_000  # in one term: more is a typing error, not a cluster

HELP = (
    "ranks and ranges (0,2-4,0-8/2), @all, @master, @workers, @spares, @failed, "
    "addresses (10.0.0.[1-7,9], gpu[1-9/2]-[0,1]), !X to leave X out"
)


def select(
    hosts: Sequence[Host],
    expression: str | None,
    *,
    failed: Iterable[str] | None = None,
    to_train: bool = False,
    for_ranks: bool = False,
) -> tuple[Host, ...]:
    """Return the hosts that an expression names, in rank order.

    Terms are separated by commas and add up. A term after `!` is removed. An expression of only `!` terms starts from
    all hosts. Raises ConfigError for a term that names nothing, for a master of 0 slots that should train, and if no
    host is left.

    Args:
        failed: the addresses for `@failed`, None if there was no earlier run.
        to_train: `@all` leaves out the spares and a master of 0 slots. A spare trains only if it is named.
        for_ranks: `@all` leaves out hosts of 0 slots. This is for data and measurements. A master of 0 slots gets them
            only if it is named.
    """
    terms = _terms(expression or "@all")
    wanted = [t for t in terms if not t.startswith("!")] or ["@all"]
    everybody = that_train(hosts) if to_train else [h for h in hosts if h.slots > 0] if for_ranks else hosts
    chosen: set[Host] = set()
    for term in wanted:
        chosen |= set(everybody) if term == "@all" else _named_by(hosts, term, failed)
    for term in terms:
        if term.startswith("!"):
            chosen -= _named_by(hosts, term[1:], failed)
    if to_train and (idle := [h for h in chosen if h.slots == 0]):
        raise ConfigError(f"{idle[0]} does not train, its slots are 0 in the hostfile: leave it out, as with @workers")
    if not chosen:
        raise ConfigError(f"{_cut(str(expression))!r} leaves none of the {counted(len(hosts), 'host')}: give {HELP}")
    return tuple(sorted(chosen))


def names_in(expression: str) -> list[str]:
    """Return the names that terms separated by commas expand to, whether they are hosts of a cluster or not.

    Raises ConfigError.
    """
    return [name for term in _terms(expression) for name in _unfold(term)]


def fold(names: Iterable[str]) -> str:
    """Return the names in their short form, with the order of numbers kept: `10.0.0.[1-7,9]`, `gpu[0-3],login`."""
    groups: dict[tuple[str, str] | str, list[str]] = {}
    for name in names:
        match = _LAST_NUMBER.fullmatch(name)
        if match:
            groups.setdefault((match[1], match[3]), []).append(match[2])
        else:  # a name without a number is a group of its own
            groups[name] = []
    return ",".join(key if isinstance(key, str) else _fold_group(*key, numbers) for key, numbers in groups.items())


def numbers(found: Iterable[int]) -> str:
    """Return the numbers in their short form: `0-2,5`."""
    return fold(map(str, found)).strip("[]")


def _fold_group(prefix: str, suffix: str, found: list[str]) -> str:
    numbers = sorted(set(found), key=lambda n: (int(n), n))
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]}{suffix}"
    spans: list[list[str]] = []
    for number in numbers:
        if spans and _follows(spans[-1][-1], number):
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return f"{prefix}[{','.join('-'.join(s) for s in spans)}]{suffix}"


def _follows(a: str, b: str) -> bool:
    padded = a.startswith("0") or b.startswith("0")
    return int(b) == int(a) + 1 and (len(a) == len(b) or not padded)


def _terms(expression: str) -> list[str]:
    """Split at the commas that are not inside brackets. Raises ConfigError for an empty term."""
    terms = [t.strip() for t in re.split(r",(?![^\[\]]*\])", expression)]
    if not all(t.strip("! ") for t in terms):
        raise ConfigError(f"{_cut(expression)!r} has an empty term: give {HELP}")
    return terms


def _named_by(hosts: Sequence[Host], term: str, failed: Iterable[str] | None) -> set[Host]:
    if term.startswith("@"):
        return _group(hosts, term, failed)
    if _RANGE.fullmatch(term):
        return _rank_range(hosts, term)
    by_address = {h.address: h for h in hosts}
    named = _unfold(term)
    missing = [a for a in named if a not in by_address]
    if missing:
        is_not = "is not a host" if len(missing) == 1 else "are not hosts"
        raise ConfigError(f"{_cut(fold(missing))} {is_not} of this cluster, which has {fold(by_address)}")
    return {by_address[a] for a in named}


def _group(hosts: Sequence[Host], term: str, failed: Iterable[str] | None) -> set[Host]:
    if term == "@failed" and failed is None:
        raise ConfigError("@failed: no earlier run is on record here; name the hosts instead")
    groups = {
        "@all": set(hosts),
        "@master": {h for h in hosts if h.rank == 0},
        "@workers": {h for h in hosts if h.rank > 0 and not h.is_spare},
        "@spares": {h for h in hosts if h.is_spare},
        "@failed": {h for h in hosts if h.address in set(failed or ())},
    }
    if term not in groups:
        raise ConfigError(f"{_cut(term)!r} is not a group of hosts: there are {', '.join(groups)}")
    return groups[term]


def _rank_range(hosts: Sequence[Host], term: str) -> set[Host]:
    match, known = _RANGE.fullmatch(term), {h.rank for h in hosts}
    assert match
    if not {_number(match[1]), _number(match[2] or match[1])} <= known or _number(match[2] or match[1]) < _number(
        match[1]
    ):
        raise ConfigError(f"{_cut(term)!r}: ranks here are 0 to {max(known)}, the smaller one first")
    wanted, _ = _numbers(term, term)
    return {h for h in hosts if h.rank in wanted}


def _unfold(term: str) -> list[str]:
    """Return the names that a term expands to.

    `gpu[01-03]` is gpu01, gpu02, gpu03. `a[1-5/2]-[0,1]` has six names. The last bracket's numbers vary fastest. Raises
    ConfigError.
    """
    texts = re.split(r"\[([0-9,/-]+)\]", term)  # every second text is the inside of a bracket
    if len(texts) == 1 or any("[" in text or "]" in text for text in texts[::2]):
        return [term]
    numbers = [[_numbers(term, span) for span in inside.split(",")] for inside in texts[1::2]]
    count = math.prod(sum(len(range_) for range_, _ in spans) for spans in numbers)
    if count > _MOST_NAMES:
        raise ConfigError(f"{_cut(term)!r} names {counted(count, 'host')}: give ranges of hosts that are there")
    inside = [[str(n).zfill(width) for range_, width in spans for n in range_] for spans in numbers]
    return ["".join(parts) for parts in itertools.product(*_between([[text] for text in texts[::2]], inside))]


def _between(texts: list[list[str]], brackets: list[list[str]]) -> list[list[str]]:
    """Return texts and bracket contents in turn. There is a text before and after each bracket."""
    return [texts[0], *(part for pair in zip(brackets, texts[1:], strict=True) for part in pair)]


def _numbers(term: str, span: str) -> tuple[range, int]:
    """Return the numbers of a range with or without a step, and their minimum number of digits."""
    match = _RANGE.fullmatch(span)
    if not match or (match[3] and not (match[2] and _number(match[3]))):
        raise ConfigError(f"{_cut(term)!r}: {_cut(span)!r} is not a number or a range such as 1-9 or 1-9/2")
    first, last = _number(match[1]), _number(match[2] or match[1])
    if last < first:
        raise ConfigError(f"{_cut(term)!r}: {_cut(span)!r} is not a number or a range, smaller one first")
    return range(first, last + 1, _number(match[3] or "1")), len(match[1]) if match[1].startswith("0") else 0


def _number(digits: str) -> int:
    """Return the number. If it has more digits than any host's, return one that no host has."""
    return int(digits) if len(digits) <= 18 else 10**18


def _cut(text: str) -> str:
    """Return the text, cut to fit into a message."""
    return text if len(text) <= 80 else text[:79] + "…"

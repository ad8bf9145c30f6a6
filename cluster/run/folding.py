"""Folding of many hosts' output: own names masked, equal outputs joined, others as a diff against the majority."""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cluster.hosts import Host
from cluster.hostset import fold
from cluster.ssh.result import FanOut, Result
from cluster.terminal import painted

_EXACT_DIFF = 1_000_000  # product of both line counts: above it difflib takes seconds


def folded(results: FanOut, *, diff: bool = False) -> str:
    """Return each distinct output once, below its hosts, the majority first, with the failures at the end.

    Args:
        diff: show the other outputs as lines missing (-) and added (+) against the majority's.
    """
    groups = results.groups()
    usual = _lines(groups[0][1]) if diff and groups and groups[0][1].exit_code is not None else None
    return "\n".join(_block(hosts, result, usual if n else None) for n, (hosts, result) in enumerate(groups))


def masked(results: FanOut, names: Mapping[Host, Iterable[str]]) -> FanOut:
    """Return the results with each host's own names and addresses replaced by `<host>`.

    Outputs on disk stay unchanged.
    """
    return FanOut(
        results.command, {h: r if r.more else _masked(r, {h.address, *names.get(h, ())}) for h, r in results.items()}
    )


def changes(usual: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return the lines that only `usual` has (`- `) and that only `other` has (`+ `). Empty if only the order differs.

    Long outputs are compared as multisets of lines, in time linear in their length.
    """
    start = next((i for i, (a, b) in enumerate(zip(usual, other, strict=False)) if a != b), min(len(usual), len(other)))
    end = next(
        (i for i, (a, b) in enumerate(zip(reversed(usual[start:]), reversed(other[start:]), strict=False)) if a != b),
        min(len(usual), len(other)) - start,
    )
    a, b = usual[start : len(usual) - end], other[start : len(other) - end]
    if len(a) * len(b) <= _EXACT_DIFF:
        steps = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
        return [
            line
            for step, i, j, k, m in steps
            if step != "equal"
            for line in (*(f"- {x}" for x in a[i:j]), *(f"+ {x}" for x in b[k:m]))
        ]
    return [*_only_in(a, b, "- "), *_only_in(b, a, "+ ")]


def _only_in(a: Sequence[str], b: Sequence[str], sign: str) -> list[str]:
    left = Counter(b)
    only = []
    for line in a:
        left[line] -= 1
        if left[line] < 0:
            only.append(sign + line)
    return only


def _block(hosts: Sequence[Host], result: Result, usual: Sequence[str] | None) -> str:
    heading = f"{fold(h.address for h in hosts)} ({len(hosts)})"
    lines = _lines(result)
    if usual is not None and result.exit_code is not None:
        lines = changes(usual, lines) or ["the same lines as the majority"]
    lines += [f"… {m.size:,} bytes of {name} in all, in {m.path}" for name, m in sorted(result.more.items())]
    body = "\n".join(f"  {line}" for line in lines)
    if result.exit_code is None:
        heading = painted(f"{heading}: {result.error}", "red")
    elif result.exit_code:
        heading = painted(f"{heading} exited {result.exit_code}", "red")
    elif not body:
        heading += " ok"
    return f"{heading}\n{body}" if body else heading


def _lines(result: Result) -> list[str]:
    text = result.text + result.stderr.decode(errors="replace")
    return text.rstrip("\n").split("\n") if text.strip() else []


def _masked(result: Result, names: Iterable[str]) -> Result:
    longest_first = sorted((n for n in names if n), key=len, reverse=True)
    own = re.compile(rb"(?<![\w.-])(?:" + b"|".join(re.escape(n.encode()) for n in longest_first) + rb")(?![\w-]|\.\d)")
    return replace(result, stdout=own.sub(b"<host>", result.stdout), stderr=own.sub(b"<host>", result.stderr))

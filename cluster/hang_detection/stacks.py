"""Stacks of ranks: equal stacks grouped, and the rank found that the others wait for. Pure functions."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.hang_detection.rank_state import RankPhase, RankSeen
from cluster.hostset import fold
from cluster.terminal import counted

# Functions that a rank is in while it waits for others, innermost first among the few that count: Horovod, MPI, NCCL,
# torch; and TensorFlow's entries, behind which the reductions of a compiled step are.
_WAITING = re.compile(
    r"_*(?:all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|broadcast|barrier|synchronize|negotiate)\w*"
    r"|quick_execute|_*call_tf_sessionrun|_*numpy|(?:horovod|hvd|mpi|nccl)\w*",
    re.IGNORECASE,
)
# The same in the names of C and C++, which are seen where the stack of native code was taken, too.
_NATIVE_WAITING = re.compile(
    r"gloo::|c10d::|nccl|\bP?MPI_|ompi_|opal_progress|cu(?:da)?(?:Stream|Event|Ctx|Device)Synchronize|horovod::"
)
_STARTING = re.compile(r".*/horovod/common/basics\.py")  # hvd.init() waits for all ranks
_INNERMOST = 3
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<")


@dataclass(frozen=True)
class StackFrame:
    """Frame of a stack: function, file and line."""

    name: str
    file: str
    line: int

    @property
    def is_python(self) -> bool:
        """Return True for a Python frame, False for one of C or C++."""
        return self.file.endswith(".py") or self.file.startswith("<")

    def __str__(self) -> str:
        return f"{self.name} ({'/'.join(self.file.split('/')[-2:])}:{self.line})"


@dataclass(frozen=True, kw_only=True)
class RankStack:
    """Stacks of a rank's threads at one moment."""

    rank: int
    host: str
    state: str = ""
    frames: tuple[StackFrame, ...] = ()  # of its main thread, innermost first
    others: tuple[tuple[str, tuple[StackFrame, ...]], ...] = ()  # its other threads by name
    error: str = ""  # why there is no stack

    @property
    def waits(self) -> bool:
        """Return True if the rank waits in a collective call, and not in its own code that the call has called back."""
        own = next((n for n, f in enumerate(self.frames) if f.is_python), len(self.frames))
        if any(_NATIVE_WAITING.search(f.name) for f in self.frames[:own]):
            return True
        for frame in self.frames[own : own + _INNERMOST]:
            if _WAITING.fullmatch(frame.name) or _STARTING.fullmatch(frame.file):
                return True
            if not _LIBRARY.search(frame.file):
                return False
        return False

    @property
    def line(self) -> StackFrame | None:
        """Return the innermost call in the program itself. Return one in a library if there is no other."""
        calls = [f for f in self.frames if f.is_python] or list(self.frames)
        return next((f for f in calls if not _LIBRARY.search(f.file)), calls[0] if calls else None)


def stack_of(rank: int, host: str, told: Mapping[str, Any]) -> RankStack:
    """Return a rank's stack from its host's report."""
    threads = [(t["name"], tuple(StackFrame(*f) for f in t["frames"]), t["is_main"]) for t in told["threads"]]
    return RankStack(
        rank=rank,
        host=host,
        state=told["state"],
        frames=next((frames for _, frames, is_main in threads if is_main), ()),
        others=tuple((name, frames) for name, frames, is_main in threads if not is_main and frames),
        error=told["error"],
    )


def folded(stacks: Sequence[RankStack]) -> str:
    """Return each distinct stack once, under its ranks and their hosts. The stack of the most ranks comes first."""
    groups: dict[str, list[RankStack]] = defaultdict(list)
    for stack in stacks:
        groups[_text(stack)].append(stack)
    return "\n".join(
        f"{_ranks(group)} on {fold(dict.fromkeys(s.host for s in group))} ({len(group)})\n{text}"
        for text, group in sorted(groups.items(), key=lambda item: -len(item[1]))
    )


def odd_one(ranks: Sequence[RankSeen], stacks: Sequence[RankStack]) -> RankSeen | None:
    """Return the rank that the others seem to wait for. Return None if no rank stands out.

    The first of these that exists:

      - the only rank left
      - a rank that was stopped
      - a rank whose host is silent
      - a rank outside the calls in which ranks wait, while others are in them
      - the only rank that sends heartbeats
      - the one rank that has done the fewest steps, or is in another phase
      - the one rank whose stack differs while all other stacks are alike
    """
    by_rank = {r.rank: r for r in ranks if not r.has_ended}
    everyone = list(by_rank.values())
    if len(everyone) == 1:
        return everyone[0]
    for found in ([r for r in everyone if r.is_stopped], [r for r in everyone if not r.is_heard]):
        if found:
            return min(found, key=lambda r: (r.step, r.rank))
    known = [s for s in stacks if s.frames and s.rank in by_rank]
    free = [by_rank[s.rank] for s in known if not s.waits]
    if free and len(free) < len(everyone):
        return min(free, key=lambda r: (r.is_mute, r.step, r.phase is RankPhase.STEP, r.rank))
    beating = [r for r in everyone if not r.is_mute]
    if len(beating) == 1:
        return beating[0]
    return _behind(beating) or _unlike_all(known, by_rank)


def _behind(ranks: Sequence[RankSeen]) -> RankSeen | None:
    """Return the one rank that has done the fewest steps, or that does something else while the others want to step."""

    def key(rank: RankSeen) -> tuple[int, bool]:
        return rank.step, rank.phase in (RankPhase.STEP, RankPhase.COMPILE)

    least = [r for r in ranks if key(r) == min(map(key, ranks))]
    return least[0] if len(least) == 1 < len(ranks) else None


def _unlike_all(stacks: Sequence[RankStack], by_rank: Mapping[int, RankSeen]) -> RankSeen | None:
    groups: dict[tuple[StackFrame, ...], list[RankStack]] = defaultdict(list)
    for stack in stacks:
        groups[stack.frames].append(stack)
    alone = [group[0] for group in groups.values() if len(group) == 1]
    return by_rank[alone[0].rank] if len(groups) == 2 and len(alone) == 1 and len(stacks) > 2 else None


def _ranks(stacks: Sequence[RankStack]) -> str:
    numbers = sorted(s.rank for s in stacks)
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    text = ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
    return f"rank {text}" if len(numbers) == 1 else f"ranks {text}"


def _text(stack: RankStack) -> str:
    lines = ["  stopped (SIGSTOP or a debugger)"] if stack.state in ("T", "t") else []
    if stack.error:
        lines.append(f"  no stack: {stack.error}")
    lines += [f"  {frame}" for frame in stack.frames]
    if not stack.waits:  # where the others are only matters where it is no wait
        lines += [
            f"  thread {name or '(no name)'}: {' < '.join(map(str, frames[:3]))}" for name, frames in stack.others
        ]
    return "\n".join(lines) or f"  {counted(0, 'frame')}"

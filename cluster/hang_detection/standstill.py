"""Standstill detection for a program without heartbeats, by comparing observations of its ranks. Pure functions.

One look proves nothing: a healthy training is often found in the same line. Ranks stand still if every one of them has
kept its stack over several looks, and those outside a collective have neither computed nor read nor written meanwhile.
"""

import dataclasses
import enum
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.hang_detection.limits import CANNOT_CONTINUE_S, COMPUTES_S, MIGHT_CONTINUE_S, SUSPECT_S
from cluster.hang_detection.stacks import RankStack, StackFrame
from cluster.terminal import counted

_COMPUTES = 0.05  # of a core, of all processes of a rank
_SWITCHES_PER_S = 3.0  # of the main thread: a loop that polls every second stays below, a step does not
_IO_BYTES_PER_S = 20_000  # of a rank: a log line stays below, reading input does not
_NETWORK_BYTES_PER_S = 60_000  # of a host: our own checks stay below it, a collective that makes progress exceeds it
_LEAST_S = 0.1  # between two looks
_PAIRS = 2  # of looks that must show the same
_INNERMOST = 4  # frames that tell what a rank waits for
_INPUT = re.compile(
    r"dataloader|/multiprocessing/|/queue\.py|_data_worker|tensorflow/python/data|/datasets?/", re.IGNORECASE
)


class Motion(enum.Enum):
    """Activity of a rank between two looks."""

    MOVES = "moves"
    COMPUTES = "computes"  # in one line
    WAITS = "waits"  # blocked in a call in which ranks wait for each other
    SPINS = "spins"  # in such a call, using the processor: NCCL and MPI do so, healthy or not
    IDLES = "idles"  # elsewhere, without using the processor
    STOPPED = "stopped"
    HELD = "held"  # by the kernel: state D
    UNSEEN = "unseen"  # no stack could be taken


_IN_COLLECTIVE = {Motion.WAITS, Motion.SPINS}


class Class(enum.StrEnum):
    """Kinds of hangs, as they are named to the user."""

    EXITED = "exited early while others wait"
    STOPPED = "stopped"
    DISK = "held by the kernel"
    INPUT = "waits for input"
    CODE = "stuck in user code"
    COMPUTES = "computes in one line"
    DIVERGED = "diverged collectives"
    COLLECTIVE = "all in one collective"


@dataclass(frozen=True, kw_only=True)
class RankLook:
    """Observation of one rank: its stack and its counters."""

    stack: RankStack
    cpu_s: float = 0.0
    io_bytes: int = 0
    switches: int = 0


@dataclass(frozen=True, kw_only=True)
class RanksObservation:
    """All ranks at one moment, and how many bytes each host's network has moved until then."""

    at: float
    ranks: Mapping[int, RankLook]
    network_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Diagnosis of a standstill."""

    kind: Class
    text: str
    rank: int | None = None
    host: str = ""
    is_sure: bool = True  # False: a healthy program may look like this for a while

    @property
    def warn_after_s(self) -> float:
        """Seconds of standstill after which the user is warned."""
        return SUSPECT_S if self.kind is Class.COMPUTES or not self.is_sure else 0.0

    @property
    def end_after_s(self) -> float:
        """Seconds of standstill after which the attempt ends."""
        if self.kind is Class.COMPUTES or not self.is_sure:
            return COMPUTES_S
        might_continue = self.kind in (Class.CODE, Class.INPUT, Class.DISK)
        return MIGHT_CONTINUE_S if might_continue else CANNOT_CONTINUE_S


class Standstill:
    """Sequence of looks, and the time since which nothing has moved between them."""

    def __init__(self, np: int) -> None:
        """Start without observations.

        np: the job's number of ranks, or 0 if torchrun decides it.
        """
        self._np = np
        self._last: RanksObservation | None = None
        self._since: float | None = None
        self._motions: dict[int, Motion] = {}
        self._looks = 0  # in a row that showed the same

    def reset(self) -> None:
        """Forget all looks: the program has printed something."""
        self._last, self._since, self._motions, self._looks = None, None, {}, 0

    def add(self, look: RanksObservation) -> bool:
        """Compare a look with the one before it. Return True if nothing moved."""
        before, self._last = self._last, look
        if before is None:
            return False
        motions = motions_between(before, look)
        is_same = look.ranks.keys() == before.ranks.keys() and not _moves(motions, before, look)
        if not is_same:
            self._since, self._looks, self._motions = None, 0, motions
            return False
        if self._since is None:
            self._since = before.at
        self._looks, self._motions = self._looks + 1, motions
        return True

    @property
    def is_suspected(self) -> bool:
        """Return True once two looks have shown the same."""
        return self._looks > 0

    def standing_s(self, now: float) -> float:
        """Return for how many seconds nothing has moved."""
        return now - self._since if self._since is not None else 0.0

    def verdict(self) -> Diagnosis | None:
        """Return why nothing moves, once two pairs of looks have shown it. None while that is not known."""
        if self._last is None or self._looks < _PAIRS:
            return None
        return judge(self._last, self._motions, self._np)


def motions_between(before: RanksObservation, after: RanksObservation) -> dict[int, Motion]:
    """Return what each rank of the later look did between the two."""
    elapsed_s = max(after.at - before.at, _LEAST_S)
    return {n: _motion(before.ranks[n], one, elapsed_s) for n, one in after.ranks.items() if n in before.ranks}


def judge(look: RanksObservation, motions: Mapping[int, Motion], np: int) -> Diagnosis | None:
    """Return why ranks stand still. None if too little was observed, or if no rank waits for another."""
    waiting = [n for n, m in motions.items() if m in _IN_COLLECTIVE]
    others = [n for n in motions if n not in waiting]
    gone = sorted(set(range(np)) - look.ranks.keys()) if np else []
    if stopped := [n for n in others if motions[n] is Motion.STOPPED]:
        return _of_rank(Class.STOPPED, look, stopped[0], waiting)
    if not waiting or any(motions[n] is Motion.UNSEEN for n in others):
        return None
    if gone:
        text = f"{_rank_words(gone)} {'has' if len(gone) == 1 else 'have'} exited, and {_wait(look, waiting)}"
        return Diagnosis(kind=Class.EXITED, text=text, rank=gone[0])
    if not others:
        is_sure = Motion.SPINS not in motions.values()
        return dataclasses.replace(_all_wait(look, waiting), is_sure=is_sure)
    for motion, kind in ((Motion.HELD, Class.DISK), (Motion.IDLES, Class.CODE), (Motion.COMPUTES, Class.COMPUTES)):
        if found := [n for n in others if motions[n] is motion]:
            is_input = any(_INPUT.search(f.file) for f in _python_frames(look.ranks[found[0]].stack)[:_INNERMOST])
            return _of_rank(Class.INPUT if is_input and kind is Class.CODE else kind, look, found[0], waiting)
    return None


def _moves(motions: Mapping[int, Motion], before: RanksObservation, after: RanksObservation) -> bool:
    """Return True if a rank moved, or if all wait while a host's network is busy: a large collective takes long."""
    if not motions or Motion.MOVES in motions.values():
        return True
    if not set(motions.values()) <= _IN_COLLECTIVE:
        return False
    elapsed_s = max(after.at - before.at, _LEAST_S)
    moved = (n - before.network_bytes.get(host, n) for host, n in after.network_bytes.items())
    return any(n > _NETWORK_BYTES_PER_S * elapsed_s for n in moved)


def _motion(before: RankLook, after: RankLook, elapsed_s: float) -> Motion:
    if after.stack.state in ("T", "t"):
        return Motion.STOPPED
    if not after.stack.frames or not before.stack.frames:
        return Motion.UNSEEN
    computes = after.cpu_s - before.cpu_s > _COMPUTES * elapsed_s
    switches = after.switches - before.switches > _SWITCHES_PER_S * elapsed_s
    if _python_frames(after.stack) != _python_frames(before.stack):
        return Motion.MOVES
    if after.stack.waits:
        return Motion.SPINS if computes or switches else Motion.WAITS
    if after.io_bytes - before.io_bytes > _IO_BYTES_PER_S * elapsed_s:
        return Motion.MOVES
    if after.stack.state == before.stack.state == "D":
        return Motion.HELD
    if computes:
        return Motion.COMPUTES
    return Motion.MOVES if switches else Motion.IDLES


def _python_frames(stack: RankStack) -> list[StackFrame]:
    """Return the Python frames.

    Frames of C and C++ are left out: the innermost change while a rank spins in one call.
    """
    return [f for f in stack.frames if f.is_python]


def _all_wait(look: RanksObservation, waiting: Sequence[int]) -> Diagnosis:
    """Return the verdict where every rank is in a collective: in the same one, or in different ones."""
    lines = {n: look.ranks[n].stack.line for n in waiting}
    groups = Counter(lines.values()).most_common()
    if len(groups) == 1:
        text = (
            f"{_rank_words(waiting)} wait in {groups[0][0]} and nothing moves between them: "
            "their counts or shapes differ, or the network between two hosts is broken"
        )
        return Diagnosis(kind=Class.COLLECTIVE, text=text)
    odd = min(n for n in waiting if lines[n] == groups[-1][0])
    parts = "; ".join(f"{_rank_words([n for n in waiting if lines[n] == line])} in {line}" for line, _ in groups[:3])
    text = f"ranks wait in different collectives: {parts}"
    return Diagnosis(kind=Class.DIVERGED, text=text, rank=odd, host=look.ranks[odd].stack.host)


def _of_rank(kind: Class, look: RanksObservation, rank: int, waiting: Sequence[int]) -> Diagnosis:
    """Return the verdict about one rank that the others wait for."""
    stack = look.ranks[rank].stack
    line = f" in {stack.line}" if stack.line else ""
    doing = {
        Class.STOPPED: f"was stopped (SIGSTOP or a debugger){line}",
        Class.DISK: f"is held by the kernel (state D: a disk or a file server that does not answer){line}",
        Class.INPUT: f"waits for input{line}",
        Class.CODE: f"stands still{line}",
        Class.COMPUTES: f"computes{line} and does not come back",
    }[kind]
    text = f"rank {rank} on {stack.host} {doing}" + (f", and {_wait(look, waiting)}" if waiting else "")
    return Diagnosis(kind=kind, text=text, rank=rank, host=stack.host)


def _wait(look: RanksObservation, waiting: Sequence[int]) -> str:
    line = look.ranks[waiting[0]].stack.line
    return f"{_rank_words(waiting)} {'waits' if len(waiting) == 1 else 'wait'} for it in {line}"


def _rank_words(numbers: Sequence[int]) -> str:
    """Return ranks as words: `rank 3`, `ranks 0 and 2`, `7 ranks`."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {numbers[0]} and {numbers[1]}" if len(numbers) == 2 else counted(len(numbers), "rank")

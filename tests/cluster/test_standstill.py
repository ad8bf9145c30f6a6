"""The verdict on a program without heartbeats, from looks at its ranks over time."""

import dataclasses
import itertools

import pytest

from cluster.hang_detection.hang import stood_still
from cluster.hang_detection.limits import CANNOT_CONTINUE_S, COMPUTES_S, MIGHT_CONTINUE_S, SUSPECT_S
from cluster.hang_detection.stacks import RankStack, StackFrame
from cluster.hang_detection.standstill import Class, RankLook, RanksObservation, Standstill
from cluster.hang_detection.standstill_watch import StandstillWatch
from cluster.recovery.failure_kinds import FailureKind

WAIT = (StackFrame("all_reduce", "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", 1541),)
STEP, OTHER = StackFrame("step", "train.py", 40), StackFrame("finish", "train.py", 60)
SLEEP = (StackFrame("sleeps", "train.py", 16), StackFrame("<module>", "train.py", 30))
FUTEX = tuple(StackFrame(f"futex_{n}", "libc.so.6", 0) for n in range(5))
QUEUE = (*FUTEX, StackFrame("get", "/usr/lib/python3.11/queue.py", 171), StackFrame("step", "train.py", 30))
NATIVE = (StackFrame("cudaStreamSynchronize", "libcudart.so.12", 0), STEP)
GAP_S = 7.0


def rank(number: int, frames: tuple[StackFrame, ...] = (*WAIT, STEP), state: str = "S", **counters: float) -> RankLook:
    stack = RankStack(rank=number, host=f"gpu{number // 2}", state=state, frames=frames)
    return RankLook(stack=stack, **counters)


def looks(
    *ranks: RankLook, times: int = 4, np: int = 4, network_per_s: int = 1000, **grows: dict[int, float]
) -> Standstill:
    """Equal looks, GAP_S apart, at which some ranks' counters grow by so much each second."""
    standstill = Standstill(np)
    for n in range(times):
        seen = {
            r.stack.rank: dataclasses.replace(
                r, **{name: type(getattr(r, name))(by.get(r.stack.rank, 0) * n * GAP_S) for name, by in grows.items()}
            )
            for r in ranks
        }
        standstill.add(
            RanksObservation(at=n * GAP_S, ranks=seen, network_bytes={"gpu0": int(network_per_s * n * GAP_S)})
        )
    return standstill


WAITING = [rank(0), rank(2), rank(3)]


@pytest.mark.parametrize(
    ("odd", "kind", "limit_s"),
    [
        (rank(1, SLEEP), Class.CODE, MIGHT_CONTINUE_S),
        (rank(1, QUEUE), Class.INPUT, MIGHT_CONTINUE_S),
        (rank(1, SLEEP, "D"), Class.DISK, MIGHT_CONTINUE_S),
        (rank(1, SLEEP, "T"), Class.STOPPED, CANNOT_CONTINUE_S),
        (rank(1, (*WAIT, OTHER)), Class.DIVERGED, CANNOT_CONTINUE_S),
    ],
    ids=lambda v: v.value if isinstance(v, Class) else "",
)
def test_the_rank_that_the_others_wait_for_is_named(odd: RankLook, kind: Class, limit_s: float) -> None:
    """With its class, its line, and the time after which its attempt ends."""
    found = looks(*WAITING, odd).verdict()

    assert found is not None
    assert (found.kind, found.rank, found.host, found.end_after_s) == (kind, 1, "gpu0", limit_s)
    assert "train.py:" in found.text
    assert found.warn_after_s == 0


def test_a_rank_that_has_exited_is_named() -> None:
    """The others wait for it, and its process is gone."""
    found = looks(*WAITING).verdict()

    assert found is not None
    assert (found.kind, found.rank, found.end_after_s) == (Class.EXITED, 1, CANNOT_CONTINUE_S)


def test_ranks_in_one_collective_that_moves_nothing_are_a_hang() -> None:
    """No rank is at fault: their counts differ, or the network is broken."""
    found = looks(*WAITING, rank(1)).verdict()

    assert found is not None
    assert (found.kind, found.rank, found.end_after_s) == (Class.COLLECTIVE, None, CANNOT_CONTINUE_S)


def test_a_rank_that_computes_in_one_line_is_only_suspected() -> None:
    """A long native computation looks the same: a warning after two minutes, the end after half an hour."""
    found = looks(*WAITING, rank(1, SLEEP), cpu_s={1: 1.0}).verdict()

    assert found is not None
    assert (found.kind, found.rank, found.warn_after_s, found.end_after_s) == (Class.COMPUTES, 1, SUSPECT_S, COMPUTES_S)


def test_ranks_that_spin_in_one_line_are_only_suspected() -> None:
    """NCCL and MPI spin, in a healthy step too; native frames tell that it is a wait."""
    found = looks(*(rank(n, NATIVE) for n in range(4)), cpu_s=dict.fromkeys(range(4), 1.0)).verdict()

    assert found is not None
    assert (found.kind, found.is_sure, found.end_after_s) == (Class.COLLECTIVE, False, COMPUTES_S)


@pytest.mark.parametrize(
    "grows",
    [{"switches": {1: 10}}, {"io_bytes": {1: 100_000}}],
    ids=["its main thread runs now and then", "it reads or writes"],
)
def test_a_rank_that_moves_is_no_hang(grows: dict[str, dict[int, float]]) -> None:
    """Though its stack is met in the same line each time."""
    assert looks(*WAITING, rank(1, SLEEP), **grows).verdict() is None


def test_a_large_collective_that_moves_data_is_no_hang() -> None:
    """All ranks wait in it for minutes on a slow network."""
    assert looks(*WAITING, rank(1), network_per_s=1_000_000).verdict() is None


def test_nothing_is_known_of_ranks_that_do_not_wait_for_each_other() -> None:
    """A service, or one rank alone, may sleep for as long as it likes."""
    assert looks(rank(0, SLEEP), np=1).verdict() is None
    assert looks(rank(0, SLEEP), rank(1, QUEUE), np=2).verdict() is None


def test_nothing_is_known_where_no_stack_can_be_taken() -> None:
    """The rank without one may be the one that works."""
    assert looks(*WAITING, rank(1, ())).verdict() is None


def test_two_equal_looks_are_not_enough() -> None:
    """A healthy step is often met twice in the same line."""
    assert looks(*WAITING, rank(1, SLEEP), times=2).verdict() is None
    assert looks(*WAITING, rank(1, SLEEP), times=3).verdict() is not None


def test_a_stack_that_changes_once_starts_anew() -> None:
    """What moved, moves: three equal looks after it are needed again."""
    standstill = looks(*WAITING, rank(1, SLEEP))
    moved = {r.stack.rank: r for r in (*WAITING, rank(1))}

    assert not standstill.add(RanksObservation(at=100, ranks=moved))
    assert standstill.verdict() is None
    assert standstill.standing_s(200) == 0


def test_a_program_that_prints_is_not_looked_at() -> None:
    """Looks begin after some silence, come often while nothing moves, and ever more rarely while ranks move."""
    moving: list[float] = []
    watch = StandstillWatch(
        lambda _: (
            moving.append(now) or RanksObservation(at=now, ranks={0: rank(0, (StackFrame("f", "a.py", int(now)),))})
        ),
        1,
    )
    for second in range(600):
        now = float(second)
        watch.look(silent_s=0.0, now=now)
    assert moving == []

    for second in range(600, 1200):
        now = float(second)
        assert watch.look(silent_s=now - 600, now=now) is None
    pauses = [b - a for a, b in itertools.pairwise(moving)]
    assert moving[0] == 615
    assert pauses == sorted(pauses)
    assert pauses[-1] == 60


def test_a_silent_shared_folder_is_the_cause_where_a_rank_waits_for_it() -> None:
    """The folder is to blame, not the rank; without such trouble it is a hang."""
    found = looks(*WAITING, rank(1, SLEEP, "D")).verdict()
    assert found is not None

    blamed = stood_still(found, 301, {"gpu0": "does not answer within 10 s"})
    assert (blamed.kind, blamed.host) == (FailureKind.SHARED_FOLDER, "gpu0")
    assert blamed.text.startswith("the shared folder does not answer within 10 s on gpu0")
    assert stood_still(found, 301, {}).kind is FailureKind.HANG

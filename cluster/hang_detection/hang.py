"""Description of a hang: the rank that the others wait for, its line, since when, and the evidence. Pure functions."""

from collections.abc import Mapping, Sequence

from cluster.hang_detection.rank_state import RankPhase, RankSeen
from cluster.hang_detection.stacks import RankStack, odd_one
from cluster.hang_detection.standstill import Class, Diagnosis
from cluster.recovery.cause import Cause
from cluster.recovery.failure_kinds import FailureKind
from cluster.terminal import counted

STACKS = "stacks.txt"  # beside an attempt's console


def hang(
    ranks: Sequence[RankSeen], late: Sequence[RankSeen], stacks: Sequence[RankStack], folder_trouble: Mapping[str, str]
) -> Cause:
    """Return the cause of an attempt that ends because its ranks make no progress.

    late: the ranks that are overdue. folder_trouble: address -> what is wrong there with the shared folder.
    """
    last = max(late, key=lambda r: r.silent_s)
    how_long = (
        f"no progress for {last.silent_s:.0f} s after step {min((r.step for r in ranks if not r.is_mute), default=0)}"
    )
    if folder_trouble:
        address, trouble = next(iter(folder_trouble.items()))
        one = next((r for r in ranks if r.host == address and (r.is_stuck or r.phase is RankPhase.SAVE)), None)
        return Cause(
            kind=FailureKind.SHARED_FOLDER,
            text=f"the shared folder {trouble} on {_hosts(folder_trouble)}: {how_long}",
            rank=one.rank if one else None,
            host=address,
        )
    odd = odd_one(ranks, stacks)
    if odd is None:
        first = f"all {counted(len(ranks), 'rank')} stand still and none stands out"
        return Cause(kind=FailureKind.HANG, text=f"{first}: {how_long}; see {STACKS}")
    return Cause(
        kind=FailureKind.HANG,
        text=f"rank {odd.rank} on {odd.host} hangs: {_where(odd, stacks)}; {how_long}; see {STACKS}",
        rank=odd.rank,
        host=odd.host,
    )


def stood_still(verdict: Diagnosis, standing_s: float, folder_trouble: Mapping[str, str]) -> Cause:
    """Return the cause of an attempt that ends because a program without heartbeats stands still.

    folder_trouble: address -> what is wrong there with the shared folder.
    """
    text = f"{verdict.text}: nothing has moved for {standing_s:.0f} s ({verdict.kind}); see {STACKS}"
    if folder_trouble and verdict.kind in (Class.DISK, Class.CODE, Class.INPUT):
        address, trouble = next(iter(folder_trouble.items()))
        text = f"the shared folder {trouble} on {_hosts(folder_trouble)}: {text}"
        return Cause(kind=FailureKind.SHARED_FOLDER, text=text, rank=verdict.rank, host=address)
    return Cause(kind=FailureKind.HANG, text=text, rank=verdict.rank, host=verdict.host)


def outlived(silent_s: float, stopped: Mapping[str, str]) -> Cause:
    """Return the cause of an attempt whose mpirun still runs long after its last rank has ended.

    stopped: address -> the name of mpirun's daemon that is stopped there.
    """
    text = f"all ranks have ended, and mpirun has not for {silent_s:.0f} s"
    address, name = next(iter(stopped.items()), ("", ""))
    if name:
        text += f": its {name} on {address} is stopped (SIGSTOP or a debugger)"
    return Cause(kind=FailureKind.DAEMON, text=text, host=address)


def _where(rank: RankSeen, stacks: Sequence[RankStack]) -> str:
    stack = next((s for s in stacks if s.rank == rank.rank), None)
    line = f" in {stack.line}" if stack and stack.line else ""
    if rank.is_stopped:
        return f"it was stopped (SIGSTOP or a debugger){line}"
    if not rank.is_heard:
        return "its host answers, but no program runs there any more"
    if rank.is_stuck:
        return f"the kernel holds it (state D: a disk or a file server that does not answer){line}"
    doing = f"it is {rank.phase.doing}" if rank.phase is not None and not rank.is_mute else "it runs"
    return f"{doing}{line}" + (f" ({stack.error})" if stack and stack.error else "")


def _hosts(addresses: Mapping[str, str]) -> str:
    first = list(addresses)[:3]
    return ", ".join(first) + (f" and {len(addresses) - 3} more" if len(addresses) > 3 else "")

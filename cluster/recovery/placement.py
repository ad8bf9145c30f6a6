"""Placement of the next attempt: the same hosts, a spare in place of a failed one, fewer hosts, or none yet.

Pure functions: no clock, no access to hosts.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.hosts import Host
from cluster.hostset import fold
from cluster.recovery.preemption import PreemptionNotice


@dataclass(frozen=True, kw_only=True)
class Ineligible:
    """Reason why a host cannot be in the next attempt."""

    why: str
    is_gone: bool = False  # it is silent or broken, and has to be replaced
    is_silent: bool = False  # it does not answer at all
    is_its_own: bool = False  # a check found a fault of the host itself
    failed_before: bool = False  # left out because of its failures in the last days
    notice: PreemptionNotice | None = None  # it will go within minutes


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Placement of the next attempt: its hosts, and why each other host is left out or replaced."""

    hosts: tuple[Host, ...] = ()  # in rank order; none while too many are missing
    np: int = 0  # ranks on them
    seats: tuple[Host, ...] = ()  # the hosts of the whole job from now on, missing ones included
    spares: tuple[Host, ...] = ()  # that are still spare
    taken: Mapping[str, str] = field(default_factory=dict)  # host that went -> the spare in its place
    successors: Mapping[str, str] = field(default_factory=dict)  # host that went -> the new host in its place
    replaced: Mapping[str, Ineligible] = field(
        default_factory=dict
    )  # the hosts whose place a spare took, with the reason
    missing: Mapping[str, Ineligible] = field(default_factory=dict)  # hosts that nothing replaces, with the reason

    @property
    def is_whole(self) -> bool:
        """Return True if every rank has its host."""
        return bool(self.hosts) and not self.missing

    @property
    def all_leave(self) -> bool:
        """Return True if all hosts of the job are missing, each with its own preemption notice."""
        return len(self.missing) == len(self.seats) and all(unfit.notice for unfit in self.missing.values())

    @property
    def notices(self) -> tuple[PreemptionNotice, ...]:
        """Return the preemption notices of the hosts that are replaced or missing."""
        return tuple(u.notice for u in (*self.replaced.values(), *self.missing.values()) if u.notice)

    def __str__(self) -> str:
        parts = [f"spare {spare} takes the place of {gone}" for gone, spare in self.taken.items()]
        parts += [f"its successor {new} has the place of {gone}" for gone, new in self.successors.items()]
        out = "; ".join(f"{fold([address])} {unfit.why}" for address, unfit in self.missing.items())
        if out:
            parts.append(f"goes on without: {out}" if self.hosts else f"too few hosts: {out}")
        return "; ".join(parts) or "on the same hosts"


def choose(
    seats: Sequence[Host],
    spares: Sequence[Host],
    unfit: Mapping[str, Ineligible],
    failed_before: Mapping[str, str],
    *,
    np: int,
    min_np: int,
) -> Placement:
    """Return the placement of the next attempt.

    seats: the hosts of the whole job, in its order. failed_before: hosts to leave out where others can be had, the
    worst first. np: ranks of the whole job. min_np: the least number of ranks with which the job continues.
    """
    for spared in range(len(failed_before) + 1):  # use hosts that failed before rather than too few, the worst last
        failed = list(failed_before)[: len(failed_before) - spared]
        out = {**{a: Ineligible(why=failed_before[a], failed_before=True) for a in failed}, **unfit}
        filled, missing, taken = _seated(seats, spares, out, failed_before)
        if _ranks(filled, np) >= min_np:
            break
    can_go = bool(filled) and _ranks(filled, np) >= min_np
    return Placement(
        hosts=_holding(filled, np) if can_go else (),
        np=_ranks(filled, np) if can_go else 0,
        seats=tuple(sorted((*filled, *missing))),
        spares=tuple(s for s in spares if s.address not in taken.values()),
        taken=taken,
        replaced={a: out[a] for a in taken},
        missing={m.address: out[m.address] for m in missing},
    )


def _seated(
    seats: Sequence[Host], spares: Sequence[Host], out: Mapping[str, Ineligible], failed_before: Mapping[str, str]
) -> tuple[list[Host], list[Host], dict[str, str]]:
    """Return the seats that have a host, those that have none, and for each host that went its spare.

    The largest seats choose first: few spares are large enough for them, so most slots are filled. Spares that failed
    before are chosen last.
    """
    worst = list(failed_before)
    free = [s for s in spares if s.address not in out]
    free.sort(key=lambda s: -worst.index(s.address) if s.address in failed_before else -len(worst))
    filled, missing, taken = [s for s in seats if s.address not in out], [], {}
    for seat in sorted((s for s in seats if s.address in out), key=lambda s: (-s.slots, s)):
        spare = next((s for s in free if s.slots >= seat.slots), None)
        if spare:
            free.remove(spare)
            taken[seat.address] = spare.address
            filled.append(dataclasses.replace(seat, address=spare.address))
        else:
            missing.append(seat)
    return filled, sorted(missing), taken


def _ranks(hosts: Sequence[Host], np: int) -> int:
    return min(np, sum(h.slots for h in hosts))


def _holding(hosts: Sequence[Host], np: int) -> tuple[Host, ...]:
    """Return the hosts that hold one of `np` ranks when hosts are filled in order."""
    held: list[Host] = []
    for host in sorted(hosts):
        if sum(h.slots for h in held) < np:
            held.append(host)
    return tuple(held)

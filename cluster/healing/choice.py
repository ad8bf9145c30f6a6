"""Which hosts the next attempt gets: the same, a spare in a dead one's place, fewer, none yet. No clock, no hosts."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.healing.departure import Departure
from cluster.hosts import Host
from cluster.hostset import fold


@dataclass(frozen=True, kw_only=True)
class Unfit:
    """Why a host cannot be in the next attempt."""

    why: str
    is_gone: bool = False  # it is silent, or is to be replaced: a successor is what helps
    is_silent: bool = False  # it answers nothing at all
    is_its_own: bool = False  # a look found something of its own
    failed_before: bool = False  # it is left out for its failures of the last days
    notice: Departure | None = None  # it says that it will go within minutes


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The next attempt's hosts, and what became of the others."""

    hosts: tuple[Host, ...] = ()  # in rank order; none while too many are missing
    np: int = 0  # ranks on them
    seats: tuple[Host, ...] = ()  # who holds the job's ranks from now on, those that are missing included
    spares: tuple[Host, ...] = ()  # that are still spare
    taken: Mapping[str, str] = field(default_factory=dict)  # who went -> the spare in its place
    successors: Mapping[str, str] = field(default_factory=dict)  # who went -> the new host in its place
    replaced: Mapping[str, Unfit] = field(default_factory=dict)  # the same who went, with why
    missing: Mapping[str, Unfit] = field(default_factory=dict)  # whose place nobody has

    @property
    def is_whole(self) -> bool:
        """Every rank has its host."""
        return bool(self.hosts) and not self.missing

    @property
    def all_leave(self) -> bool:
        """No host stays, and none comes back."""
        return len(self.missing) == len(self.seats) and all(unfit.notice for unfit in self.missing.values())

    @property
    def notices(self) -> tuple[Departure, ...]:
        """What hosts said of their own end, of those that go without their rank."""
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
    unfit: Mapping[str, Unfit],
    failed_before: Mapping[str, str],
    *,
    np: int,
    min_np: int,
) -> Chosen:
    """The next attempt's hosts.

    seats: the hosts of the whole job, in its order. failed_before: hosts that are left out where others can be had, the
    worst first. np: ranks of the whole job; min_np: those without which it does not go on.
    """
    for spared in range(len(failed_before) + 1):  # rather one that failed before than none, and the worst last
        failed = list(failed_before)[: len(failed_before) - spared]
        out = {**{a: Unfit(why=failed_before[a], failed_before=True) for a in failed}, **unfit}
        filled, missing, taken = _seated(seats, spares, out, failed_before)
        if _ranks(filled, np) >= min_np:
            break
    can_go = bool(filled) and _ranks(filled, np) >= min_np
    return Chosen(
        hosts=_holding(filled, np) if can_go else (),
        np=_ranks(filled, np) if can_go else 0,
        seats=tuple(sorted((*filled, *missing))),
        spares=tuple(s for s in spares if s.address not in taken.values()),
        taken=taken,
        replaced={a: out[a] for a in taken},
        missing={m.address: out[m.address] for m in missing},
    )


def _seated(
    seats: Sequence[Host], spares: Sequence[Host], out: Mapping[str, Unfit], failed_before: Mapping[str, str]
) -> tuple[list[Host], list[Host], dict[str, str]]:
    """The seats that have a host, those that have none, and which spare has whose place.

    Large seats choose first: few spares are large enough for them, and so the most slots are filled. The spares that
    failed before are chosen last.
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
    """The hosts that hold one of `np` ranks when they are filled in order."""
    held: list[Host] = []
    for host in sorted(hosts):
        if sum(h.slots for h in held) < np:
            held.append(host)
    return tuple(held)

"""Admission before an attempt: checks that every host answers, examines suspects and spares, and chooses hosts."""

import contextlib
import dataclasses
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.jobs.claim import taken_by_others
from cluster.jobs.host_queue import Held
from cluster.jobs.occupancy import held_by, holders
from cluster.jobs.record import Job, jobs_folder
from cluster.jobs.records import read_going
from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.host_failures import FailureRecord, left_out, note, own_failures, read_memory
from cluster.recovery.liveness import silent_hosts
from cluster.recovery.placement import Ineligible, Placement, choose
from cluster.recovery.preemption import PreemptionNotice
from cluster.recovery.replacement import Replacement, with_successors

_ANSWER_S = 3.0  # limit for a host to accept a connection


def next_hosts(
    shared: Path, job: Job, *, seats: Sequence[Host], spares: Sequence[Host], without: Mapping[str, str] = {},
    leaving: Iterable[PreemptionNotice] = (), suspects: Iterable[str] = (), np: int, min_np: int,
    replacing: Replacement | None = None,
) -> Placement:  # fmt: skip
    """Return the placement of the job's next attempt, after about five seconds.

    Args:
        seats, np: hosts and ranks of the whole job.
        without: hosts to leave out without another check, with the reason.
        leaving: notices of hosts that will go, as far as they are known.
        suspects: hosts to examine. Spares are examined, too.
        replacing: replaces hosts that are gone, and knows their successors.

    Runs on the master.
    """
    successors = replacing.successors(seats) if replacing else {}
    if replacing:
        seats = with_successors(seats, successors)
        known = {h.address for h in (*seats, *spares)}
        spares = (*spares, *(h for h in replacing.spares() if h.address not in known))
    held = held_by(holders(read_going(jobs_folder(str(shared)))), besides=job.id)
    free = _with_room(job, spares, held)
    unfit = {a: Ineligible(why=why) for a, why in without.items()} | _unfit_to_stay(leaving)
    whole = [dataclasses.replace(h, slots=job.slots_of(h)) for h in seats if h.address not in unfit]
    rooms = {s.address for s in free}
    unfit |= look_at(shared, whole, [s for s in spares if s.address in rooms], set(suspects), job)
    _remember(shared, job, {a: u for a, u in unfit.items() if u.is_its_own}, "unfit")
    chosen = choose(seats, free, unfit, left_out(read_memory(shared).entries, time.time()), np=np, min_np=min_np)
    if replacing:
        replacing.begin(_replaceable(job, chosen, held), seats)
    still = tuple(s for s in spares if s.address not in chosen.taken.values())  # those of other jobs included
    return dataclasses.replace(chosen, spares=still, successors={a: h.address for a, h in successors.items()})


def could_be_had(
    shared: Path, job: Job, *, seats: Sequence[Host], spares: Sequence[Host], np: int,
    replacing: Replacement | None = None,
) -> Placement | None:  # fmt: skip
    """Return the hosts that a job on fewer hosts could have now: its own again, successors, spares.

    Return None if the job has all its hosts.
    """
    used = {h.address for h in job.hosts}
    missing = [h.address for h in seats if h.address not in used]
    if not missing:
        return None
    return next_hosts(
        shared, job, seats=seats, spares=spares, suspects=missing, np=np, min_np=job.np, replacing=replacing
    )


def look_at(
    shared: Path, seats: Sequence[Host], spares: Sequence[Host], suspects: Collection[str], job: Job
) -> dict[str, Ineligible]:
    """Return which of these hosts cannot be in the job's attempt now, with the reason.

    They are hosts that do not answer or will go. Suspects and spares are also rejected if a check finds a problem, or
    if another job has them.
    """
    from cluster.health.precheck import glance  # here: most attempts begin without, and a rank waits for every import
    from cluster.recovery.preemption_query import leaving_hosts

    asked = [h.address for h in (*seats, *spares) if not h.is_local]
    silent = silent_hosts(asked, _ANSWER_S)
    if unforeseen := silent - set(suspects):
        silent -= unforeseen - silent_hosts(unforeseen, _ANSWER_S)
    looked = [h for h in (*seats, *spares) if h.address not in silent and (h in spares or h.address in suspects)]
    sick = glance(shared, looked, is_shared=job.plan.is_shared) if looked else {}
    used = {h.address for h in job.hosts}
    taken = taken_by_others([h for h in looked if h.address not in {*used, *sick}], job)
    leaving = leaving_hosts([h for h in (*seats, *spares) if h.address not in silent])
    return {
        **{a: Ineligible(why="does not answer", is_gone=True, is_silent=True) for a in silent},
        **{a: Ineligible(why=s.why, is_gone=s.must_go, is_its_own=s.is_its_own) for a, s in sick.items()},
        **{a: Ineligible(why=why) for a, why in taken.items()},
        **_unfit_to_stay(leaving),
    }


def _unfit_to_stay(leaving: Iterable[PreemptionNotice]) -> dict[str, Ineligible]:
    return {notice.host: Ineligible(why=f"will go: {notice.text}", notice=notice) for notice in leaving}


def _with_room(job: Job, spares: Sequence[Host], held: Held) -> list[Host]:
    """Return the spares on which the job finds its slots, each with as many as other jobs leave of it."""
    left = [dataclasses.replace(s, slots=s.slots - sum(held.get(s.address, {}).values())) for s in spares]
    return [s for s in left if (s.address not in held if job.takes_whole(s) else s.slots >= job.need)]


def _replaceable(job: Job, chosen: Placement, held: Held) -> Placement:
    """Return the placement, with no host to be replaced that another job uses.

    One that does not answer is lost for all of its jobs, so the oldest of them has it replaced.
    """

    def judged(address: str, unfit: Ineligible) -> Ineligible:
        others = held.get(address, {})
        may_go = not others or (unfit.is_silent and job.id < min(others))
        return unfit if may_go else dataclasses.replace(unfit, is_gone=False)

    return dataclasses.replace(
        chosen,
        replaced={a: judged(a, u) for a, u in chosen.replaced.items()},
        missing={a: judged(a, u) for a, u in chosen.missing.items()},
    )


def remember_end(shared: Path, job: Job, what: FailureKind, text: str, lost: Collection[str]) -> None:
    """Record which hosts failed in the job's attempt by themselves, as far as its end shows it.

    A host that was lost counts, unless most hosts were lost at once. A killed rank, a hang or a program's error is not
    blamed on a host until a check finds a problem there.
    """
    if what is FailureKind.HOST:
        others = [h.address for h in job.hosts if not h.is_local]
        silent = silent_hosts([a for a in others if a not in lost], _ANSWER_S)  # others that are gone, too
        failed = own_failures({*lost, *silent}, others)
        _remember(shared, job, {a: Ineligible(why=text) for a in failed}, str(what))


def _remember(shared: Path, job: Job, failed: Mapping[str, Ineligible], what: str) -> None:
    """Record each host's failure, once per attempt.

    Errors are ignored: a record that cannot be written must not stop the recovery.
    """
    known = {(e.host, e.job, e.attempt) for e in read_memory(shared).entries}
    for address, unfit in failed.items():
        if (address, job.id, job.attempt) not in known:
            said = FailureRecord(
                time=time.time(), host=address, what=what, text=unfit.why, job=job.id, attempt=job.attempt
            )
            with contextlib.suppress(ClusterError):
                note(shared, said)

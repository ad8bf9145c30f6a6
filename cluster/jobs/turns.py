"""Turns of a user's waiting jobs. The first of their supervisors that needs them computes them for all."""

import os
import time
from collections.abc import Collection

from cluster.jobs.host_queue import QueuePosition
from cluster.jobs.lock import locked
from cluster.jobs.occupancy import places_of
from cluster.jobs.record import JobPaths, Turn, read_turn, write_turn
from cluster.jobs.records import read_going

EVERY_S = 2.0  # how old a place may be: all records are read to find it


def own_place(paths: JobPaths, ticket: int, without: Collection[str] = ()) -> QueuePosition | None:
    """Return a waiting job's place in the queue, or None if it does not wait. Hosts in it are the job's from then on.

    without: addresses of hosts that it cannot have now, although no record says so.
    """
    turn = read_turn(paths, ticket)
    if not (turn and (turn.place.hosts or (_is_fresh(paths) and not without))):
        _find_turns(paths, without)
        turn = read_turn(paths, ticket)
    return turn.place if turn else None


def _find_turns(paths: JobPaths, without: Collection[str]) -> None:
    """Write the place of each of this user's waiting jobs, or of this job only if `without` names hosts."""
    folder, own = paths.folder.parent, paths.folder.name
    with locked(folder):
        if not without and _is_fresh(paths):  # another supervisor has just found it
            return
        records = read_going(folder)
        tickets = {job.id: job.ticket for job, _ in records.jobs if job.id not in records.others}
        for job, place in places_of(records, own if without else "", without).items():
            if job in tickets:
                _keep(JobPaths(folder / job), Turn(ticket=tickets[job], place=place))


def _keep(paths: JobPaths, turn: Turn) -> None:
    if read_turn(paths, turn.ticket) == turn:
        os.utime(paths.turn)
    else:
        write_turn(paths, turn)


def _is_fresh(paths: JobPaths) -> bool:
    try:
        return 0 <= time.time() - paths.turn.stat().st_mtime < EVERY_S
    except OSError:
        return False

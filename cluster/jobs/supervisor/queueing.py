"""Queueing of a job: its supervisor waits for its turn, takes its hosts and has them checked."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

from cluster.errors import ClusterError
from cluster.folder_thread import FolderThread
from cluster.hosts import Host
from cluster.jobs.claim import HostsTaken, give_back
from cluster.jobs.host_queue import QueuePosition
from cluster.jobs.record import Job, JobPaths, Turn, read_turn, write_job, write_turn
from cluster.jobs.supervisor.interruptible_wait import Patience
from cluster.jobs.supervisor.recovery import Prepared, Recovery
from cluster.jobs.supervisor.reporter import Telling
from cluster.jobs.turns import own_place
from cluster.recovery.policy import Retry
from cluster.recovery.replacement import Replacement

_LOOK_S = 2.0  # multiplied by the place in the queue, so that many jobs cause little load
_LONGEST_LOOK_S = 6.0


class Queueing:
    """Queueing of a job, from its submission to its first mpirun. A stop of the job ends it at once with StopAsked."""

    def __init__(
        self,
        job: Job,
        paths: JobPaths,
        patience: Patience,
        replacing: Replacement,
        telling: Telling,
        folder: FolderThread,
    ) -> None:
        """Begin the wait of a job.

        job: its record. It may name hosts that an earlier supervisor, which is gone, took for it.
        """
        self._found, self._job = job, job.planned(hosts=(), whole_hosts=())
        self._paths, self._patience = paths, patience
        self._replacing, self._telling, self._folder = replacing, telling, folder
        self._said = ""
        self._elsewhere: set[str] = set()  # hosts that a job of another shared folder has
        self.may_have_used: tuple[Host, ...] = (*job.wanted, *job.plan.spares) if job.hosts else ()

    def prepare(self) -> Prepared:
        """Wait for the job's turn and return its attempt, on hosts that passed their checks.

        Raises NotHealed if the attempt cannot be made although it is the job's turn.
        """
        turn = read_turn(self._paths, self._job.ticket)
        if self._found.hosts and not (turn and turn.place.hosts and not turn.is_taken):
            self._patience.wait_for(lambda: self._give_back(self._found))
        while True:
            place, job = self._turn()
            offered = job.planned(spares=_spares_beside(job, place.others))
            telling = self._telling
            healing = Recovery(
                offered, self._paths, self._patience, self._replacing, telling, self._folder, say=telling.waits
            )
            try:
                prepared = healing.prepare(Retry(is_turn=True), job.attempt)
            except HostsTaken as e:  # claimed by a job of another shared folder
                self._say(f"waits: {e}", self._telling.waits)
                self._patience.wait_for(functools.partial(self._give_back, job))
                self._elsewhere |= e.why.keys()  # others may be free
                continue
            own = {h.address for h in job.plan.spares}
            spares = tuple(h for h in prepared.job.plan.spares if h.address in own or h not in place.others)
            chosen = prepared.job.planned(spares=spares)
            write_job(self._paths, chosen)
            return dataclasses.replace(prepared, job=chosen)

    def _turn(self) -> tuple[QueuePosition, Job]:
        """Wait for the job's turn. Return its place in the queue, and the job with the hosts taken."""
        while True:
            pause_s = _LOOK_S
            try:
                place = self._patience.wait_for(self._place)
                if place and place.hosts:
                    self._say(str(place))
                    return place, self._patience.wait_for(functools.partial(self._take, place))
                if self._elsewhere:
                    self._elsewhere = set()
                else:
                    self._say(str(place or "its own record cannot be read"))
                pause_s *= place.number if place else 1
            except (ClusterError, OSError) as e:  # for instance the shared folder is unreachable
                self._say(f"waits: {str(e).splitlines()[0]}")
            self._patience.sleep(min(pause_s, _LONGEST_LOOK_S))

    def _place(self) -> QueuePosition | None:
        return own_place(self._paths, self._job.ticket, self._elsewhere)

    def _take(self, place: QueuePosition) -> Job:
        """Note that the hosts of the job's turn are about to be claimed. Return it with them."""
        write_turn(self._paths, Turn(ticket=self._job.ticket, place=place, is_taken=True))
        self.may_have_used = (*self._job.wanted, *self._job.plan.spares)
        return self._job.planned(hosts=place.hosts, whole_hosts=place.hosts)

    def _give_back(self, job: Job) -> None:
        """Release these hosts. The job keeps its place in the queue."""
        give_back(job)
        write_job(self._paths, self._job)
        self._paths.turn.unlink(missing_ok=True)

    def _say(self, text: str, say: Callable[[str], None] | None = None) -> None:
        """Print the text to the console if it is new.

        A place is not kept in the record: readers compute it from all jobs.
        """
        if text != self._said:
            self._said = text
            (say or self._telling.say)(text)


def _spares_beside(job: Job, others: Sequence[Host]) -> tuple[Host, ...]:
    """Return the job's spares and these others, each host once, without those that it begins on."""
    begins_on = {h.address for h in job.hosts}
    return tuple({h.address: h for h in (*job.plan.spares, *others) if h.address not in begins_on}.values())

"""Recovery between two attempts of a job: wait for what is missing, check hosts, plan the next attempt."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cluster.errors import ClusterError
from cluster.folder_thread import FolderThread
from cluster.hosts import Host
from cluster.jobs.claim import HostsTaken, claim_hosts
from cluster.jobs.cleanup import release
from cluster.jobs.plan import HostsUnfit, planned_on_master, write_hostfiles
from cluster.jobs.record import Job, JobPaths, write_job
from cluster.jobs.supervisor.admission import next_hosts
from cluster.jobs.supervisor.interruptible_wait import Patience
from cluster.jobs.supervisor.reporter import Telling
from cluster.jobs.supervisor.shared_folder import trouble_here
from cluster.recovery.placement import Placement
from cluster.recovery.policy import RESUME_ON_NEW_HOSTS, Retry
from cluster.recovery.preemption import PreemptionNotice
from cluster.recovery.replacement import Replacement

LONGEST_WAIT_S = 1800.0  # limit on the wait for hosts and the shared folder
_LOOK_S = 5.0
_NEWS_S = 0.5  # interval of checks for new hosts of the stack


class NotHealed(Exception):
    """Error: there will be no next attempt. The text gives the reason."""


class _NotYet(ClusterError):
    """Error: the next attempt cannot start now. The text names what is missing."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Next attempt, planned: its record and hostfile are written, nothing of it runs yet."""

    job: Job
    choice: str  # the placement in words
    waited_s: float
    gate_s: float


class Recovery:
    """Recovery of a job, from an attempt's end to the next mpirun. A stop of the job ends it at once with StopAsked."""

    def __init__(
        self,
        job: Job,
        paths: JobPaths,
        patience: Patience,
        replacing: Replacement,
        telling: Telling,
        folder: FolderThread,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Prepare for attempts after the given one.

        say: prints what the job waits for, by default to the console.
        """
        self._job, self._paths, self._patience, self._telling = job, paths, patience, telling
        self._replacing, self._folder, self._say = replacing, folder, say or telling.say
        self._waited_s = self._gate_s = 0.0
        self._said = ""
        self.may_have_taken: dict[str, Host] = {h.address: h for h in job.all_hosts}

    def prepare(self, again: Retry, attempt: int) -> Prepared:
        """Plan the next attempt and claim its hosts, waiting until that is possible.

        Raises NotHealed if there cannot be a next attempt. For a job from the queue, raises HostsTaken if another job
        holds one of its hosts.
        """
        self._deadline = time.monotonic() + again.wait_s + LONGEST_WAIT_S
        self._pause(again.wait_s)
        out, leaving = {again.without: "hung time and again"} if again.without else {}, again.leaving
        while True:
            if again.needs_shared_folder or self._folder.is_silent:
                self._await_shared_folder()
            began, news = time.monotonic(), self._replacing.news
            try:
                planned = functools.partial(self._planned, again, dict(out), leaving, attempt)
                job, chosen = self._patience.wait_for(planned)
                job = self._patience.wait_for(functools.partial(self._claim, job, chosen), to_its_end=True)
                self._patience.wait_for(functools.partial(self._announce, job))
                gate_s = self._gate_s + time.monotonic() - began
                return Prepared(job=job, choice=str(chosen), waited_s=self._waited_s, gate_s=gate_s)
            except (HostsUnfit, HostsTaken) as e:
                if again.is_turn and isinstance(e, HostsTaken) and e.why.keys() & self._own:
                    raise
                missing = "" if e.why.keys() - out.keys() else str(e)  # try at once without these hosts
                out |= e.why
            except ClusterError as e:
                missing = str(e).splitlines()[0]
                if again.without:
                    again, out, missing = self._taken_back(again, out), {}, ""
            except OSError:
                self._gate_s += time.monotonic() - began
                self._await_shared_folder()
                continue
            looked_s = time.monotonic() - began
            if not missing:
                self._gate_s += looked_s
                continue
            self._waited_s += looked_s  # a failed attempt to plan counts as waiting
            self._wait(missing, news)
            again = dataclasses.replace(again, suspect=again.suspect or again.without, without="")
            out, leaving = {}, ()  # a host that has come back may be used again

    def _planned(
        self, again: Retry, without: Mapping[str, str], leaving: Sequence[PreemptionNotice], attempt: int
    ) -> tuple[Job, Placement]:
        """Plan the attempt on the hosts that can be had now. Return it with the placement."""
        job = self._job
        chosen = next_hosts(
            self._paths.folder.parent.parent,
            job,
            seats=job.plan.whole_hosts or job.hosts,
            spares=job.plan.spares,
            without=without,
            leaving=leaving,
            suspects=_suspects(job, again),
            np=job.plan.whole_np or job.np,
            min_np=job.fewest_np,
            replacing=self._replacing,
        )
        for notice in chosen.notices:
            self._telling.notice(notice)
        if chosen.all_leave:
            raise NotHealed(f"{chosen}: {RESUME_ON_NEW_HOSTS}")
        if not chosen.hosts:
            raise _NotYet(str(chosen))
        job = job.planned(whole_hosts=chosen.seats, spares=chosen.spares)
        job = planned_on_master(job, self._paths, chosen.hosts, chosen.np, attempt)
        return job, chosen

    @property
    def _own(self) -> set[str]:
        return {h.address for h in self._job.all_hosts}

    def _claim(self, job: Job, chosen: Placement) -> Job:
        """Claim the attempt's hosts, and release the replaced ones that still answer. Return it with its slots.

        Raises HostsTaken.
        """
        self.may_have_taken |= {h.address: h for h in job.hosts}
        job = claim_hosts(job, self._paths.folder, kept=self._own)
        gone = {a for a, unfit in chosen.replaced.items() if unfit.is_silent} | chosen.successors.keys()
        others = {a: h for a, h in self.may_have_taken.items() if a not in {h.address for h in job.all_hosts}}
        release([h for a, h in others.items() if a not in gone], job.id)
        return job

    def _announce(self, job: Job) -> None:
        """Write the planned attempt to the job's folder. Raises OSError."""
        self._paths.rank_logs(job.attempt).mkdir(parents=True, exist_ok=True)
        write_hostfiles(job, self._paths)
        write_job(self._paths, job)

    def _taken_back(self, again: Retry, out: Mapping[str, str]) -> Retry:
        """Return the terms without the exclusion of a host: no other host can be had, so it is checked and used."""
        self._say(f"{again.without} {out[again.without]}, but no other host can be had: it is looked at and used")
        return dataclasses.replace(again, suspect=again.without, without="")

    def _await_shared_folder(self) -> None:
        while trouble := self._patience.wait_for(lambda: trouble_here(self._folder, self._paths)):
            self._wait(f"{self._paths.folder} cannot be written: {trouble}")

    def _wait(self, what: str, news: int | None = None) -> None:
        """Print once what the job waits for, and let a few seconds pass. Raises NotHealed if it has waited too long.

        news: counter of changes to the stack's hosts, as read before. The wait ends once the counter differs.
        """
        if time.monotonic() > self._deadline:
            raise NotHealed(f"for {LONGEST_WAIT_S / 60:g} minutes it waited: {what}")
        if what != self._said:
            self._said = what
            self._say(f"waits: {what}")
            self._telling.waits_to_heal(what)
        until = time.monotonic() + _LOOK_S
        while news in (None, self._replacing.news) and time.monotonic() < until:
            self._pause(_NEWS_S)

    def _pause(self, seconds: float) -> None:
        if seconds > 0:
            self._patience.sleep(seconds)
            self._waited_s += seconds


def _suspects(job: Job, again: Retry) -> set[str]:
    """Return the addresses of the hosts to check. After the queue these are all hosts, since none has been checked."""
    if again.is_turn and not job.spec.unchecked:
        return {h.address for h in job.hosts}
    return {again.suspect} - {""}

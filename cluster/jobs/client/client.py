"""Client for jobs on the operator's machine. The master runs each verb and answers with JSON."""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.client.first_plan import check_flags, first_plan, versions_of
from cluster.jobs.client.on_master import CHANGE_S, COPY_S, ConnectionBroken, MasterConnection
from cluster.jobs.log_connection import print_log
from cluster.jobs.log_filter import EVERY_LINE, LineFilter
from cluster.jobs.master.lost_jobs import LostJob
from cluster.jobs.occupancy import HoldingJob
from cluster.jobs.plan import launched, require_shared
from cluster.jobs.record import Job, JobPaths, JobView, jobs_folder, new_id, now
from cluster.jobs.spec import JobSpec
from cluster.launch.facts import HostFacts, survey
from cluster.launch.mpirun import Launch, hosts_for, plan_launch
from cluster.packages.interpreter import Interpreter
from cluster.ssh.fanout import Executor, Interrupted
from cluster.ssh.limits import OnOutput
from cluster.ssh.result import Result
from cluster.terminal import pass_on
from cluster.typed import from_json

if TYPE_CHECKING:
    from cluster.jobs.curves.metrics import Measured
    from cluster.jobs.master.facts import JobFacts

_SUBMIT_AGAIN_S = (1.0, 3.0, 9.0)  # pauses before a submission is sent again


@dataclass(frozen=True, kw_only=True)
class JobListing:
    """List of all jobs that the master could read, oldest first, with the records it could not read."""

    jobs: tuple[JobView, ...]
    damaged: tuple[str, ...]  # a sentence for each damaged record
    damaged_ids: tuple[str, ...]
    over_ids: tuple[str, ...] = ()  # jobs that have ended, if they were left out
    holders: tuple[HoldingJob, ...] = ()  # jobs that hold hosts, or may hold some
    unsure_ids: tuple[str, ...] = ()  # lost jobs whose supervisor may still live on another machine
    left_out: Mapping[str, str]  # hosts that failed too often: address to reason


class JobsClient:
    """Jobs of one cluster, reached through its master."""

    def __init__(self, reach: Executor, cluster: Cluster, user: str = "") -> None:
        """user: run verbs on the master as this user, which only root may set. "" is the SSH connection's user."""
        self._reach, self._cluster = reach, cluster
        self._master = MasterConnection(reach, cluster, user)

    def plan(
        self,
        spec: JobSpec,
        *,
        resume: JobView | None = None,
        job_id: str = "",
        interpreter: Interpreter | None = None,
    ) -> Job:
        """Plan a job by the operator's request: probe the hosts and check the flags, but start nothing.

        resume: an ended job; the plan is its next attempt.
        job_id: the id of a new job that has one already.
        interpreter: the environment of a program that has its own, once it is installed.

        Raises ConfigError if the job cannot run as requested, ClusterError if a host cannot be probed.
        """
        used = hosts_for(spec.hosts, spec.np)
        spec.check(spec.np or sum(h.slots for h in used))
        before = resume or (self._to_begin_from(spec.begins_from) if spec.begins_from else None)
        if before and not resume:
            spec = dataclasses.replace(spec, begins_from=before.id)
        launch, facts = self._probe(spec, used)
        attempt = before.status.attempt + 1 if before else 1  # the newest checkpoint is that of the highest attempt
        job_id = resume.id if resume else job_id or new_id(spec.name)
        paths = JobPaths(jobs_folder(self._cluster.shared) / job_id)
        versions = versions_of(spec, facts, interpreter, self._master.run)
        plan = first_plan(spec, self._cluster, launch, paths, versions, interpreter)
        job = launched(Job(id=job_id, created=now(), spec=spec, plan=plan), launch, paths, attempt)
        return job.planned(steps=check_flags(job, self._cluster.project, self._master.run))

    def _probe(self, spec: JobSpec, used: Sequence[Host]) -> tuple[Launch, HostFacts]:
        """Probe the hosts. Return how the ranks are started, and what is known of the first rank's host."""
        master = self._cluster.master
        asked = {h.address: h for h in (master, *used)}  # a training may use fewer slots of a host than it has
        results, found = survey(self._reach, self._cluster, tuple(asked.values()))
        results.check()
        require_shared(self._cluster, found)
        if not self._cluster.is_shared and used[0].rank != master.rank:
            remedy = "add 0 to --hosts" if master.trains else "give it slots, or share a folder"
            raise ConfigError(f"no folder is shared: the first rank, which saves, runs on the master; {remedy}")
        facts = {h: found[asked[h.address]] for h in (master, *used)}
        launch = plan_launch(
            spec.hosts, facts, np=spec.np, profile=spec.profile, environment=spec.environment, master=master
        )
        return launch, facts[used[0]]

    def _to_begin_from(self, which: str) -> JobView:
        """Return the job from whose checkpoints a new one begins.

        Raises ConfigError unless it has ended and is this user's.
        """
        found = self.show(which)
        if not found.state.may_resume:
            raise ConfigError(f"--resume: {found.id} is {found.state}: 'inv jobs.stop {found.id}' first")
        if not found.is_own:
            raise ConfigError(f"--resume: {found.id} is {found.owner}'s job: give one of your own")
        return found

    def submit(self, job: Job) -> str:
        """Start the job and return its folder. Raises ConfigError if its hosts are taken.

        If the connection breaks, submits again, unless the master already has the job.
        """
        words, broken = json.dumps(dataclasses.asdict(job)).encode(), 0
        limit_s = COPY_S if job.spec.begins_from else CHANGE_S
        while True:
            try:
                return str(self._master.call("submit", stdin=words, total_s=limit_s)["folder"])
            except ConnectionBroken:
                broken += 1
                if broken > len(_SUBMIT_AGAIN_S):
                    raise
            except ConfigError:
                if broken and (folder := self._folder_of(job)):
                    return folder
                raise
            time.sleep(_SUBMIT_AGAIN_S[broken - 1])
            with contextlib.suppress(ClusterError):  # the master is not reached yet, or the job is not there
                if folder := self._folder_of(job):
                    return folder

    def _folder_of(self, job: Job) -> str:
        """Return the folder of the job with this id if it came from this submission, else ""."""
        found = self.show(job.id)
        return found.folder if found.job.created == job.created else ""

    def list(self, *, going: bool = False) -> JobListing:
        """Return every job on record.

        going: only those that have not ended, with the others' ids; a master of an older version returns them all.
        """
        listed = self._master.call("list", stdin=json.dumps({"going": going}).encode())
        jobs = tuple(from_json(JobView, one) for one in listed["jobs"])
        return JobListing(
            jobs=jobs,
            over_ids=tuple(listed.get("over_ids", ())),
            damaged=tuple(listed["damaged"]),
            damaged_ids=tuple(listed["damaged_ids"]),
            holders=tuple(from_json(HoldingJob, one) for one in listed["holders"]),
            unsure_ids=tuple(listed["unsure_ids"]),
            left_out=listed["left_out"],
        )

    def show(self, which: str) -> JobView:
        """Return one job."""
        return from_json(JobView, self._master.call("show", which))

    def to_change(self, which: str, what: str, *, yes: bool) -> "tuple[JobsClient, JobView]":
        """Return a job to be changed, and a client that acts as its owner.

        yes: root on the master may change another user's job, acting as that user. Raises ConfigError for another
        user's job otherwise.
        """
        found = self.show(which)
        if found.is_own:
            return self, found
        if not yes:
            raise ConfigError(
                f"{found.id} is {found.owner}'s job: only {found.owner} can {what} it, or root on the master with --yes"
            )
        return JobsClient(self._reach, self._cluster, found.owner), found

    def curves(self, which: str) -> "tuple[JobView, Measured]":
        """Return one job and its metrics over its steps, reduced to the resolution of a chart."""
        from cluster.jobs.curves.metrics import Measured

        said = self._master.call("curves", which, total_s=CHANGE_S)
        return from_json(JobView, said["view"]), from_json(Measured, said["measured"])

    def priced(self, found: Sequence[JobView]) -> tuple[JobView, ...]:
        """Return these jobs with their cost so far, if their cluster is a stack and its prices can be queried."""
        from cluster.jobs.cost import Bill, priced

        def of_master(stack: str) -> Bill | None:
            with contextlib.suppress(ClusterError, ValueError):  # a missing price does not fail the list
                said = self._master.call("bill", stack)
                return from_json(Bill, said) if said else None
            return None

        return priced(found, of_master)

    def facts(self, which: Sequence[str]) -> "tuple[JobFacts, ...]":
        """Return the data of each job's page."""
        from cluster.jobs.master.facts import JobFacts

        return tuple(from_json(JobFacts, one) for one in self._master.call("facts", *which, total_s=CHANGE_S))

    def send_results(self, which: str) -> JobView:
        """Send the job's results to S3 again and return the job.

        Raises ConfigError if its cluster file has no destination. The call has no time limit here: the master ends the
        transfer if S3 does not answer.
        """
        return from_json(JobView, self._master.call("results", which, total_s=None))

    def stop(self, which: str) -> JobView:
        """End the job on every host and return its final view. Raises NothingToDo if it has ended."""
        return from_json(JobView, self._master.call("stop", which, total_s=CHANGE_S))

    def heal(self, *, dry_run: bool) -> tuple[LostJob, ...]:
        """Resume this user's lost jobs that allow it. Return the result for each."""
        said = self._master.call("heal", *(["--dry-run"] if dry_run else []), total_s=CHANGE_S)
        return tuple(from_json(LostJob, one) for one in said)

    def remove(self, which: str) -> tuple[str, tuple[str, ...]]:
        """Remove the job's folder and its data on its hosts. Return its id and a line for each host not cleaned up.

        Raises ConfigError while the job is active.
        """
        said = self._master.call("remove", which, total_s=COPY_S)
        return str(said["removed"]), tuple(said["left"])

    def logs(
        self,
        which: str,
        *,
        follow: bool = False,
        rank: int | None = None,
        since_s: float | None = None,
        attempt: int | None = None,
        last: int | None = None,
        choice: LineFilter = EVERY_LINE,
        on_interrupt: str | None = None,
        on_output: OnOutput = pass_on,
    ) -> int:
        """Print a job's log and return the exit code for how the job ended. Ctrl-C ends the printing, not the job.

        If the connection breaks while following, reconnects and continues where the log stopped.
        since_s: only the output of the last so many seconds, by any attempt.
        attempt, last: only this attempt, and only its last so many lines.
        on_interrupt: the message after Ctrl-C, for a caller that ends the job then.
        on_output: receives the output. By default stdout and stderr are passed on.
        """
        choice.check()
        wanted = {"--rank": rank, "--since": since_s, "--attempt": attempt, "--last": last}
        options = (
            *(["--follow"] if follow else []),
            *(["--errors"] if choice.errors else []),
            *([f"--grep={choice.grep}"] if choice.grep else []),
            *(word for name, value in wanted.items() if value is not None for word in (name, str(value))),
        )

        def command(job: str, more: Sequence[str]) -> str:
            return self._master.words("logs", job or which, *options, *more)

        try:
            result = print_log(self._reach, self._cluster.master, command, on_output)
        except (Interrupted, KeyboardInterrupt):
            print(
                on_interrupt
                or f"\ndetached; the job goes on. Its log: inv jobs.logs -f {which}   Its end: inv jobs.stop {which}",
                file=sys.stderr,
            )
            return 0
        if result.exit_code is None:
            raise ClusterError(
                f"lost sight of {which}: {self._cluster.master}: {result.error}\n"
                "it goes on if the master does, and is lost if the master went down; look again with: "
                f"inv jobs.logs -f {which}"
            )
        return result.exit_code

    def on_master(self, module: str, arguments: Sequence[str], on_output: OnOutput | None = None) -> Result:
        """Run one of the project's modules on the master."""
        command = self._master.module(module, arguments)
        return self._reach.run([self._cluster.master], command, on_output=on_output)[self._cluster.master]


def queued(job: Job) -> Job:
    """Return the planned job as a queued one. It waits for its turn and then uses any free hosts that it may have.

    Where no folder is shared it waits for the planned ones: its first rank has to be on the master.
    """
    planned = {h.address for h in job.hosts}
    wanted = tuple(h for h in job.spec.hosts if job.plan.is_shared or h.address in planned)
    waiting = job.planned(hosts=(), whole_hosts=(), mpirun=())
    return dataclasses.replace(waiting, spec=dataclasses.replace(job.spec, queue=True, hosts=wanted))


@contextlib.contextmanager
def opened(cluster: Cluster) -> Iterator[JobsClient]:
    """Yield the cluster's jobs. The connections are closed on exit."""
    with Executor(cluster) as reach:
        yield JobsClient(reach, cluster)

"""Client for jobs on the operator's machine. The master runs each verb and answers with JSON."""

import contextlib
import dataclasses
import json
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cluster.errors import ClusterError, ConfigError, NothingToDo
from cluster.inventory import ROOT, Cluster
from cluster.jobs.log_connection import print_log
from cluster.jobs.log_filter import EVERY_LINE, Choice
from cluster.jobs.master.lost_jobs import Lost
from cluster.jobs.occupancy import Holder
from cluster.jobs.plan import launched, require_shared
from cluster.jobs.program import Program
from cluster.jobs.record import Job, JobPaths, JobView, jobs_folder, new_id, now
from cluster.jobs.training import Training
from cluster.launch.facts import HostFacts, survey
from cluster.launch.mpirun import Launch, hosts_for, plan_launch
from cluster.ssh.fanout import Interrupted, Reach
from cluster.ssh.limits import Limits, OnOutput
from cluster.ssh.noise_filter import complaint, marked, said, trouble
from cluster.ssh.program import NoAnswer, answer_of
from cluster.ssh.result import Result
from cluster.terminal import pass_on
from cluster.typed import from_json

if TYPE_CHECKING:
    from cluster.jobs.curves.metrics import Measured
    from cluster.jobs.master.facts import JobFacts

ANSWER_S = 30.0  # limit for a verb that only reads
CHANGE_S = 200.0  # limit for a verb that waits for a lock, or for a training to save and leave
COPY_S = 3 * 3600.0  # limit for a verb that copies or removes checkpoints, as long as the file server takes
_SUBMIT_AGAIN_S = (1.0, 3.0, 9.0)  # pauses before a submission is sent again
_VERSIONS_S = 20.0  # it may have to start a container
_VERSIONS = ROOT / "cluster/packages/onhost/versions.py"
# Trainers whose --check supports --json.
_PLAN_AS_JSON = ("trainer.resnet50", "trainer.resnet50_torch", "trainer.maskrcnn")


@dataclass(frozen=True, kw_only=True)
class Listing:
    """List of all jobs that the master could read, oldest first, with the records it could not read."""

    jobs: tuple[JobView, ...]
    damaged: tuple[str, ...]  # a sentence for each damaged record
    damaged_ids: tuple[str, ...]
    over_ids: tuple[str, ...] = ()  # jobs that have ended, if they were left out
    holders: tuple[Holder, ...] = ()  # jobs that hold hosts, or may hold some
    unsure_ids: tuple[str, ...] = ()  # lost jobs whose supervisor may still live on another machine
    left_out: Mapping[str, str]  # hosts that failed too often: address to reason


class ConnectionBroken(ClusterError):
    """Error: the connection to the master broke, so its command may or may not have run."""


class Jobs:
    """Jobs of one cluster, reached through its master."""

    def __init__(self, reach: Reach, cluster: Cluster, user: str = "") -> None:
        """user: run verbs on the master as this user, which only root may set. "" is the SSH connection's user."""
        self._reach, self._cluster, self._user = reach, cluster, user

    def plan(self, training: Training, *, resume: JobView | None = None, job_id: str = "") -> Job:
        """Plan a job for this training: probe the hosts and check the flags, but start nothing.

        resume: an ended job; the plan is its next attempt.
        job_id: the id of a new job that has one already.

        Raises ConfigError if the training cannot run as asked, ClusterError if a host cannot be probed.
        """
        used = hosts_for(training.hosts, training.np)
        training.terms.check(training.np or sum(h.slots for h in used))
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
            training.hosts,
            facts,
            np=training.np,
            profile=training.profile,
            environment=training.environment,
            master=master,
        )
        before = resume or (self._to_begin_from(training.begins_from) if training.begins_from else None)
        attempt = before.status.attempt + 1 if before else 1  # the newest checkpoint is that of the highest attempt
        job_id = resume.id if resume else job_id or new_id(training.name)
        job = self._job(training, launch, facts[used[0]], job_id, attempt)
        if before and not resume:
            job = dataclasses.replace(job, begins_from=before.id)
        return dataclasses.replace(job, steps=self._check_arguments(training, job))

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
        limit_s = COPY_S if job.begins_from else CHANGE_S
        while True:
            try:
                return str(self._call("submit", stdin=words, total_s=limit_s)["folder"])
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

    def list(self, *, going: bool = False) -> Listing:
        """Return every job on record.

        going: only those that have not ended, with the others' ids; a master of an older version returns them all.
        """
        listed = self._call("list", stdin=json.dumps({"going": going}).encode())
        jobs = tuple(JobView.from_json(one) for one in listed["jobs"])
        return Listing(
            jobs=jobs,
            over_ids=tuple(listed.get("over_ids", ())),
            damaged=tuple(listed["damaged"]),
            damaged_ids=tuple(listed["damaged_ids"]),
            holders=tuple(from_json(Holder, one) for one in listed["holders"]),
            unsure_ids=tuple(listed["unsure_ids"]),
            left_out=listed["left_out"],
        )

    def show(self, which: str) -> JobView:
        """Return one job."""
        return JobView.from_json(self._call("show", which))

    def to_change(self, which: str, what: str, *, yes: bool) -> "tuple[Jobs, JobView]":
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
        return Jobs(self._reach, self._cluster, found.owner), found

    def curves(self, which: str) -> "tuple[JobView, Measured]":
        """Return one job and its metrics over its steps, reduced to the resolution of a chart."""
        from cluster.jobs.curves.metrics import Measured

        said = self._call("curves", which, total_s=CHANGE_S)
        return JobView.from_json(said["view"]), from_json(Measured, said["measured"])

    def priced(self, found: Sequence[JobView]) -> tuple[JobView, ...]:
        """Return these jobs with their cost so far, if their cluster is a stack and its prices can be queried."""
        from cluster.jobs.cost import Bill, priced

        def of_master(stack: str) -> Bill | None:
            with contextlib.suppress(ClusterError, ValueError):  # a missing price does not fail the list
                said = self._call("bill", stack)
                return from_json(Bill, said) if said else None
            return None

        return priced(found, of_master)

    def facts(self, which: Sequence[str]) -> "tuple[JobFacts, ...]":
        """Return the data of each job's page."""
        from cluster.jobs.master.facts import JobFacts

        return tuple(JobFacts.from_json(one) for one in self._call("facts", *which, total_s=CHANGE_S))

    def send_results(self, which: str) -> JobView:
        """Send the job's results to S3 again and return the job.

        Raises ConfigError if its cluster file has no destination. The call has no time limit here: the master ends the
        transfer if S3 does not answer.
        """
        return JobView.from_json(self._call("results", which, total_s=None))

    def stop(self, which: str) -> JobView:
        """End the job on every host and return its final view. Raises NothingToDo if it has ended."""
        return JobView.from_json(self._call("stop", which, total_s=CHANGE_S))

    def heal(self, *, dry_run: bool) -> tuple[Lost, ...]:
        """Resume this user's lost jobs that allow it. Return the result for each."""
        said = self._call("heal", *(["--dry-run"] if dry_run else []), total_s=CHANGE_S)
        return tuple(from_json(Lost, one) for one in said)

    def remove(self, which: str) -> tuple[str, tuple[str, ...]]:
        """Remove the job's folder and its data on its hosts. Return its id and a line for each host not cleaned up.

        Raises ConfigError while the job is active.
        """
        said = self._call("remove", which, total_s=COPY_S)
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
        choice: Choice = EVERY_LINE,
        on_interrupt: str | None = None,
        on_output: OnOutput = pass_on,
    ) -> int:
        """Print a job's log and return an exit code that says how the job ended. Ctrl-C ends the printing, not the job.

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
            return self._words("logs", job or which, *options, *more)

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
        return self._reach.run([self._cluster.master], self._module(module, arguments), on_output=on_output)[
            self._cluster.master
        ]

    def _job(self, training: Training, launch: Launch, first: HostFacts, job_id: str, attempt: int) -> Job:
        paths = JobPaths(jobs_folder(self._cluster.shared) / job_id)
        program = training.what if isinstance(training.what, Program) else None
        used = {h.address for h in launch.hosts}
        # In a stack a spare takes a dead host's rank permanently. A host with a rank of its own must not do so.
        idle = () if self._cluster.stack else (*training.hosts, *training.idle)
        spares = tuple(h for h in self._cluster.hosts if (h.is_spare or h in idle) and h.address not in used)
        job = Job(
            id=job_id,
            name=training.name,
            command=training.what.command(self._cluster.python, str(paths.folder)),
            mpirun=(),
            np=launch.np,
            hosts=launch.hosts,
            whole_np=launch.np,
            whole_hosts=launch.hosts,
            starter="" if self._cluster.master in launch.hosts else self._cluster.master.address,
            stack=self._cluster.stack,
            is_shared=self._cluster.is_shared,
            spares=() if program and program.per == "once" else spares,
            profile=launch.profile.name,
            asked_profile=training.profile,
            environment=dict(training.environment),
            revision="",
            created=now(),
            notify=self._cluster.notify,
            results=self._cluster.results,
            versions=self._versions(training, first),
            heal=training.terms.heal,
            min_np=training.terms.min_np,
            attempts_per_hour=training.terms.attempts_per_hour,
            hang_after=training.hang_after,
            program=program is not None,
            per=program.per if program else "gpu",
            python=self._cluster.python,
            slots=training.slots or {h.address: h.slots for h in self._cluster.hosts},
            exclusive=training.exclusive or (program is not None and program.per != "gpu"),
            code=training.code,
            below=training.below,
            own_disk=training.own_disk,
            workdir=training.workdir,
            packages=training.packages,
            prefix=training.prefix,
            variables=training.variables,
        )
        return launched(job, launch, paths, attempt)

    def _versions(self, training: Training, first: HostFacts) -> dict[str, str]:
        """Return the versions of the software that the ranks will run with.

        They come from the first rank's host, or from the master if the training has its own environment. If that
        environment does not report any, returns only Open MPI's.
        """
        mpi = {"open mpi": first.mpirun_version or ""}
        python = "" if isinstance(training.what, Program) else training.what.python
        if not (training.packages or python):
            return {"python": first.python, **mpi, **first.packages}
        if not (python or training.prefix or training.variables):
            return mpi  # the environment is not installed yet
        own = dict(training.variables)
        path = [f'export PATH={shlex.quote(own.pop("PATH"))}:"$PATH";'] if "PATH" in own else []
        words = [*training.prefix, python or "python", "-c", _VERSIONS.read_text()]
        told = [f"{name}={value}" for name, value in own.items()]
        command = " ".join([*path, "exec", shlex.join(["env", *told, *words])])
        with contextlib.suppress(ValueError, AttributeError):
            return {**json.loads(said(self._on_master(command, b"", Limits(total_s=_VERSIONS_S))) or ""), **mpi}
        return mpi

    def _check_arguments(self, training: Training, job: Job) -> int | None:
        """Run the trainer's `--check` of its flags and data on the master, before mpirun starts anything.

        Returns its number of steps, if it reports one.
        """
        if isinstance(training.what, Program):
            return None
        words = [*job.command, "--check", "--ranks", str(job.np)]
        words += ["--json"] if training.what.module in _PLAN_AS_JSON else []
        project = shlex.quote(self._cluster.project)
        result = self._on_master(f"cd {project} && exec {shlex.join(words)}", b"", Limits(total_s=60))
        if result.exit_code in (126, 127) and training.what.python:
            raise ConfigError(
                f"{training.what.python} cannot be started on the master ({result.host}): name an interpreter with "
                "PyTorch that every host has, with --python"
            )
        if lacking := re.search(rb"ModuleNotFoundError: No module named '([\w.]+)'", result.stderr):
            raise ConfigError(
                f"the environment of the master ({result.host}) has no {lacking[1].decode()}, which this trainer "
                "needs: 'inv setup' installs it; for a lab, install it beside this command: "
                "pip install 'dlami-cluster[train]'"
            )
        if not result.ok:
            raise _error(result)
        with contextlib.suppress(ValueError, KeyError, TypeError):
            plan = said(result) or ""
            return int(json.loads(plan[plan.index("{") :])["steps"])
        return None

    def _call(self, *words: str, stdin: bytes = b"", total_s: float | None = ANSWER_S) -> Any:
        """Run one verb on the master and return its answer."""
        result = self._on_master(self._words(*words), stdin, Limits(total_s=total_s))
        if not result.ok:
            raise _error(result)
        try:
            return answer_of(result)
        except NoAnswer as e:
            raise ClusterError(f"the master ({result.host}): {e}; look again with: inv jobs.list") from e

    def _words(self, *words: str) -> str:
        return self._module("cluster.jobs", ["--shared", self._cluster.shared, *words])

    def _module(self, module: str, arguments: Sequence[str]) -> str:
        words = shlex.join([self._cluster.python, "-m", module, *arguments])
        return f"cd {shlex.quote(self._cluster.project)} && exec {words}"

    def _on_master(self, command: str, stdin: bytes, limits: Limits) -> Result:
        words = marked(command)
        if self._user:
            words = shlex.join(["runuser", "-l", self._user, "-s", "/bin/bash", "-c", words])
        return self._reach.run([self._cluster.master], words, stdin=stdin, limits=limits)[self._cluster.master]


def queued(job: Job, training: Training, *, unchecked: bool) -> Job:
    """Return the planned job as a queued one. It waits for its turn and then uses any free hosts of the training.

    Where no folder is shared it waits for the planned ones: its first rank has to be on the master.
    """
    planned = {h.address for h in job.hosts}
    wanted = tuple(h for h in training.hosts if job.is_shared or h.address in planned)
    return dataclasses.replace(job, hosts=(), whole_hosts=(), mpirun=(), wanted=wanted, unchecked=unchecked)


@contextlib.contextmanager
def opened(cluster: Cluster) -> Iterator[Jobs]:
    """Yield the cluster's jobs. The connections are closed on exit."""
    with Reach(cluster) as reach:
        yield Jobs(reach, cluster)


def _error(result: Result) -> ClusterError:
    """Return the master's error as an exception here, with its text and type."""
    why = complaint(result)
    if result.exit_code is None:
        return ConnectionBroken(f"the master ({result.host}) could not do it: {result.error or why or trouble(result)}")
    if result.exit_code == 3:
        return NothingToDo(why)
    if result.exit_code == 2:
        return ConfigError(why)
    if result.exit_code == 1 and why and "Traceback" not in why:
        return ClusterError(why)
    return ClusterError(f"the master ({result.host}) could not do it: {result.error or why or trouble(result)}")

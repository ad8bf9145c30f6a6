"""Jobs from the operator's seat, wherever that is: every verb is done on the master and answered as JSON."""

import contextlib
import dataclasses
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster import hostset
from cluster.errors import ClusterError, ConfigError, NothingToDo
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.record import Job, JobPaths, JobView, jobs_folder, new_id, now
from cluster.launch.facts import HostFacts, survey
from cluster.launch.mpirun import JobTags, Launch, command_line, hosts_for, plan_launch
from cluster.ssh.fanout import Interrupted, Reach
from cluster.ssh.limits import Limits, OnOutput
from cluster.ssh.program import NoAnswer, answer_of
from cluster.ssh.result import Result
from cluster.terminal import pass_on

ANSWER_S = 30.0  # the longest that a verb which only reads may take
CHANGE_S = 200.0  # one that waits for another's turn, or for a training to save and leave
_PLAN_AS_JSON = ("trainer.resnet50", "trainer.maskrcnn")  # their --check knows --json


@dataclass(frozen=True, kw_only=True)
class Training:
    """What the operator asks for."""

    name: str  # the job's name
    module: str  # the trainer, run as `python -m module`
    arguments: tuple[str, ...]  # its own flags
    hosts: tuple[Host, ...]
    np: int | None = None  # ranks; one per slot without it
    profile: str | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Every job that the master could read, oldest first, and what it could not."""

    jobs: tuple[JobView, ...]
    damaged: tuple[str, ...]  # a sentence for each record that is damaged
    damaged_ids: tuple[str, ...]


class Jobs:
    """The jobs of one cluster."""

    def __init__(self, reach: Reach, cluster: Cluster) -> None:
        self._reach, self._cluster = reach, cluster

    def plan(self, training: Training, *, resume: JobView | None = None) -> Job:
        """The job that this training would be: hosts looked at, flags checked, nothing started.

        resume: a job that has ended; the plan is its next attempt. Raises ConfigError, ClusterError.
        """
        used = hosts_for(training.hosts, training.np)
        results, facts = survey(self._reach, self._cluster, tuple(dict.fromkeys((self._cluster.master, *used))))
        results.check()
        _check_shared(self._cluster, facts)
        launch = plan_launch(
            training.hosts, facts, np=training.np, profile=training.profile, environment=training.environment
        )
        job_id, attempt = (resume.id, resume.status.attempt + 1) if resume else (new_id(training.name), 1)
        job = self._job(training, launch, facts[self._cluster.master], job_id, attempt)
        return dataclasses.replace(job, steps=self._check_arguments(training, job))

    def submit(self, job: Job) -> str:
        """Start it; its folder. Raises ConfigError if its hosts are taken."""
        words = json.dumps(dataclasses.asdict(job)).encode()
        return str(self._call("submit", stdin=words, total_s=CHANGE_S)["folder"])

    def list(self) -> Listing:
        """Every job on record."""
        said = self._call("list")
        jobs = tuple(JobView.from_json(one) for one in said["jobs"])
        return Listing(jobs=jobs, damaged=tuple(said["damaged"]), damaged_ids=tuple(said["damaged_ids"]))

    def show(self, which: str) -> JobView:
        """One job."""
        return JobView.from_json(self._call("show", which))

    def stop(self, which: str) -> JobView:
        """End it on every host; how it was left. Raises NothingToDo if it has ended."""
        return JobView.from_json(self._call("stop", which, total_s=CHANGE_S))

    def remove(self, which: str) -> str:
        """Remove its folder; its id. Raises ConfigError while it is active."""
        return str(self._call("remove", which, total_s=CHANGE_S)["removed"])

    def logs(
        self, which: str, *, follow: bool = False, rank: int | None = None, on_interrupt: str | None = None
    ) -> int:
        """Print a job's log here; its exit code says how the job ended. Ctrl-C ends the printing, not the job.

        on_interrupt: what is said after Ctrl-C by a caller who does not let the job go on.
        """
        words = self._words(
            "logs", which, *(["--follow"] if follow else []), *(["--rank", str(rank)] if rank is not None else [])
        )

        try:
            result = self._reach.run([self._cluster.master], words, on_output=pass_on)[self._cluster.master]
        except Interrupted:
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

    def _job(self, training: Training, launch: Launch, master: HostFacts, job_id: str, attempt: int) -> Job:
        paths = JobPaths(jobs_folder(self._cluster.shared) / job_id)
        command = (self._cluster.python, "-m", training.module, "--job-dir", str(paths.folder), *training.arguments)
        mpirun = command_line(
            launch,
            command,
            hostfile=str(paths.hostfile),
            workdir=str(paths.code),
            output=str(paths.rank_logs(attempt)),
            job=JobTags(id=job_id, folder=str(paths.folder), attempt=attempt),
        )
        return Job(
            id=job_id,
            name=training.name,
            command=command,
            mpirun=tuple(mpirun),
            np=launch.np,
            hosts=launch.hosts,
            profile=launch.profile.name,
            environment=dict(training.environment),
            revision="",
            created=now(),
            attempt=attempt,
            versions={"python": master.python, "open mpi": master.mpirun_version or "", **master.packages},
        )

    def _check_arguments(self, training: Training, job: Job) -> int | None:
        """Let the trainer look at its flags and data on the master, before mpirun starts anything.

        Its number of steps, if it tells.
        """
        words = [*job.command, "--check", "--ranks", str(job.np)]
        words += ["--json"] if training.module in _PLAN_AS_JSON else []
        project = shlex.quote(self._cluster.project)
        result = self._on_master(f"cd {project} && exec {shlex.join(words)}", b"", Limits(total_s=60))
        if not result.ok:
            raise _error(result)
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return int(json.loads(result.text[result.text.index("{") :])["steps"])
        return None

    def _call(self, *words: str, stdin: bytes = b"", total_s: float = ANSWER_S) -> Any:
        """The answer to one verb."""
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
        return self._reach.run([self._cluster.master], command, stdin=stdin, limits=limits)[self._cluster.master]


@contextlib.contextmanager
def opened(cluster: Cluster) -> Iterator[Jobs]:
    """The cluster's jobs, for as long as its connections are open."""
    with Reach(cluster) as reach:
        yield Jobs(reach, cluster)


def next_attempt(job: JobView, cluster: Cluster, hosts: str | None, np: int | None) -> Training:
    """The training of a job that is to go on, on today's hosts. Raises ConfigError if it goes on already."""
    if not job.state.may_resume:
        raise ConfigError(f"{job.id} is {job.state}: there is nothing to resume")
    asked = job.job
    try:
        module_at, folder_at = asked.command.index("-m") + 1, asked.command.index("--job-dir")
    except ValueError:
        raise ConfigError(f"{job.id} does not say which trainer it ran: start it anew") from None
    known = {h.address: h for h in cluster.hosts}
    before = tuple(known[h.address] for h in asked.hosts if h.address in known)
    return Training(
        name=asked.name,
        module=asked.command[module_at],
        arguments=asked.command[folder_at + 2 :],
        hosts=hostset.select(cluster.hosts, hosts) if hosts or len(before) < len(asked.hosts) else before,
        np=np or asked.np,
        profile=asked.profile,
        environment=asked.environment,
    )


def _check_shared(cluster: Cluster, facts: Mapping[Host, HostFacts]) -> None:
    bad = [f"  {host}  {cluster.shared} {f.shared}" for host, f in facts.items() if f.shared != "yes"]
    if bad:
        raise ClusterError(
            "\n".join(
                [
                    f"the shared folder does not work on {len(bad)} of {len(facts)} hosts; "
                    "jobs, checkpoints and logs are kept there:",
                    *bad,
                ]
            )
        )


def _error(result: Result) -> ClusterError:
    """The master's error as ours: its sentence, its kind."""
    said = result.stderr.decode(errors="replace").strip()
    if result.exit_code == 3:
        return NothingToDo(said)
    if result.exit_code == 2:
        return ConfigError(said)
    if result.exit_code == 1 and said and "Traceback" not in said:
        return ClusterError(said)
    return ClusterError(f"the master ({result.host}) could not do it: {result.error or said or result.problem}")

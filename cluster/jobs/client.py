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
from cluster.jobs.record import Job, JobPaths, jobs_folder, new_id, now
from cluster.launch.facts import HostFacts, survey
from cluster.launch.mpirun import Launch, command_line, hosts_for, plan_launch
from cluster.ssh.fanout import Interrupted, Reach
from cluster.ssh.limits import Limits, OnOutput
from cluster.ssh.program import NoAnswer, answer_of
from cluster.ssh.result import Result

ANSWER_S = 30  # the longest that a verb which only reads or starts may take


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


class Jobs:
    """The jobs of one cluster."""

    def __init__(self, reach: Reach, cluster: Cluster) -> None:
        self._reach, self._cluster = reach, cluster

    def plan(self, training: Training, *, resume: str | None = None) -> Job:
        """The job that this training would be: hosts looked at, flags checked, nothing started.

        resume: the id of a job that has ended; the plan is its next attempt. Raises ConfigError, ClusterError.
        """
        used = hosts_for(training.hosts, training.np)
        results, facts = survey(self._reach, self._cluster, tuple(dict.fromkeys((self._cluster.master, *used))))
        results.check()
        _check_shared(self._cluster, facts)
        launch = plan_launch(
            training.hosts, facts, np=training.np, profile=training.profile, environment=training.environment
        )
        attempt = int(self.call("show", resume)["attempt"]) + 1 if resume else 1
        job = self._job(training, launch, facts[self._cluster.master], resume or new_id(training.name), attempt)
        self._check_arguments(job)
        return job

    def submit(self, job: Job) -> dict[str, Any]:
        """Start it. Raises ConfigError if its hosts are taken."""
        answer: dict[str, Any] = self.call("submit", stdin=json.dumps(dataclasses.asdict(job)).encode())
        return answer

    def call(self, *words: str, stdin: bytes = b"", total_s: float = ANSWER_S) -> Any:
        """The answer to one verb."""
        result = self._on_master(self._words(*words), stdin, Limits(total_s=total_s))
        if not result.ok:
            raise _error(result)
        try:
            return answer_of(result)
        except NoAnswer as e:
            raise ClusterError(f"the master ({result.host}): {e}; look again with: inv jobs.list") from e

    def logs(self, which: str, *, follow: bool = False, rank: int | None = None) -> int:
        """Print a job's log here; its exit code says how the job ended. Ctrl-C ends the printing, not the job."""
        words = self._words(
            "logs", which, *(["--follow"] if follow else []), *(["--rank", str(rank)] if rank is not None else [])
        )

        def pass_on(_host: Host, stream: str, data: bytes) -> None:
            target = sys.stdout if stream == "stdout" else sys.stderr
            target.buffer.write(data)
            target.buffer.flush()

        try:
            result = self._reach.run([self._cluster.master], words, on_output=pass_on)[self._cluster.master]
        except Interrupted:
            print(
                f"\ndetached; the job goes on. Its log: inv jobs.logs -f {which}   Its end: inv jobs.stop {which}",
                file=sys.stderr,
            )
            return 0
        if result.exit_code is None:
            raise ClusterError(
                f"lost sight of {which}, which goes on: {result.error}\nlook again with: inv jobs.logs -f {which}"
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
            job=job_id,
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
            versions={"python": master.python, "open mpi": master.mpirun_version or "", **master.packages},
        )

    def _check_arguments(self, job: Job) -> None:
        """Let the trainer look at its flags and data on the master, before mpirun starts anything."""
        check = shlex.join([*job.command, "--check", "--ranks", str(job.np)])
        result = self._on_master(f"cd {shlex.quote(self._cluster.project)} && exec {check}", b"", Limits(total_s=60))
        if not result.ok:
            raise _error(result)

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


def next_attempt(jobs: Jobs, cluster: Cluster, which: str, hosts: str | None, np: int | None) -> tuple[Training, str]:
    """The training of a job that has ended, on today's hosts, and the job's id. Raises ConfigError if it goes on."""
    job = jobs.call("show", which)
    if job["state"] in ("starting", "running", "stopping"):
        raise ConfigError(f"{job['id']} is {job['state']}: there is nothing to resume")
    module_at = job["command"].index("-m") + 1
    folder_at = job["command"].index("--job-dir")
    known = {h.address: h for h in cluster.hosts}
    before = tuple(known[h["address"]] for h in job["hosts"] if h["address"] in known)
    return Training(
        name=job["name"],
        module=job["command"][module_at],
        arguments=tuple(job["command"][folder_at + 2 :]),
        hosts=hostset.select(cluster.hosts, hosts) if hosts or len(before) < len(job["hosts"]) else before,
        np=np or job["np"],
        profile=job["profile"],
        environment=job["environment"],
    ), job["id"]


def on_fit_hosts(
    cluster: Cluster, training: Training, *, skip_unfit: bool = False, may_shrink: bool = False
) -> Training:
    """The training on those of its hosts that may train, looked at now; raises Unfit as `fit_hosts` does.

    may_shrink: nobody asked for its number of ranks, so it gets by with the slots that are left.
    """
    from cluster.health.before_training import fit_hosts

    hosts = fit_hosts(cluster, training.hosts, np=training.np, skip_unfit=skip_unfit)
    slots = sum(h.slots for h in hosts)
    np = min(training.np, slots) if may_shrink and training.np else training.np
    return dataclasses.replace(training, hosts=hosts, np=np)


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

"""Program of a training's launcher pod: `python -m eks.launcher`, with the order in its environment.

The launcher is the job's master and trains nothing. It uses the same submission, supervisor and recovery as the bare
cluster, and the same job folder on the shared folder. Its output is the job's console. A restarted launcher continues
its job, whatever ended the one before.
"""

import contextlib
import dataclasses
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from cluster.errors import ClusterError, ConfigError
from cluster.files import write_atomically
from cluster.health.before_training import fit_hosts
from cluster.hosts import that_train
from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.jobs.client.client import JobsClient
from cluster.jobs.client.resume import from_scratch, next_attempt
from cluster.jobs.lock import make_folder
from cluster.jobs.master import follow
from cluster.jobs.record import JobPaths, JobStatus, jobs_folder
from cluster.jobs.record_lease import EXPIRES_S
from cluster.jobs.records import view
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status
from cluster.recovery.failure_kinds import FailureKind
from cluster.ssh.fanout import Executor
from cluster.ssh.launcher import CONFIG_VARIABLE
from eks.code import CODE_FOLDER, put_into_store
from eks.job_spec import ORDER_VARIABLE, Order
from eks.pods import await_workers, mpijob_name, write_cluster
from eks.progress import serve_progress

WORKERS_S = 900.0  # for all workers to answer; their node may still pull the image
_LEFT = 128 + signal.SIGTERM  # exit code of a launcher after SIGTERM: Kubernetes starts it again
_GOES_ON = (FailureKind.SUPERVISOR, FailureKind.MASTER, FailureKind.NOTICE)  # these end pods, not the job
_LOOK_S = 0.5


class LauncherPod:
    """Master of one job, run in this pod until the job ends."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._paths = JobPaths(jobs_folder(order.shared) / order.job)
        self._folder = self._paths.folder.parent / ".eks" / order.job  # hidden: it is no job
        self._is_told_to_leave = False
        signal.signal(signal.SIGTERM, self._leave)

    def run_to_end(self) -> int:
        """Run the job to its end. Return the pod's exit code: 0 if the training has succeeded. Raises ClusterError.

        Meanwhile it serves the job's progress on a port of its loopback, for a port-forward.
        """
        self._check_name()
        with contextlib.ExitStack() as while_it_goes:
            try:
                while_it_goes.enter_context(serve_progress(self._paths))
            except OSError as e:
                say(f"nobody can be told how far this job is: {e}")
            return self._seen_through()

    def _check_name(self) -> None:
        """Raise ConfigError if the MPIJob's name differs from the order's job: it would continue that other job."""
        job, name = self._order.job, mpijob_name()
        if name not in ("", job):
            raise ConfigError(
                f"this MPIJob is {name}, but its order ({ORDER_VARIABLE}) is that of the job {job}: 'inv eks.train.*' "
                "with --name and --dry-run prints one under another name"
            )

    def _seen_through(self) -> int:
        is_new = not self._paths.folder.exists()
        status = None if is_new else self._settled()
        if status and (code := self._final(status)) is not None:
            say(follow.ending(status, self._order.job))
            return code
        may_begin_anew = self._order.from_scratch and self._is_started_anew()
        self._keep_submission()
        if status and status.state is JobState.LOST:
            self._reached()
            self._take_up()
        else:
            self._start(self._reached(), goes_on=status is not None, may_begin_anew=may_begin_anew)
        return self._followed()

    def _reached(self) -> Cluster:
        """Wait until all workers answer. Return them as the hosts of a cluster whose master is this pod.

        Sets CONFIG_VARIABLE, so that this process and its children use the job's own SSH configuration.
        """
        order = self._order
        hosts = await_workers(WORKERS_S, lambda: self._is_told_to_leave)
        settings = {"name": order.job, "shared": order.shared, "project": str(ROOT)}
        settings |= {name: getattr(order, name) for name in ("notify", "results") if getattr(order, name)}
        os.environ[CONFIG_VARIABLE] = str(write_cluster(self._folder, hosts, settings))
        return load_cluster(str(self._folder))

    def _start(self, cluster: Cluster, *, goes_on: bool, may_begin_anew: bool) -> None:
        """Submit the job, or its next attempt, as `inv train.*` and `inv jobs.resume` do. Raises ClusterError.

        may_begin_anew: the next attempt begins at step 0 if no checkpoint can be read.
        """
        order, workers = self._order, that_train(cluster.hosts)
        if order.spec.code and not goes_on:
            put_into_store(Path(CODE_FOLDER), order.spec.code)
        spec, before = dataclasses.replace(order.spec.on(workers), exclusive=True), None  # of its pods
        if goes_on:
            before = view(self._paths)
            spec = next_attempt(before, cluster, None, order.spec.np, order.spec.given_terms)
            spec = from_scratch(spec, before.status.attempt + 1) if may_begin_anew else spec
        elif not spec.unchecked:
            fit = fit_hosts(cluster, spec.hosts, np=spec.np, skip_unfit=order.skip_unfit)
            spec = dataclasses.replace(spec, hosts=fit)
        with Executor(cluster) as reach:
            jobs = JobsClient(reach, cluster)
            jobs.submit(jobs.plan(spec, resume=before, job_id=order.job))

    def _take_up(self) -> None:
        """Adopt the job of a launcher that is gone. Raises ClusterError."""
        from cluster.jobs.master.submit import restart_lost

        say(f"the launcher before this one is gone: its job {self._order.job} is taken up")
        restart_lost(self._paths)

    def _settled(self) -> JobStatus:
        """Return the job's status once it is known that no other launcher runs it.

        Raises ClusterError if another launcher is still alive after the lease's expiry.
        """
        deadline = time.monotonic() + EXPIRES_S + 10
        while (status := read_status(self._paths)).state.is_going:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{self._order.job} is {status.state} by another launcher that lives: two cannot have one job"
                )
            time.sleep(_LOOK_S)
        return status

    def _final(self, status: JobStatus) -> int | None:
        """Return the exit code of a job that is over for good, or None if the job continues."""
        if status.state is JobState.LOST:
            return None if self._order.spec.heal or self._is_started_anew() else 1
        if status.state is JobState.SUCCEEDED:
            return 0
        if status.ended_by in _GOES_ON and self._order.spec.heal:
            return None
        return None if self._is_started_anew() else exit_code(status)

    def _is_started_anew(self) -> bool:
        """Return True if an operator has started the job again since it ended."""
        with contextlib.suppress(OSError):
            return (self._folder / "submission").read_text() != self._order.submission
        return False

    def _keep_submission(self) -> None:
        make_folder(self._paths.folder.parent)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / "submission", self._order.submission)

    def _followed(self) -> int:
        """Print the console until the job has ended, across all attempts. Return the pod's exit code."""
        if self._is_told_to_leave:
            self._pass_on()
        status = follow.console(self._paths, follow=True)
        say(follow.ending(status, self._order.job))
        return exit_code(status)

    def _leave(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGTERM: stop the job by its supervisor, so that the ranks save and leave.

        This process ends with the job.
        """
        self._is_told_to_leave = True
        self._pass_on()

    def _pass_on(self) -> None:
        with contextlib.suppress(ClusterError, OSError):
            supervisor = read_status(self._paths).supervisor
            if supervisor and supervisor.is_alive:
                os.kill(supervisor.pid, signal.SIGTERM)


def exit_code(status: JobStatus) -> int:
    """Return the exit code of a pod whose job has ended so: 0 if Kubernetes should not start it again."""
    if status.state is JobState.SUCCEEDED or status.ended_by is FailureKind.STOPPED:
        return 0
    return _LEFT if status.ended_by in _GOES_ON else 1


def say(text: str) -> None:
    """Print a line of our own to the pod's log."""
    print(f"dlami: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the order in this pod's environment. Return the exit code."""
    try:
        if ORDER_VARIABLE not in os.environ:
            raise ConfigError(f"{ORDER_VARIABLE} is not set: this is what the launcher of 'inv eks.train.*' runs")
        return LauncherPod(Order.from_json(os.environ[ORDER_VARIABLE])).run_to_end()
    except ClusterError as e:
        say(str(e))
        return e.exit_code or 1
    except OSError as e:
        say(f"{e.filename or 'the shared folder'}: {e.strerror}: the Job that 'inv eks.render' writes makes it ours")
        return 1


if __name__ == "__main__":
    sys.exit(main())

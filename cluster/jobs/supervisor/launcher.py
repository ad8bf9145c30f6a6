"""mpirun as a child process of the supervisor: started over open SSH connections, asked to leave, killed."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from cluster.folder_thread import FolderThread
from cluster.jobs.cleanup import cluster_of_job, stopped_processes
from cluster.jobs.process import is_stopped
from cluster.jobs.record import ATTEMPT_TAG, FOLDER_TAG, JOB_TAG, Job, JobPaths
from cluster.jobs.supervisor.no_shared_fs import NotStarted, give_to_hosts
from cluster.recovery.liveness import Presence
from cluster.ssh.fanout import Executor
from cluster.ssh.options import agent_command, way_to
from cluster.steady_time import steady_now

STOP_GRACE_S = 30.0  # time for the trainer to save and leave
_STUCK_S = 2.0  # then check for stopped ranks, which never leave


class Mpirun:
    """mpirun process of an attempt. Its output goes to the attempt's console. Raises NotStarted if it cannot start."""

    def __init__(self, job: Job, paths: JobPaths, folder: FolderThread) -> None:
        self._job, self._is_given_up = job, False
        give_to_hosts(job, paths)
        tags = {JOB_TAG: job.id, FOLDER_TAG: str(paths.folder), ATTEMPT_TAG: str(job.attempt)}
        environment = {**_open_connections(job), **os.environ, **tags}
        try:
            self._process = folder.do(lambda: self._started(paths, environment))
        except OSError as e:
            self._is_given_up = True
            raise NotStarted(f"mpirun could not be started: {e.filename or ''} {e.strerror}") from e

    def _started(self, paths: JobPaths, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        if self._is_given_up:
            raise InterruptedError
        environment = {**environment, "DLAMI_RESUME": newest_checkpoint(paths)}
        self.began = steady_now()  # before its ranks can print anything
        with paths.console(self._job.attempt).open("ab") as console:
            process = subprocess.Popen(
                self._job.plan.mpirun,
                cwd=paths.folder,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        if self._is_given_up:  # the folder answered after the caller gave up
            process.kill()
            process.wait()
        return process

    def ended(self, within_s: float) -> int | None:
        """Return mpirun's exit code, negative for a signal's number, or None if it still runs after this time."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None

    @property
    def is_stopped(self) -> bool:
        """Return True if mpirun is stopped by SIGSTOP or a debugger."""
        return is_stopped(self._process.pid)

    def stop(self, presence: Presence) -> int:
        """Send SIGUSR1, which mpirun forwards to every rank: save and leave. Return mpirun's exit code.

        Ends mpirun by force if ranks do not leave within 30 s, if one is stopped, or if a host is lost.
        """
        self._process.send_signal(signal.SIGUSR1)
        began, has_looked = time.monotonic(), False
        while (waited := time.monotonic() - began) < STOP_GRACE_S and not presence.lost():
            if (exit_code := self.ended(0.2)) is not None:
                return exit_code
            if waited > _STUCK_S and not has_looked:
                has_looked = True
                if stopped_processes(self._job.hosts, self._job.id):
                    break
        return self.end()

    def end(self, patience_s: float = 10) -> int:
        """End mpirun and return its exit code: SIGTERM, on which it ends its ranks, then SIGKILL.

        Processes that are left are ended by the cleanup afterwards.
        """
        for step, wait_s in ((signal.SIGTERM, 0 if self.is_stopped else patience_s), (signal.SIGKILL, 10)):
            self._process.send_signal(step)
            if (exit_code := self.ended(wait_s)) is not None:
                return exit_code
        return -signal.SIGKILL


def newest_checkpoint(paths: JobPaths) -> str:
    """Return the path of the file or folder in the job's `checkpoints/` that was changed last; "" without any.

    Names that are hidden or end with `.tmp` are half-written and do not count.
    """
    try:
        return str(max(whole_checkpoints(paths), key=lambda p: (p.stat().st_mtime_ns, p.name), default=""))
    except OSError:
        return ""


def whole_checkpoints(paths: JobPaths) -> list[Path]:
    """Return the files and folders in the job's `checkpoints/` that are completely written. Raises OSError."""
    return [p for p in paths.checkpoints.iterdir() if not p.name.startswith(".") and p.suffix != ".tmp"]


def _open_connections(job: Job) -> dict[str, str]:
    """Connect to all of the job's hosts at once. Return the environment that makes mpirun use these connections.

    It is an environment variable because the sockets exist only on this machine. Where a connection fails, mpirun tries
    again and reports the error.
    """
    remote = [h for h in job.hosts if not h.is_local]
    if not remote:
        return {}
    cluster = cluster_of_job(job.hosts, job.id)
    with Executor(cluster) as reach:
        reach.connect(remote)
    return {"OMPI_MCA_plm_rsh_agent": " ".join(agent_command(way_to(remote[-1], cluster.access)))}

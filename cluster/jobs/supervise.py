"""One attempt of a job, watched to its end: mpirun started, its end explained, nothing of it left on any host.

Runs on the master, detached: `python -m cluster.jobs.supervise JOBFOLDER ATTEMPT`. SIGUSR1 is 'inv jobs.stop'; SIGTERM
is somebody else's wish, such as a shutdown's.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from cluster.inventory import Cluster
from cluster.jobs.cause import Cause, left_early, read_cause
from cluster.jobs.lease import RENEW_S, Fenced, check_lease, take_lease
from cluster.jobs.lock import locked
from cluster.jobs.presence import LOOK_S, LOOKS, Presence
from cluster.jobs.process import this_process
from cluster.jobs.record import ATTEMPT_TAG, FOLDER_TAG, JOB_TAG, Job, JobPaths, Status, now, read_job
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status, write_status
from cluster.jobs.sweep import stopped_processes, sweep
from cluster.launch.mpirun import ranks_on
from cluster.ssh.fanout import Reach
from cluster.ssh.options import agent_command, way_to

STOP_SIGNAL = signal.SIGUSR1
STOP_GRACE_S = 30.0  # for the trainer to save and leave
_STUCK_S = 2.0  # after which a rank that has not left is looked at: a stopped one never will
_LOCK_S = 300.0  # for the submission that started this to be written down
_STOPPED_BY_OTHERS = (
    "its supervisor was told to end (SIGTERM) by something other than 'inv jobs.stop', such as a shutdown of the master"
)
_CONSOLE_TAIL = 1 << 20


def supervise(paths: JobPaths, attempt: int) -> Status | None:
    """Run the attempt that was announced, and say in its record how it ended; None if it may not begin any more."""
    return _Attempt(paths, attempt).see_through()


class _Attempt:
    def __init__(self, paths: JobPaths, attempt: int) -> None:
        self.paths, self.number, self.process = paths, attempt, this_process()
        self.stop_signal: int | None = None
        self.was_stopped = False
        self.lost_host: str | None = None
        for number in (STOP_SIGNAL, signal.SIGTERM):
            signal.signal(number, self._note)

    def see_through(self) -> Status | None:
        """The attempt, from its first word to its last."""
        with locked(self.paths.folder.parent, _LOCK_S):
            announced = read_status(self.paths)
            if (announced.attempt, announced.state) != (self.number, JobState.STARTING):
                print(f"attempt {self.number} is not to begin any more: it is {announced.state}", flush=True)
                return None
            self.job = read_job(self.paths)
            self._renew()
            self.status = write_status(
                self.paths,
                dataclasses.replace(announced, state=JobState.RUNNING, supervisor=self.process, started=now()),
            )
        self.presence = Presence([h.address for h in self.job.hosts if not h.is_local]).start()
        try:
            exit_code = self._watch_mpirun()
            ended, cause = self._outcome(exit_code)
        except Fenced as e:
            print(e, flush=True)
            return None
        except Exception as e:
            self._finish(JobState.FAILED, None, Cause(text=f"the supervisor failed: {type(e).__name__}: {e}"))
            raise
        finally:
            self.presence.close()
        return self._finish(ended, exit_code, cause)

    def _watch_mpirun(self) -> int:
        """mpirun from start to end; its exit code."""
        with self.paths.console(self.number).open("ab") as console:
            mpirun = subprocess.Popen(
                self.job.mpirun,
                cwd=self.paths.folder,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env={**_open_connections(self.job), **os.environ, **self._tags()},
                start_new_session=True,
            )
        renewed = time.monotonic()
        try:
            while (exit_code := _ended(mpirun, 0.2)) is None:
                self.lost_host = self.presence.lost()
                if self.stop_signal is not None:
                    self.was_stopped = True
                    self._write(dataclasses.replace(self.status, state=JobState.STOPPING))
                    return self._stop(mpirun)
                if self.lost_host:
                    return _end(mpirun, patience_s=3)  # its daemon there will not say that it has ended
                if time.monotonic() - renewed > RENEW_S:
                    renewed = time.monotonic()
                    self._renew()
        except BaseException:
            _end(mpirun)
            raise
        return exit_code

    def _stop(self, mpirun: "subprocess.Popen[bytes]") -> int:
        """USR1, which mpirun passes on to every rank: save and leave. TERM and KILL for those that do not or cannot."""
        mpirun.send_signal(signal.SIGUSR1)
        began, has_looked = time.monotonic(), False
        while (waited := time.monotonic() - began) < STOP_GRACE_S and not self.presence.lost():
            if (exit_code := _ended(mpirun, 0.2)) is not None:
                return exit_code
            if waited > _STUCK_S and not has_looked:
                has_looked = True
                if stopped_processes(self.job.hosts, self.job.id):
                    break
        return _end(mpirun)

    def _outcome(self, exit_code: int) -> tuple[JobState, Cause]:
        """What the end of mpirun means."""
        if self.was_stopped:
            return JobState.STOPPED, Cause(text="" if self.stop_signal == STOP_SIGNAL else _STOPPED_BY_OTHERS)
        if self.lost_host:
            return JobState.FAILED, _host_lost(self.lost_host, f"it answered nothing for {LOOKS * LOOK_S:g} s")
        text = self._console_tail()
        hosts = [h.address for h, n in ranks_on(self.job.hosts, self.job.np).items() for _ in range(n)]
        cause = read_cause(text, exit_code, dict(enumerate(hosts)))
        if cause.is_host_lost:
            return JobState.FAILED, cause if self.presence.is_silent(cause.host) else _daemon_gone(cause.host)
        if gone := self.presence.gone():  # whatever mpirun and the other ranks made of it
            said = f"mpirun says: {cause.text}" if exit_code else "mpirun ended with 0 all the same"
            return JobState.FAILED, _host_lost(gone[0], f"it does not answer; {said}")
        if exit_code == 0 and (early := left_early(text)):
            return JobState.FAILED, early
        return JobState.SUCCEEDED if exit_code == 0 else JobState.FAILED, cause

    def _finish(self, ended: JobState, exit_code: int | None, cause: Cause) -> Status | None:
        try:
            check_lease(self.paths, self.number, self.process)  # what another attempt runs is not ours to sweep
            lost = {cause.host} if cause.is_host_lost else set()
            swept = sweep([h for h in self.job.hosts if h.address not in lost], self.job.id)
            not_looked_at = tuple(f"{address}: not looked at, it does not answer" for address in lost)
            return self._write(
                dataclasses.replace(
                    self.status,
                    state=ended,
                    ended=now(),
                    exit_code=exit_code,
                    cause=cause.text,
                    rank=cause.rank,
                    host=cause.host,
                    log=self._log_of(cause.rank),
                    left=(*swept.left, *not_looked_at),
                )
            )
        except Fenced as e:
            print(e, flush=True)
            return None

    def _write(self, status: Status) -> Status:
        """Say it in the job's record, if this is still who may. Raises Fenced."""
        check_lease(self.paths, self.number, self.process)
        return write_status(self.paths, status)

    def _renew(self) -> None:
        check_lease(self.paths, self.number, self.process)
        with contextlib.suppress(OSError):  # a full disk: this process is still seen to live
            take_lease(self.paths, self.number, self.process)

    def _console_tail(self) -> str:
        with self.paths.console(self.number).open("rb") as console:
            console.seek(max(0, console.seek(0, os.SEEK_END) - _CONSOLE_TAIL))
            return console.read().decode(errors="replace")

    def _log_of(self, rank: int | None) -> str:
        """The log of the rank that failed, the console where there is none."""
        found = sorted(self.paths.rank_logs(self.number).glob(f"*/rank.*{rank}")) if rank is not None else []
        one = next((p for p in found if int(p.name.removeprefix("rank.")) == rank), None)
        return str(one or self.paths.console(self.number))

    def _tags(self) -> dict[str, str]:
        return {JOB_TAG: self.job.id, FOLDER_TAG: str(self.paths.folder), ATTEMPT_TAG: str(self.number)}

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.stop_signal = self.stop_signal or number


def _host_lost(address: str, how: str) -> Cause:
    return Cause(text=f"host {address} was lost in mid-run: {how}", host=address, is_host_lost=True)


def _daemon_gone(address: str) -> Cause:
    return Cause(
        text=f"mpirun's daemon on {address} is gone; the host answers: the daemon was ended, or the host or its "
        "network was away for a moment",
        host=address,
    )


def _ended(mpirun: "subprocess.Popen[bytes]", within_s: float) -> int | None:
    try:
        return mpirun.wait(within_s)
    except subprocess.TimeoutExpired:
        return None


def _end(mpirun: "subprocess.Popen[bytes]", patience_s: float = 10) -> int:
    """TERM, by which mpirun ends its ranks, and KILL; the sweep afterwards ends what is left."""
    for step, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 10)):
        mpirun.send_signal(step)
        if (exit_code := _ended(mpirun, wait_s)) is not None:
            return exit_code
    return -signal.SIGKILL


def _open_connections(job: Job) -> dict[str, str]:
    """Connect to the job's hosts, all at once, and say to mpirun how to start its daemons over these connections.

    It is told by its environment: the sockets are this machine's. What cannot be connected mpirun tries, and reports.
    """
    remote = [h for h in job.hosts if not h.is_local]
    if not remote:
        return {}
    cluster = Cluster(name=job.id, hosts=job.hosts, folder=Path(), shared="", project="")
    with Reach(cluster) as reach:
        reach.connect(remote)
    return {"OMPI_MCA_plm_rsh_agent": " ".join(agent_command(way_to(remote[-1], cluster.access)))}


if __name__ == "__main__":
    supervise(JobPaths(Path(sys.argv[1])), int(sys.argv[2]))

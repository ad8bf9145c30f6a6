"""Single attempt of a job, run by the job's supervisor: start mpirun, watch it, end it, explain its end."""

import contextlib
import dataclasses
import math
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.folder_thread import FolderThread
from cluster.hang_detection import stopped_processes
from cluster.hang_detection.stopped_processes import MPIRUN, Frozen
from cluster.hang_detection.watch import RankWatch
from cluster.hostset import fold
from cluster.jobs.record import Job, JobPaths
from cluster.jobs.records import last_metrics
from cluster.jobs.state import JobState
from cluster.jobs.supervisor.exit_state import (
    ASKED,
    Kept,
    has_finished,
    kept,
    left_early,
    newest_stamp,
    shows_progress,
    what_was_saved,
)
from cluster.jobs.supervisor.launcher import Mpirun, NotStarted
from cluster.jobs.supervisor.scale_up import Growing
from cluster.jobs.supervisor.shared_folder import hosts_without, trouble_here
from cluster.jobs.supervisor.signals import Signals
from cluster.jobs.supervisor.steps import Steps
from cluster.jobs.supervisor.tmp_space import hosts_without_room
from cluster.launch.mpirun import ranks_on
from cluster.recovery.cause import Cause, daemon_gone, host_lost, no_store, read_cause
from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.history import AttemptRecord
from cluster.recovery.liveness import LOOK_S, LOOKS, Presence
from cluster.recovery.preemption import PreemptionNotice, departures, due, is_the_end, why
from cluster.ssh.launcher import launcher
from cluster.steady_time import steady_now

_CONSOLE_TAIL = 1 << 20
# These kinds count even if ranks were asked to leave.
_NO_LEAVING = (FailureKind.HOST, FailureKind.HANG, FailureKind.SHARED_FOLDER)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of an attempt: the state it leaves the job in, the cause and mpirun's exit code."""

    state: JobState
    cause: Cause
    exit_code: int | None = None  # mpirun's; negative: ended by that signal


class Attempt:
    """Single run of mpirun, from its start to the explanation of its end.

    on_look: called a few times a second while mpirun runs, with the attempt's record and the current warnings.
    on_stop: called once, before the ranks get the signal to leave because the job is stopped.
    on_notice: called with each host's preemption notice, again several times a second while the host repeats it.
    say: prints a line to the job's console.
    growing: decides whether the attempt should save and restart on more hosts.

    An exception from one of the callbacks ends mpirun.
    """

    def __init__(
        self,
        job: Job,
        paths: JobPaths,
        signals: Signals,
        record: AttemptRecord,
        *,
        on_look: Callable[[AttemptRecord, tuple[str, ...]], None],
        on_stop: Callable[[], None],
        on_notice: Callable[[PreemptionNotice], None],
        say: Callable[[str], None],
        growing: Growing,
        folder: FolderThread,
    ) -> None:
        self._job, self._paths, self._signals, self._folder = job, paths, signals, folder
        self._on_look, self._on_stop, self._on_notice = on_look, on_stop, on_notice
        self._growing = growing
        self._leaves_to_grow = False
        self._leaving: tuple[PreemptionNotice, ...] = ()  # hosts whose preemption ended the attempt
        self._lost_host: str | None = None
        self._hang: Cause | None = None
        self._ranks = RankWatch(job, paths, folder, say)
        self._frozen = Frozen()
        self._was_stopped = False
        self._console: int | None = None  # held open, so that it stays readable if it is removed
        self._checkpoint_before: int | None = None  # newest checkpoint's time when ranks were asked to leave
        self.record = record  # what is known so far

    def run_to_end(self) -> Outcome:
        """Start mpirun, watch it until it ends, and return the outcome."""
        before = self._kept()
        self._presence = Presence([h.address for h in self._job.hosts if not h.is_local]).start()
        try:
            try:
                exit_code = self._watch_mpirun()
            except NotStarted as e:
                outcome = Outcome(state=JobState.FAILED, cause=self._not_started(str(e)))
            else:
                outcome = self._outcome(exit_code)
        finally:
            self._presence.close()
            self._ranks.close()
            if self._console is not None:
                os.close(self._console)
                self._console = None
        cause, now = outcome.cause, self._kept()
        saved = before is not None and now is not None and shows_progress(before, now, cause.kind)
        self._note(what=cause.kind, text=cause.text, host=cause.host, rank=cause.rank, saved=saved)
        return outcome

    def _watch_mpirun(self) -> int:
        """Run mpirun from start to end and return its exit code."""
        mpirun = Mpirun(self._job, self._paths, self._folder)
        with contextlib.suppress(OSError):
            self._console = self._folder.do(self._open_console)
        self._ranks.start()
        self._steps = Steps(lambda: self._folder.do(lambda: last_metrics(self._paths)), mpirun.began, self._ranks)
        self._note(started=mpirun.began)
        try:
            while (exit_code := mpirun.ended(0.2)) is None:
                self._lost_host, self._hang = self._presence.lost(), self._ranks.trouble() or self._frozen_by(mpirun)
                if self._signals.ask_to_end:
                    self._was_stopped = True
                    self._on_stop()
                    exit_code = self._asked_to_leave(mpirun)
                    break
                self._leaves_to_grow = self._growing.is_due(self.record.first_step_at)
                if self._heed_notices() or self._leaves_to_grow:
                    exit_code = self._asked_to_leave(mpirun)
                    break
                if self._lost_host:
                    self._note(noticed=steady_now())
                    exit_code = mpirun.end(patience_s=3)  # the lost host's daemon cannot report its end
                    break
                if self._hang:
                    self._note(noticed=steady_now())
                    exit_code = mpirun.end(patience_s=5)  # not SIGUSR1: no rank can save while it waits for another
                    break
                self._steps.look()
                self._note_steps()
                self._on_look(self.record, self._warnings(mpirun))
        except BaseException:
            mpirun.end()
            raise
        if not (self._lost_host or self._hang):
            self._ranks.ask_once_more()
            self._steps.look()
        self._steps.read()
        self._note_steps()
        self._note(noticed=self.record.noticed or steady_now(), ended=steady_now())
        return exit_code

    def _asked_to_leave(self, mpirun: Mpirun) -> int:
        """Ask the ranks to save and leave. Return mpirun's exit code once they have left or were killed."""
        self._note(noticed=steady_now())
        self._checkpoint_before = self._newest_stamp()
        return mpirun.stop(self._presence)

    def _kept(self) -> Kept | None:
        """Return the job's checkpoints, or None if the folder does not answer."""
        with contextlib.suppress(OSError):
            return self._folder.do(lambda: kept(self._paths))
        return None

    def _newest_stamp(self) -> int | None:
        """Return the modification time of the newest checkpoint, in ns, or None if the folder does not answer."""
        with contextlib.suppress(OSError):
            return self._folder.do(lambda: newest_stamp(self._paths))
        return None

    def _warnings(self, mpirun: Mpirun) -> tuple[str, ...]:
        """Return the current warnings: conditions that are wrong but do not end the attempt."""
        stopped = (stopped_processes.warning(name, address) for address, name in sorted(self._stopped(mpirun).items()))
        return (*stopped, *filter(None, [self._ranks.silence()]))

    def _frozen_by(self, mpirun: Mpirun) -> Cause | None:
        """Return why the attempt should end: a stopped process or silent folder blocks it while no rank progresses."""
        limit_s = self._ranks.limit_s() if self._job.spec.hang_after != 0 else math.inf
        return self._frozen.look(
            self._stopped(mpirun), self._folder.silent_s, self._ranks.progress(), limit_s, time.monotonic()
        )

    def _stopped(self, mpirun: Mpirun) -> dict[str, str]:
        """Return the stopped parts of mpirun by host address, mpirun itself under "" unless a host reports it."""
        stopped = self._ranks.stopped()
        return stopped if not mpirun.is_stopped or MPIRUN in stopped.values() else {**stopped, "": MPIRUN}

    def _heed_notices(self) -> bool:
        """Pass the hosts' preemption notices to on_notice. Return True if the ranks should leave now because of one."""
        notices = self._ranks.notices()
        for notice in departures(notices):
            self._on_notice(notice)
        self._leaving = due(notices, time.time()) or self._leaving
        return bool(self._leaving)

    def _outcome(self, exit_code: int) -> Outcome:
        """Return the outcome that the end of mpirun with this exit code means."""
        was_asked = self._was_stopped or self._leaving or self._leaves_to_grow
        if was_asked and has_finished(self._job, self._console_tail(), exit_code, self.record.step):
            return Outcome(state=JobState.SUCCEEDED, cause=Cause(kind=FailureKind.DONE, text=""), exit_code=exit_code)
        if self._was_stopped:
            return Outcome(state=stopped_state(self._signals), cause=stopped(self._signals), exit_code=exit_code)
        if self._leaving:
            return Outcome(state=JobState.STOPPED, cause=self._left_for_notices(), exit_code=exit_code)
        cause = self._with_shared_folder(self._cause(exit_code))
        if self._leaves_to_grow and cause.kind not in _NO_LEAVING:
            cause = self._left_to_grow(cause, exit_code)
        state = JobState.SUCCEEDED if cause.kind is FailureKind.DONE else JobState.FAILED
        return Outcome(state=state, cause=cause, exit_code=exit_code)

    def _left_for_notices(self) -> Cause:
        """Return the cause of an attempt that was asked to leave because its hosts will be preempted."""
        self._heed_notices()  # other hosts may have sent notices by now
        self._note(leaving=self._leaving)
        hosts = [h.address for h in self._job.hosts]
        first = "" if is_the_end(self._leaving, hosts) else self._leaving[0].host
        return Cause(kind=FailureKind.NOTICE, text=why(self._leaving, hosts, self._saved()), host=first)

    def _left_to_grow(self, cause: Cause, exit_code: int) -> Cause:
        """Return the cause of an attempt that was asked to leave so that it can restart on more hosts.

        cause: what mpirun's output makes of the end.
        """
        did = "it has saved and left"
        if self._saved() == ASKED:
            did = f"it was asked to save, {f'and then: {cause.text}' if exit_code else 'and has left'}"
        return Cause(kind=FailureKind.WHOLE, text=f"more of its hosts can be had again; {did}")

    def _saved(self) -> str:
        """Describe whether the ranks saved a checkpoint after they were asked to."""
        before, now = self._checkpoint_before, self._newest_stamp()
        is_newer = before is not None and now is not None and now > before
        return what_was_saved(self._console_tail(), is_newer)

    def _cause(self, exit_code: int) -> Cause:
        """Return why mpirun ended, by its output and by what the hosts answer."""
        if self._lost_host:
            return host_lost(self._lost_host, f"it answered nothing for {LOOKS * LOOK_S:g} s")
        if self._hang:
            return self._hang
        text = self._console_tail()
        hosts = [h.address for h, n in ranks_on(self._job.hosts, self._job.np).items() for _ in range(n)]
        shared, is_alone = (
            str(self._paths.folder.parent.parent),
            self._job.np == 1 and self._job.spec.program.per == "gpu",
        )
        cause = read_cause(text, exit_code, dict(enumerate(hosts)), shared=shared, is_alone=is_alone)
        cause = _by_address(cause, set(hosts))
        if cause.kind is FailureKind.LAUNCH and not cause.host and (full := hosts_without_room(self._job)):
            return no_store(full[0])
        if cause.is_host_lost:
            return cause if self._presence.is_silent(cause.host) else daemon_gone(cause.host)
        if gone := self._presence.gone():  # a lost host explains the other ranks' failures
            said = f"mpirun says: {cause.text}" if exit_code else "mpirun ended with 0 all the same"
            return host_lost(gone[0], f"it does not answer; {said}")
        if cause.kind is FailureKind.LAUNCH and self.record.first_step_at:  # the launch itself had succeeded
            return dataclasses.replace(cause, kind=FailureKind.DAEMON)
        # Only this project's trainers print this.
        if exit_code == 0 and self._job.spec.program.is_built_in and (early := left_early(text)):
            return early
        return cause

    def _with_shared_folder(self, cause: Cause) -> Cause:
        """Return the cause, replaced by the shared folder's failure if that explains it."""
        may_be = (
            FailureKind.PROGRAM,
            FailureKind.LAUNCH,
            *((FailureKind.HANG, FailureKind.DAEMON) if self._folder.is_silent else ()),
        )
        if not self._job.spec.heal or cause.kind not in may_be:
            return cause
        if trouble := trouble_here(self._folder, self._paths):
            text = f"{self._paths.folder} cannot be written: {trouble}; {cause.text}"
            return dataclasses.replace(cause, kind=FailureKind.SHARED_FOLDER, text=text)
        if self._job.plan.is_shared and (away := hosts_without(self._job, self._paths)):
            text = f"the shared folder is not there on {fold(away)}; {cause.text}"
            return dataclasses.replace(cause, kind=FailureKind.SHARED_FOLDER, text=text, host=away[0])
        return cause

    def _not_started(self, why: str) -> Cause:
        return self._with_shared_folder(Cause(kind=FailureKind.LAUNCH, text=why))

    def _note(self, **changes: object) -> None:
        self.record = dataclasses.replace(self.record, **changes)  # type: ignore[arg-type]

    def _note_steps(self) -> None:
        self._note(alive_at=self._ranks.alive_at())
        first, last = self._steps.first, self._steps.last
        if first and last:
            self._note(first_step=first.number, first_step_at=first.at, step=last.number, step_at=last.at)

    def _open_console(self) -> int:
        return os.open(self._paths.console(self._job.attempt), os.O_RDONLY | os.O_CLOEXEC)

    def _console_tail(self) -> str:
        """Return the last whole lines of the console, or "" if the shared folder cannot be read."""

        def read() -> bytes:
            console = self._console = self._open_console() if self._console is None else self._console
            begin = max(0, os.fstat(console).st_size - _CONSOLE_TAIL)
            text = os.pread(console, _CONSOLE_TAIL, begin)
            return text.partition(b"\n")[2] if begin else text  # a truncated line has no rank's tag

        try:
            return self._folder.do(read).decode(errors="replace")
        except OSError:
            return ""


def stopped(signals: Signals) -> Cause:
    """Return the cause of a job that ends because its supervisor got a signal, or ends it at a limit."""
    if signals.limit:
        return Cause(kind=FailureKind.STOPPED, text=signals.limit)
    if signals.are_of_jobs_stop:
        return Cause(kind=FailureKind.STOPPED, text="")
    if signals.are_of_a_shutdown:
        return Cause(kind=FailureKind.MASTER, text="its master was shut down")
    return Cause(kind=FailureKind.SUPERVISOR, text=launcher().who_sent_sigterm)


def stopped_state(signals: Signals) -> JobState:
    """Return the state of such a job: who follows a job that reached a limit gets the exit code of a failure."""
    return JobState.FAILED if signals.limit else JobState.STOPPED


def _by_address(cause: Cause, addresses: set[str]) -> Cause:
    """Return the cause with the host's address where mpirun reported the host by its own hostname."""
    if not cause.host or cause.host in addresses:
        return cause
    with contextlib.suppress(OSError):
        if (address := socket.gethostbyname(cause.host)) in addresses:
            return dataclasses.replace(cause, host=address, text=cause.text.replace(cause.host, address))
    return cause

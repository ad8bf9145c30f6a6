"""Supervisor of a job until it ends: it runs and records each attempt, and leaves no process of one on a host.

Runs on the master, detached: `python -m cluster.jobs.supervisor.supervise JOBFOLDER ATTEMPT`.
"""

import contextlib
import dataclasses
import datetime
import sys
import traceback
from pathlib import Path

from cluster.folder_thread import FolderLog, FolderThread, Unanswered
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.jobs.cleanup import sweep
from cluster.jobs.lock import locked
from cluster.jobs.record import Job, JobPaths, JobStatus, read_job
from cluster.jobs.record_lease import Fenced
from cluster.jobs.records import read_attempts
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status
from cluster.jobs.supervisor.admission import remember_end
from cluster.jobs.supervisor.attempt import Attempt, Outcome, stopped, stopped_state
from cluster.jobs.supervisor.exit_state import newest_stamp
from cluster.jobs.supervisor.interruptible_wait import Patience, StopAsked
from cluster.jobs.supervisor.lease_holder import LeaseHolder
from cluster.jobs.supervisor.queueing import Queueing
from cluster.jobs.supervisor.recovery import NotHealed, Prepared, Recovery
from cluster.jobs.supervisor.reporter import Telling
from cluster.jobs.supervisor.scale_up import Growing
from cluster.jobs.supervisor.signals import Signals
from cluster.recovery.cause import Cause
from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.history import AttemptRecord
from cluster.recovery.liveness import silent_hosts
from cluster.recovery.policy import GiveUp, RecoveryTerms, Retry, decide, futile_attempts
from cluster.recovery.replacement import Replacement
from cluster.steady_time import steady_now
from cluster.terminal import counted

_MASTER_AWAY = "its supervisor went without a last word: it was killed, or its master was away"
_BEGINS = (JobState.QUEUED, JobState.STARTING, JobState.HEALING)
_KEPT_EVERY_S = 10.0  # how often a running attempt's progress is recorded
_LOCK_S = 300.0  # wait for the submission that started this process to finish


def supervise(paths: JobPaths, attempt: int) -> JobStatus | None:
    """Run the announced attempt and those that follow from it. Record how the job ended and return its state.

    For a lost job, the attempt is the last one, and only what follows from its end is done. Returns None if the attempt
    may not begin, or the supervisor lost its lease.
    """
    folder = FolderThread()
    sys.stdout = sys.stderr = FolderLog(folder, sys.stdout.fileno())
    try:
        return _Supervisor(paths, attempt, folder).run_to_end()
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
    finally:
        folder.close()


class _Supervisor:
    def __init__(self, paths: JobPaths, attempt: int, folder: FolderThread) -> None:
        self.paths, self.first, self.since = paths, attempt, attempt
        self.signals = Signals()
        self.folder = folder
        self.holder = LeaseHolder(paths, attempt, folder)
        self.patience = Patience(self.signals, self._keep_up)

    def run_to_end(self) -> JobStatus | None:
        """Run the job from this supervisor's first write to its last.

        Return None if it may not begin or lost its lease.
        """
        try:
            if not self._began():
                return None
            self.replacing = Replacement(self.job.plan.stack, self.holder.say)
            try:
                return self._attempt_after_attempt()
            except Fenced:
                raise
            except Exception as e:
                text = f"the supervisor failed: {type(e).__name__}: {e}"
                self._finish(Outcome(state=JobState.FAILED, cause=Cause(kind=FailureKind.SUPERVISOR, text=text)))
                raise
            finally:
                self.replacing.close()
                self.telling.close()
        except Fenced as e:
            print(e, flush=True)
            return None

    def _began(self) -> bool:
        """Record that the attempt runs. Return False if it may not begin any more."""
        with locked(self.paths.folder.parent, _LOCK_S):
            announced = read_status(self.paths)
            if announced.attempt != self.first or announced.state not in _BEGINS:
                print(f"attempt {self.first} is not to begin any more: it is {announced.state}", flush=True)
                return False
            self.job = read_job(self.paths)
            self.used: dict[str, Host] = {h.address: h for h in self.job.all_hosts}
            self.holder.turn_to(self.first)
            self.telling = Telling(self.job, self.paths, self.holder, self.folder, announced)
            if announced.state is JobState.QUEUED:
                self.telling.is_supervised()
            elif announced.state is JobState.HEALING:
                self._take_up(announced)
            else:
                self._turn_to(self.job, _begin(self.job))
        return True

    def _take_up(self, announced: JobStatus) -> None:
        """Take over a job whose supervisor ended with the master.

        Close the record of its last attempt if it is open.
        """
        known = [a for a in read_attempts(self.paths) if a.number == self.first]
        self.record = known[-1] if known else _begin(self.job)
        if not self.record.is_over:
            self.record = dataclasses.replace(
                self.record,
                what=FailureKind.MASTER,
                text=_MASTER_AWAY,
                ended=datetime.datetime.fromisoformat(announced.ended).timestamp(),
                noticed=steady_now(),
                saved=self._has_saved_since(self.record.started or self.record.began),
            )
        self.since = 1  # count all attempts, so that a job that brings the master down is not retried for ever
        self.telling.is_supervised()

    def _has_saved_since(self, began: float) -> bool:
        """Return True if there is a checkpoint newer than this time.

        began: when the attempt began whose supervisor is gone.
        """
        with contextlib.suppress(OSError):
            return self.folder.do(lambda: newest_stamp(self.paths)) / 1e9 > began
        return False

    def _turn_to(self, job: Job, record: AttemptRecord) -> None:
        """Make this the current attempt and record that it runs."""
        recent = [a for a in self.holder.attempts if self.since <= a.number < record.number]
        self.job, self.record = job, dataclasses.replace(record, futile=futile_attempts(recent))
        self.used |= {h.address: h for h in job.hosts}
        self.holder.turn_to(job.attempt)
        self.holder.keep(self.record)
        self.telling.runs(job.attempt)

    def _from_the_queue(self) -> JobStatus | None:
        """Wait for the job's turn and make its attempt the current one.

        Return the final state if there is none, else None.
        """
        self.record = _begin(self.job)
        queueing = Queueing(self.job, self.paths, self.patience, self.replacing, self.telling, self.folder)
        try:
            prepared = queueing.prepare()
        except (NotHealed, StopAsked) as e:
            if isinstance(e, StopAsked) and self.signals.are_of_a_shutdown:
                return self.telling.status  # left queued: its next supervisor continues when the master is back
            left = sweep(queueing.may_have_used, self.job.id).left
            return self._finish(_never_begun(self.signals, e), left)
        waited_s, gate_s = round(prepared.waited_s, 1), round(prepared.gate_s, 1)
        began = steady_now() - prepared.waited_s - prepared.gate_s
        self._turn_to(
            prepared.job, dataclasses.replace(_begin(prepared.job), began=began, waited_s=waited_s, gate_s=gate_s)
        )
        self.telling.starts(self.record.number, f"out of the queue: {_described(prepared)}")
        return None

    def _attempt_after_attempt(self) -> JobStatus:
        if self.telling.status.state is JobState.QUEUED and (ended := self._from_the_queue()):
            return ended
        outcome = _left_by(self.record) if self.telling.status.state is JobState.HEALING else self._attempted()
        while True:
            self.holder.keep(self.record)
            then = decide(self.holder.attempts, self._terms(), steady_now(), since=self.since)
            goes_down = self._goes_down(outcome.cause)
            left = self._cleared(outcome.cause, keeps_hosts=goes_down or isinstance(then, Retry))
            if isinstance(then, GiveUp) or goes_down:
                return self._finish(outcome, left, then.why if isinstance(then, GiveUp) else "")
            try:
                self._healed(outcome.cause, left, then)
            except NotHealed as e:
                return self._finish(outcome, self._given_back(outcome.cause), str(e))
            except StopAsked:
                end = _stopped_between(self.signals, outcome)
                return self._finish(end, left if self._goes_down(end.cause) else self._given_back(outcome.cause))
            outcome = self._attempted()

    def _attempted(self) -> Outcome:
        """Run the attempt and return its outcome."""
        growing = Growing(self.job, self.paths, self.replacing, self.holder.say_in_console).start()
        attempt = Attempt(
            self.job,
            self.paths,
            self.signals,
            self.record,
            on_look=self._look,
            on_stop=self._say_stopping,
            on_notice=self.telling.notice,
            say=self.holder.say_in_console,
            growing=growing,
            folder=self.folder,
        )
        try:
            outcome = attempt.run_to_end()
        finally:
            growing.close()
        self.record = attempt.record
        return outcome

    def _keep_up(self) -> None:
        """Renew the lease, and end the job once it has used up its time. Called several times a second."""
        self.holder.renew_if_due()
        limit_s = self.job.spec.time_limit
        if limit_s and self.telling.status.state is not JobState.QUEUED and self._used_s() > limit_s:
            more = f"'inv jobs.resume {self.job.id} --time-limit TIME' with a longer one goes on with it"
            self.signals.limit = f"its time limit of {counted(limit_s / 60, 'minute')} is used up: {more}"

    def _used_s(self) -> float:
        """Return the seconds of all attempts, recovery between them included. The queue does not count."""
        before = [a for a in self.holder.attempts if a.number < self.record.number]
        ends = [(a.began, a.cleared or a.ended or a.noticed or a.step_at or a.began) for a in before]
        return sum(end - began for began, end in ends) + steady_now() - self.record.began

    def _look(self, record: AttemptRecord, warnings: tuple[str, ...]) -> None:
        """Renew the lease, and update the warnings and the attempt's record.

        Called a few times a second while it runs.
        """
        self._keep_up()
        self.telling.warns(warnings)
        if record.first_step_at and not self.record.first_step_at:
            self.holder.keep(record)
            if record.number > self.first:
                self.telling.healed(record)
        elif record.started != self.record.started or self._is_far_on(record):
            self.holder.keep(record)
        self.record = record

    def _is_far_on(self, record: AttemptRecord) -> bool:
        """Return True if the attempt is over 10 s ahead of its written record. If so, the record should be written."""
        kept = self.holder.attempts[-1] if self.holder.attempts else record
        steps_s = (record.step_at or 0.0) - (kept.step_at or 0.0)
        return max(steps_s, (record.alive_at or 0.0) - (kept.alive_at or 0.0)) > _KEPT_EVERY_S

    def _cleared(self, cause: Cause, *, keeps_hosts: bool = False) -> tuple[str, ...]:
        """End all processes of the attempt on every host. Return what is left on them."""
        lost = {cause.host} if cause.is_host_lost else set()
        left = self._swept(lost, keeps_hosts=keeps_hosts)
        self.record = dataclasses.replace(self.record, cleared=steady_now())
        self.holder.keep(self.record)
        if self.job.spec.heal:
            shared = self.paths.folder.parent.parent
            with contextlib.suppress(Unanswered):
                self.folder.do(lambda: remember_end(shared, self.job, cause.kind, cause.text, lost))
        return left

    def _given_back(self, last: Cause) -> tuple[str, ...]:
        """Release all hosts, including those taken for the next attempt that did not start.

        Return what is left on them.
        """
        return self._swept(silent_hosts([last.host]) if last.is_host_lost else set())

    def _swept(self, lost: set[str], *, keeps_hosts: bool = False) -> tuple[str, ...]:
        """End the job's processes on every host that this supervisor has used or taken. Return what is left on them.

        lost: hosts known to be unreachable.
        keeps_hosts: keep the hosts' claims for the next attempt.
        """
        own = self._own_to_sweep()
        elsewhere = [a for a in self.used if a not in {h.address for h in self.job.hosts}]
        silent = lost | (silent_hosts(elsewhere) if elsewhere else set())
        hosts = [h for a, h in self.used.items() if a not in silent]
        swept = sweep(hosts, self.job.id, attempt=own, keeps_hosts=keeps_hosts)
        return (*swept.left, *(f"{address}: not looked at, it does not answer" for address in sorted(silent)))

    def _own_to_sweep(self) -> int | None:
        """Return the attempt whose processes this supervisor may end, or None for all of the job's.

        It is the last attempt if the folder does not answer: another process may run the next one by now. Raises
        Fenced.
        """
        try:
            self.holder.check()
        except Unanswered:
            return self.record.number
        return None

    def _healed(self, cause: Cause, left: tuple[str, ...], again: Retry) -> None:
        """Prepare the next attempt and make it the current one. Raises NotHealed, StopAsked."""
        self.telling.heals(cause, left, self.record)
        healing = Recovery(self.job, self.paths, self.patience, self.replacing, self.telling, self.folder)
        try:
            prepared = healing.prepare(again, self.record.number + 1)
        finally:
            self.used |= healing.may_have_taken
        ended = self.record.ended or self.record.cleared or steady_now()
        self.holder.keep(dataclasses.replace(self.record, then=_described(prepared)))
        record = dataclasses.replace(
            _begin(prepared.job),
            began=self.record.cleared or ended,
            waited_s=round(prepared.waited_s, 1),
            gate_s=round(prepared.gate_s, 1),
        )
        self._turn_to(prepared.job, record)
        self.telling.say(f"attempt {record.number}, {steady_now() - ended:.0f} s later: {_described(prepared)}")

    def _finish(self, outcome: Outcome, left: tuple[str, ...] | None = None, why: str = "") -> JobStatus:
        """Clean up and record how the job ended. why: the reason that it is not tried again."""
        cause = outcome.cause
        left = self._cleared(cause) if left is None else left
        if self._goes_down(cause):
            text = f"{cause.text}; it goes on when the master is back"
            return self.telling.ended(JobState.HEALING, dataclasses.replace(cause, text=text), left)
        if why:
            cause = dataclasses.replace(cause, text=f"{cause.text}; not tried again: {why}")
        status = self.telling.ended(outcome.state, cause, left, outcome.exit_code)
        self.telling.is_over(status, cause)
        return status

    def _goes_down(self, cause: Cause) -> bool:
        """Return True if the master is being shut down and the job will be resumed when it is back."""
        return self.job.spec.heal and cause.kind is FailureKind.MASTER and self.signals.are_of_a_shutdown

    def _say_stopping(self) -> None:
        if self.job.spec.heal and self.signals.are_of_a_shutdown:
            return  # a job found in state STOPPING would not be resumed
        self.telling.stops()

    def _terms(self) -> RecoveryTerms:
        return RecoveryTerms(heal=self.job.spec.heal, attempts_per_hour=self.job.spec.attempts_per_hour)


def _begin(job: Job) -> AttemptRecord:
    return AttemptRecord(number=job.attempt, np=job.np, hosts=tuple(h.address for h in job.hosts), began=steady_now())


def _left_by(record: AttemptRecord) -> Outcome:
    """Return the outcome of an attempt whose supervisor ended before it recorded one."""
    assert record.what
    cause = Cause(kind=record.what, text=record.text, host=record.host, rank=record.rank)
    return Outcome(state=JobState.FAILED, cause=cause)


def _described(prepared: Prepared) -> str:
    hosts = prepared.job.hosts
    return f"{counted(prepared.job.np, 'rank')} on {fold(h.address for h in hosts)}, {prepared.choice}"


def _never_begun(signals: Signals, why: NotHealed | StopAsked) -> Outcome:
    """Return the outcome of a job whose first attempt never started."""
    if isinstance(why, NotHealed):
        text = f"its turn in the queue had come, but {why}"
        return Outcome(state=JobState.FAILED, cause=Cause(kind=FailureKind.LAUNCH, text=text))
    cause = stopped(signals)
    text = "; ".join(filter(None, (cause.text, "stopped while it waited in the queue")))
    return Outcome(state=JobState.STOPPED, cause=dataclasses.replace(cause, text=text))


def _stopped_between(signals: Signals, last: Outcome) -> Outcome:
    """Return the outcome of a job that was stopped between two attempts."""
    why = stopped(signals)
    text = "; ".join(filter(None, (why.text, f"stopped before its next attempt; the last: {last.cause.text}")))
    cause = dataclasses.replace(why, text=text)
    return Outcome(state=stopped_state(signals), cause=cause, exit_code=last.exit_code)


if __name__ == "__main__":
    supervise(JobPaths(Path(sys.argv[1])), int(sys.argv[2]))

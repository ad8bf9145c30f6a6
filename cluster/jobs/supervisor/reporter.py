"""Reporter of a supervisor: it publishes the job's state to the record, the console and as notifications."""

import contextlib
import dataclasses
from pathlib import Path

from cluster.folder_thread import FolderThread
from cluster.jobs.record import Job, JobPaths, JobStatus, as_written
from cluster.jobs.state import JobState
from cluster.jobs.supervisor.lease_holder import LeaseHolder
from cluster.jobs.supervisor.results_sender import send_beside
from cluster.notify import Notifier, NotifyEvent
from cluster.recovery.cause import Cause
from cluster.recovery.history import AttemptRecord
from cluster.recovery.preemption import PreemptionNotice
from cluster.steady_time import steady_now

_WAITS = "; the next attempt waits: "


class Telling:
    """Reporter of one job's state. Writes to the record raise Fenced once another process holds the lease."""

    def __init__(self, job: Job, paths: JobPaths, holder: LeaseHolder, folder: FolderThread, status: JobStatus) -> None:
        self._job, self._paths, self._holder, self._folder = job, paths, holder, folder
        self._notifier = Notifier(job.plan.notify, job.id, paths.folder)
        self._notices: set[object] = set()  # keys of the notices reported so far
        self.status = status

    def close(self) -> None:
        """Wait for the pending notifications, up to a limit."""
        self._notifier.close()

    def runs(self, attempt: int) -> None:
        """Record that an attempt runs."""
        self.status = self._holder.write(
            JobStatus(
                state=JobState.RUNNING,
                attempt=attempt,
                supervisor=self._holder.process,
                started=as_written(steady_now()),
            )
        )

    def waits(self, text: str) -> None:
        """Record and print why a job whose turn has come has not begun yet."""
        self.status = self._holder.write(dataclasses.replace(self.status, cause=text))
        self.say(text)

    def starts(self, attempt: int, text: str) -> None:
        """Report that a job from the queue begins."""
        self.say(text)
        self._notifier.tell(NotifyEvent.STARTED, text, attempt=attempt)

    def is_supervised(self) -> None:
        """Record that this process has taken over the job. Its state stays the same."""
        self.status = self._holder.write(dataclasses.replace(self.status, supervisor=self._holder.process))

    def warns(self, warnings: tuple[str, ...]) -> None:
        """Record these warnings in place of the earlier ones."""
        if warnings != self.status.warnings:
            self.status = self._holder.write(dataclasses.replace(self.status, warnings=warnings))

    def stops(self) -> None:
        """Record that the ranks were asked to save and leave."""
        self._holder.write(dataclasses.replace(self.status, state=JobState.STOPPING))

    def ended(self, state: JobState, cause: Cause, left: tuple[str, ...], exit_code: int | None = None) -> JobStatus:
        """Record the end of an attempt, and of the job unless it will be retried."""
        status = dataclasses.replace(
            self.status,
            state=state,
            ended=as_written(steady_now()),
            exit_code=exit_code,
            cause=cause.text,
            ended_by=cause.kind,
            rank=cause.rank,
            host=cause.host,
            log=self._log_of(cause.rank),
            left=left,
            warnings=(),
        )
        return self._holder.write(status)

    def heals(self, cause: Cause, left: tuple[str, ...], record: AttemptRecord) -> None:
        """Record and report that an attempt failed and another one is prepared."""
        self.status = self.ended(JobState.HEALING, cause, left)
        at_step = f" at step {record.step}" if record.step is not None else ""
        text = f"attempt {record.number} ended{at_step}: {cause.text}; the next one is prepared"
        self.say(text)
        self._notifier.tell(NotifyEvent.FAILED, text, attempt=record.number, host=cause.host)
        send_beside(self._job, self._paths)

    def waits_to_heal(self, text: str) -> None:
        """Record what the next attempt waits for, beside the cause of the last one's end."""
        if self.status.state is JobState.HEALING:
            before = self.status.cause.partition(_WAITS)[0]
            self.status = self._holder.write(dataclasses.replace(self.status, cause=before + _WAITS + text))

    def healed(self, record: AttemptRecord) -> None:
        """Report that the next attempt has made its first step."""
        text = f"attempt {record.number} trains, from step {record.first_step} on"
        self._notifier.tell(NotifyEvent.HEALED, text, attempt=record.number)

    def is_over(self, status: JobStatus, cause: Cause) -> None:
        """Report that the job has ended."""
        text = f"{status.state}: {cause.text}".rstrip(": ")
        self._notifier.tell(NotifyEvent.ENDED, text, attempt=status.attempt, host=cause.host)
        send_beside(self._job, self._paths)

    def notice(self, notice: PreemptionNotice) -> None:
        """Report a host's preemption notice. Each notice is reported once."""
        if notice.key in self._notices:
            return
        self._notices.add(notice.key)
        text = f"host {notice.host} says: {notice.text}"
        self.say(text)
        self._notifier.tell(NotifyEvent.NOTICE, text, attempt=self.status.attempt, host=notice.host)

    def say(self, text: str) -> None:
        """Print a line to the console."""
        self._holder.say(text)

    def _log_of(self, rank: int | None) -> str:
        """Return the path of the failed rank's log, or of the console if no rank failed."""
        number = self.status.attempt
        found: list[Path] = []
        if rank is not None:
            with contextlib.suppress(OSError):
                found = self._folder.do(lambda: sorted(self._paths.rank_logs(number).glob(f"*/rank.*{rank}")))
        one = next((p for p in found if int(p.name.removeprefix("rank.")) == rank), None)
        return str(one or self._paths.console(number))

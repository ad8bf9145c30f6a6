"""Lease holder of an attempt: what its supervisor writes to the job's record while it holds the lease.

Each write runs on the folder's thread, right after a check of the lease. So a write that the folder delayed is dropped
if the lease was lost meanwhile.
"""

import contextlib
import dataclasses
import functools
import os
import time

from cluster.files import write_json
from cluster.folder_thread import FolderThread, Unanswered
from cluster.jobs.process import boot_id, this_process
from cluster.jobs.record import JobPaths, JobStatus
from cluster.jobs.record_lease import RENEW_S, check_lease, take_lease
from cluster.jobs.records import read_attempts
from cluster.jobs.status import keep_last_words, words_file, write_status
from cluster.jobs.supervisor.console_times import ConsoleTimes
from cluster.recovery.history import AttemptRecord, History
from cluster.steady_time import offset_s


class LeaseHolder:
    """Holder of a job's lease, for one attempt after the other. Writes raise Fenced once another process holds it."""

    def __init__(self, paths: JobPaths, attempt: int, folder: FolderThread) -> None:
        self._paths, self._attempt, self._folder, self.process = paths, attempt, folder, this_process()
        self._words = words_file(paths)
        self._renewed, self._console_times = 0.0, ConsoleTimes(paths)
        self._history = History(
            attempts=tuple(a for a in read_attempts(paths) if a.number < attempt),
            boot=boot_id(),
            offset_s=offset_s(),
        )

    @property
    def attempts(self) -> tuple[AttemptRecord, ...]:
        """Return all attempts of the job, the oldest first."""
        return self._history.attempts

    def check(self) -> None:
        """Raise Fenced if another process holds the lease, Unanswered if the folder does not answer."""
        self._folder.do(functools.partial(self._check, self._attempt))

    def renew_if_due(self) -> None:
        """Renew the lease and log the console's size, at most every 5 s."""
        self._folder.check()
        if time.monotonic() - self._renewed > RENEW_S:
            self._renewed = time.monotonic()
            self._folder.later(functools.partial(self._take, self._attempt, self._attempt), "lease")
            self._folder.later(functools.partial(self._console_times.note, self._attempt), "console")

    def turn_to(self, attempt: int) -> None:
        """Hold the lease for this attempt from now on. Ranks of earlier attempts may not write any more."""
        self._renewed, before, self._attempt = time.monotonic(), self._attempt, attempt
        with contextlib.suppress(Unanswered):
            self._folder.do(lambda: self._take(before, attempt))

    def write(self, status: JobStatus) -> JobStatus:
        """Write the status to the job's record, or to this machine's own disk if the folder does not answer."""

        def say(attempt: int = self._attempt) -> JobStatus:
            self._check(attempt)
            return write_status(self._paths, status)

        try:
            return self._folder.do(say, "status")
        except Unanswered as e:
            return keep_last_words(self._words, self._paths, status, e)

    def keep(self, record: AttemptRecord) -> None:
        """Write an attempt's record in the background. If that fails now, the next write contains it."""
        self._history = history = self._history.with_last(record)

        def write(attempt: int = self._attempt) -> None:
            self._check(attempt)
            write_json(self._paths.attempts, dataclasses.asdict(history))

        self._folder.later(write, "attempts")

    def say(self, text: str) -> None:
        """Print a line to the attempt's console and to the supervisor's own log."""
        with contextlib.suppress(OSError):
            print(text, flush=True)
        self.say_in_console(text)

    def say_in_console(self, text: str) -> None:
        """Print a line to the attempt's console only, among the lines of the ranks."""
        console = self._paths.console(self._attempt)

        def say() -> None:
            with console.open("ab") as file:
                file.write(f"dlami: {text}\n".encode())

        self._folder.later(say)

    def _check(self, attempt: int) -> None:
        check_lease(self._paths, attempt, self.process)

    def _take(self, held: int, attempt: int) -> None:
        """Renew the lease for an attempt, the one it is held for or another. Raises Fenced if it is not held."""
        self._check(held)
        try:
            take_lease(self._paths, attempt, self.process)
        except OSError:  # the disk is full: update the old lease's date, which shows that this process lives
            with contextlib.suppress(OSError):
                os.utime(self._paths.lease)

"""An attempt's lease, held: what its supervisor says in the job's record, as long as it is the one who may.

Each word goes through the folder's thread, and is said there right after a look at the lease: one that comes late,
because the folder did not answer, is said by nobody who has lost the lease meanwhile.
"""

import contextlib
import dataclasses
import functools
import os
import time

from cluster.files import write_json
from cluster.healing.history import AttemptRecord, History
from cluster.jobs.console_times import ConsoleTimes
from cluster.jobs.folder_thread import FolderThread, Unanswered
from cluster.jobs.lease import RENEW_S, check_lease, take_lease
from cluster.jobs.lookup import read_attempts
from cluster.jobs.process import boot_id, this_process
from cluster.jobs.record import JobPaths, Status
from cluster.jobs.status import keep_last_words, words_file, write_status
from cluster.jobs.steady_time import offset_s


class Holder:
    """Holds a job's lease for one attempt after the other. What writes raises Fenced once another holds it."""

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
        """All attempts the job has had, the oldest first."""
        return self._history.attempts

    def check(self) -> None:
        """Raises Fenced unless this is still who may write for the job, Unanswered if that cannot be seen."""
        self._folder.do(functools.partial(self._check, self._attempt))

    def renew_if_due(self) -> None:
        """Say that this process lives, as often as is needed."""
        self._folder.check()
        if time.monotonic() - self._renewed > RENEW_S:
            self._renewed = time.monotonic()
            self._folder.later(functools.partial(self._take, self._attempt, self._attempt), "lease")
            self._folder.later(functools.partial(self._console_times.note, self._attempt), "console")

    def turn_to(self, attempt: int) -> None:
        """Hold it for this attempt from now on: ranks of those before must not write any more."""
        self._renewed, before, self._attempt = time.monotonic(), self._attempt, attempt
        with contextlib.suppress(Unanswered):
            self._folder.do(lambda: self._take(before, attempt))

    def write(self, status: Status) -> Status:
        """Say in the job's record how it goes; on this machine's own disk, where the folder does not answer."""

        def say(attempt: int = self._attempt) -> Status:
            self._check(attempt)
            return write_status(self._paths, status)

        try:
            return self._folder.do(say, "status")
        except Unanswered as e:
            return keep_last_words(self._words, self._paths, status, e)

    def keep(self, record: AttemptRecord) -> None:
        """Write down what is known of an attempt; what cannot be written now is with the next word."""
        self._history = history = self._history.with_last(record)

        def write(attempt: int = self._attempt) -> None:
            self._check(attempt)
            write_json(self._paths.attempts, dataclasses.asdict(history))

        self._folder.later(write, "attempts")

    def say(self, text: str) -> None:
        """A line in the console of the attempt, for whoever follows it, and for the supervisor's own log."""
        with contextlib.suppress(OSError):
            print(text, flush=True)
        self.say_in_console(text)

    def say_in_console(self, text: str) -> None:
        """The same for the console alone, among the lines of the ranks."""
        console = self._paths.console(self._attempt)

        def say() -> None:
            with console.open("ab") as file:
                file.write(f"dlami: {text}\n".encode())

        self._folder.later(say)

    def _check(self, attempt: int) -> None:
        check_lease(self._paths, attempt, self.process)

    def _take(self, held: int, attempt: int) -> None:
        """By who holds it for an attempt, for the same one or another."""
        self._check(held)
        try:
            take_lease(self._paths, attempt, self.process)
        except OSError:  # a full disk: the lease that is there says by its date that this process lives
            with contextlib.suppress(OSError):
                os.utime(self._paths.lease)

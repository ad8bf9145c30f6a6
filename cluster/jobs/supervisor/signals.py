"""Signals that end a supervisor: SIGUSR1 is sent by 'inv jobs.stop', SIGTERM by others, such as a shutdown."""

import signal
import subprocess
from types import FrameType

STOP_SIGNAL = signal.SIGUSR1


class Signals:
    """Handler for the signals that ask this process to end. The first one counts."""

    def __init__(self) -> None:
        self._first: int | None = None
        self.limit = ""  # why the supervisor itself ends the job, "" if it does not
        for number in (STOP_SIGNAL, signal.SIGTERM):
            signal.signal(number, self._note)

    @property
    def ask_to_end(self) -> bool:
        """Return True if a signal has arrived, or the supervisor ends the job at a limit."""
        return self._first is not None or bool(self.limit)

    @property
    def are_of_jobs_stop(self) -> bool:
        """Return True if the signal came from 'inv jobs.stop'."""
        return self._first == STOP_SIGNAL

    @property
    def are_of_a_shutdown(self) -> bool:
        """Return True if the signal came from this machine's shutdown, which systemd reports as "stopping"."""
        if self._first != signal.SIGTERM:
            return False
        try:
            said = subprocess.run(["systemctl", "is-system-running"], capture_output=True, text=True, timeout=5)
        except (OSError, subprocess.SubprocessError):
            return False
        return said.stdout.strip() == "stopping"

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._first = self._first or number

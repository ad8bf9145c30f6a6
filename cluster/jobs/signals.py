"""What a supervisor is told by signals: SIGUSR1 is 'inv jobs.stop', SIGTERM somebody else's wish, as a shutdown's."""

import signal
import subprocess
from types import FrameType

STOP_SIGNAL = signal.SIGUSR1


class Signals:
    """The signals that ask this process to end, noted from now on; the first one counts."""

    def __init__(self) -> None:
        self._first: int | None = None
        for number in (STOP_SIGNAL, signal.SIGTERM):
            signal.signal(number, self._note)

    @property
    def ask_to_end(self) -> bool:
        """Whether one has come."""
        return self._first is not None

    @property
    def are_of_jobs_stop(self) -> bool:
        """Whether it was 'inv jobs.stop' that sent it."""
        return self._first == STOP_SIGNAL

    @property
    def are_of_a_shutdown(self) -> bool:
        """Whether it was this machine's shutdown, as its systemd says of itself."""
        if self._first != signal.SIGTERM:
            return False
        try:
            said = subprocess.run(["systemctl", "is-system-running"], capture_output=True, text=True, timeout=5)
        except (OSError, subprocess.SubprocessError):
            return False
        return said.stdout.strip() == "stopping"

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._first = self._first or number

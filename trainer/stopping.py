"""Leaving early in good order: a signal asks, all ranks agree at a step's end, rank 0 saves, everybody leaves.

SIGUSR1 is how a stop is asked for: mpirun passes it on to its ranks and does not end itself by it, and the training
ends with 0. SIGTERM comes from somebody who knows nothing of the job, a host that shuts down or a person who ends one
rank: the training saves as well, but ends with 143, so that nobody takes it for finished. A stop that was asked for
wins over SIGTERM, which follows it where a rank takes long.

The signal of one rank is enough. A trainer carries `numbers` of every rank through a reduction that it does anyway.
"""

import enum
import json
import signal
from collections.abc import Sequence
from types import FrameType

from trainer.errors import CommonError
from trainer.ranks import GatherBytes


class Stop(enum.Enum):
    """Why the ranks leave before the last step."""

    NO = "go on"
    ASKED = "asked"
    TERMINATED = "terminated"

    @classmethod
    def of(cls, asked: float, terminated: float) -> "Stop":
        """What follows from the mean of all ranks' `StopRequest.numbers`; the same on all ranks."""
        return cls.ASKED if asked > 0 else cls.TERMINATED if terminated > 0 else cls.NO


class Terminated(CommonError):
    """SIGTERM ended the training."""

    exit_code = 128 + signal.SIGTERM


class StopRequest:
    """Remembers which of the stop signals came to this process."""

    def __init__(self) -> None:
        self._asked = self._terminated = False

    def listen(self) -> None:
        """From now on the stop signals are only remembered; for the main thread."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._note)

    @property
    def numbers(self) -> tuple[float, float]:
        """Whether a stop was asked for, and whether SIGTERM came, as numbers that can be averaged over the ranks."""
        return float(self._asked), float(self._terminated)

    def termination(self, gather: GatherBytes, hosts: Sequence[str], saved: str) -> Terminated:
        """The error to leave with after SIGTERM; all ranks must call it, when rank 0 has saved what it says it has."""
        told = gather(json.dumps(self._terminated).encode())
        where = ", ".join(f"rank {rank} ({hosts[rank]})" for rank, t in enumerate(told) if json.loads(t))
        return Terminated(f"SIGTERM came to {where}, and nobody had asked for a stop: {saved}")

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self._asked = True
        else:
            self._terminated = True

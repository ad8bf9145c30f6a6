"""Early stop of a training: after a signal, all ranks agree at the end of a step, rank 0 saves, and all ranks exit.

SIGUSR1 requests a stop: mpirun forwards it to its ranks without ending itself, and the training exits with 0. SIGTERM
comes from outside the job: from a host that shuts down, or from a person who ends one rank. The training saves as well,
but exits with 143, so that it does not count as finished. A requested stop wins over SIGTERM, which follows it where a
rank takes long.

A signal to one rank is enough. A trainer passes every rank's `numbers` through a reduction that it does anyway.
"""

import enum
import json
import signal
from collections.abc import Sequence
from types import FrameType

from trainer.common.files.errors import CommonError
from trainer.common.ranks.horovod_rank import GatherBytes


class Stop(enum.Enum):
    """Reason why the ranks exit before the last step."""

    NO = "go on"
    ASKED = "asked"
    TERMINATED = "terminated"

    @classmethod
    def of(cls, asked: float, terminated: float) -> "Stop":
        """Return the reason that follows from the mean of all ranks' `StopRequest.numbers`. It is the same on all
        ranks.
        """
        return cls.ASKED if asked > 0 else cls.TERMINATED if terminated > 0 else cls.NO


class Terminated(CommonError):
    """Error for a training that SIGTERM ended."""

    exit_code = 128 + signal.SIGTERM


class StopRequest:
    """Record of the stop signals that this process has received."""

    def __init__(self) -> None:
        self._asked = self._terminated = False

    def listen(self) -> None:
        """Install handlers that only record the stop signals. Call it in the main thread."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._note)

    @property
    def numbers(self) -> tuple[float, float]:
        """Return 1.0 or 0.0 for a requested stop, and likewise for SIGTERM, to be averaged over the ranks."""
        return float(self._asked), float(self._terminated)

    def termination(self, gather: GatherBytes, hosts: Sequence[str], saved: str) -> Terminated:
        """Return the error to exit with after SIGTERM. All ranks must call it, once rank 0 has saved.

        Args:
            saved: the part of its message about what rank 0 saved.
        """
        told = gather(json.dumps(self._terminated).encode())
        where = ", ".join(f"rank {rank} ({hosts[rank]})" for rank, t in enumerate(told) if json.loads(t))
        return Terminated(f"SIGTERM came to {where}, and nobody had asked for a stop: {saved}")

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self._asked = True
        else:
            self._terminated = True

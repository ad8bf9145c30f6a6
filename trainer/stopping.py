"""Leaving early in good order: a signal asks, all ranks agree at a step's end, rank 0 saves, everybody leaves with 0.

The request of one rank is enough. A trainer carries `requested` of every rank through a reduction it does anyway, or
asks `agreed()` between two steps.
"""

import signal
from types import FrameType

# mpirun passes SIGUSR1 on to its ranks and does not end itself by it, so that is the signal to send to mpirun.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Remembers whether this process was asked to stop."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> None:
        """From now on the stop signals only set `requested`; for the main thread."""
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True

    def agreed(self) -> bool:
        """Whether any rank was asked to stop; the same answer on all. All ranks must call it at the same step."""
        import horovod.tensorflow as hvd
        import tensorflow as tf

        # Horovod: a sum over all ranks.
        return bool(hvd.allreduce(tf.constant(int(self.requested)), op=hvd.Sum, name="stop") > 0)

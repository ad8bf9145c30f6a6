"""Timer of a step's parts, by the clock of the device that computes them."""

import time
from typing import Any

import torch


class Moments:
    """Moments of one step, by name.

    The host only queues a GPU's work. So there the moments are events in its queue, reached once all earlier work is
    done.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_queued = device.type == "cuda"
        self._at: dict[str, Any] = {}

    def note(self, name: str) -> None:
        """Record the current time, or the time at which the GPU reaches this point of its queue."""
        if self._is_queued:
            self._at[name] = torch.cuda.Event(enable_timing=True)
            self._at[name].record()
        else:
            self._at[name] = time.monotonic()

    def __contains__(self, name: str) -> bool:
        return name in self._at

    def seconds(self, first: str, then: str) -> float:
        """Return the seconds from one moment to the other. Waits until a GPU has reached the later one."""
        if not self._is_queued:
            return float(self._at[then] - self._at[first])
        self._at[then].synchronize()
        return float(self._at[first].elapsed_time(self._at[then]) / 1e3)

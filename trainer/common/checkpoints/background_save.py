"""Background checkpoints: the state is copied between two steps, and a thread writes it while training continues."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.checkpoints.checkpoint_interval import CheckpointInterval
from trainer.common.checkpoints.facts import Facts
from trainer.common.files.errors import WRITER, CommonError

POLITE = 10  # the writer's niceness: a tenth of a core that the training keeps busy, more of an idle one

State = Callable[[], dict[str, np.ndarray]]


def last_good(written: Facts | None) -> str:
    """Return the sentence on the checkpoint to go back to once weights or losses are no numbers."""
    return f"the newest checkpoint is of step {written.step}" if written else "no checkpoint was written before"


class Saver:
    """Writer of one folder's checkpoints, one at a time. Memory holds at most one copy of the state.

    Unless the process is killed, it waits for a started checkpoint before it exits (`errors.entry`).

    Args:
        keep: newest checkpoints that stay.
        seconds: between two checkpoints by time, for `CheckpointInterval`.
        cores: of this rank; the writer's computing takes time from the training on one of them.
        rate: what the operator calls the learning rate.
        found: the checkpoint that the training begins with.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        *,
        keep: int,
        seconds: float | None,
        cores: int,
        rate: str,
        found: Facts | None = None,
    ) -> None:
        self.folder, self._keep, self._cores, self._rate = folder, keep, cores, rate
        self.pace = CheckpointInterval(seconds)
        self.written = found  # the last that is complete on disk
        self.step = found.step if found else None  # of the last checkpoint started
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._has_told = False

    @property
    def is_due(self) -> bool:
        """Return True if the next checkpoint by time is due and none is being written."""
        return self._thread is None and self.pace.is_due

    def save(self, step: int, state: State, more: Mapping[str, Any]) -> None:
        """Copy the state and start to write it, unless this step is written already. Waits for the previous checkpoint.

        Raises:
            TrainerError: the previous checkpoint could not be written.
        """
        if step == self.step:
            return
        began = time.monotonic()
        self.wait()
        self.pace.begin()
        arrays, self.step = state(), step
        held_up_s = time.monotonic() - began
        self._thread = threading.Thread(target=self._write, args=(step, arrays, more, held_up_s), name=WRITER)
        self._thread.start()

    def look(self) -> None:
        """Detect that the writer thread has finished.

        Raises:
            TrainerError: the checkpoint could not be written.
        """
        if self._thread and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait until the pending checkpoint is on disk.

        Raises:
            TrainerError: it could not be written.
        """
        if self._thread:
            self._thread.join()
            self._thread = None
        if self._failure:
            failure, self._failure = self._failure, None
            raise failure

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Context whose checkpoint is written to disk on exit.

        Waits on entry for the previous one, so that none is skipped.

        Raises:
            TrainerError: this checkpoint, or the previous one, could not be written.
        """
        self.wait()
        yield
        self.wait()

    def _write(self, step: int, arrays: dict[str, np.ndarray], more: Mapping[str, Any], held_up_s: float) -> None:
        began = time.monotonic()
        try:
            with contextlib.suppress(OSError):  # a sandbox may forbid it
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), POLITE)
            self._refuse_no_numbers(step, arrays)
            self.written = self.folder.save(step, arrays, more)
            self.folder.keep_newest(self._keep)
            self.pace.learn(held_up_s + time.thread_time() / self._cores)
            self._tell_if_slow(step, time.monotonic() - began)
        except BaseException as e:  # raised later in the training thread, by `wait`
            self._failure = e

    def _tell_if_slow(self, step: int, taken_s: float) -> None:
        if taken_s > self.pace.interval_s > 0 and not self._has_told:
            self._has_told = True
            print(
                f"warning: the checkpoint of step {step} took {taken_s:.0f} s to write, so they come less often than "
                f"every {self.pace.interval_s:.0f} s: {self.folder.path} is slow",
                file=sys.stderr,
                flush=True,
            )

    def _refuse_no_numbers(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise CommonError(
                    f"{name} holds values that are no numbers after step {step - 1}: lower {self._rate} or warm up "
                    f"longer; {last_good(self.written)}"
                )

"""Runs a trainer that is interrupted at a certain moment: `interrupted.py HOW MODULE FLAGS…`.

HOW is `stop`: after the line of step 2 it is asked to stop, through mpirun if there is one, and goes on when it has
heard. Or `terminate`: SIGTERM comes to the last rank alone before its third step. Or `kill:N`: SIGKILL comes to it
before its step N. Or `tear`: it dies when half of its first checkpoint is written. A test that watched from outside and
sent signals would come too late on a busy machine.
"""

import io
import os
import runpy
import signal
import sys
import time
from typing import Any

from trainer.common.checkpoints import npz_writer
from trainer.common.ranks.metrics import MetricsWriter
from trainer.common.ranks.stopping import StopRequest

STEP, LIMIT_S = 2, 300
heard = False
note, write, numbers = StopRequest._note, MetricsWriter.write, StopRequest.numbers
write_arrays = npz_writer.write
asked = 0


def hear(self: Any, number: Any, frame: Any) -> None:
    """The trainer's own answer to the signal; that it came is remembered."""
    global heard
    heard = True
    note(self, number, frame)


def write_and_ask(self: Any, kind: Any, step: Any, values: Any) -> None:
    """Writes the record; after that of the step somebody asks the training to stop."""
    write(self, kind, step, values)
    if (kind, step) != ("train", STEP):
        return
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        os.kill(os.getppid(), signal.SIGUSR1)
    else:
        os.kill(os.getpid(), signal.SIGUSR1)
    wait_until_heard()


def wait_until_heard() -> None:
    """Returns when the trainer has noted the signal."""
    deadline = time.monotonic() + LIMIT_S
    while not heard:
        assert time.monotonic() < deadline, "the signal did not come"
        time.sleep(0.01)


def asked_for(times: int) -> bool:
    """Whether this is the last rank, and its stop request is read so often by now, once a step."""
    global asked
    asked += 1
    rank, size = (
        int(os.environ.get(f"OMPI_COMM_WORLD_{name}", default)) for name, default in (("RANK", 0), ("SIZE", 1))
    )
    return asked == times and rank == size - 1


def tell_and_die(self: Any) -> Any:
    """What this rank tells the others; before its step N it is gone, if it is the last rank."""
    if asked_for(int(how.partition(":")[2])):
        os.kill(os.getpid(), signal.SIGKILL)
    return numbers.fget(self)  # type: ignore[attr-defined]


def tell_and_terminate(self: Any) -> Any:
    """What this rank tells the others; before the third time SIGTERM comes to it, if it is the last rank."""
    if asked_for(STEP + 1):
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until_heard()
    return numbers.fget(self)  # type: ignore[attr-defined]


def save_half(file: Any, arrays: Any) -> None:
    """Half of the file reaches the disk, then the process is gone."""
    whole = io.BytesIO()
    write_arrays(whole, arrays)
    file.write(whole.getvalue()[: whole.tell() // 2])
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)


how, sys.argv = sys.argv[1], sys.argv[2:]
if how == "stop":
    StopRequest._note, MetricsWriter.write = hear, write_and_ask  # type: ignore[method-assign]
elif how == "terminate":
    StopRequest._note, StopRequest.numbers = hear, property(tell_and_terminate)  # type: ignore[assignment,method-assign]
elif how.startswith("kill:"):
    StopRequest.numbers = property(tell_and_die)  # type: ignore[assignment,method-assign]
else:
    npz_writer.write = save_half  # type: ignore[assignment]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

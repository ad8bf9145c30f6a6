"""Runs a trainer that is interrupted at a certain moment: `interrupted.py HOW MODULE FLAGS…`.

HOW is `stop`: after the line of step 2 it is asked to stop, through mpirun if there is one, and goes on when it has
heard. Or `tear`: it dies when half of its first checkpoint is written. A test that watched from outside and sent
signals would come too late on a busy machine.
"""

import io
import os
import runpy
import signal
import sys
import time

import numpy as np

from trainer.metrics import Writer
from trainer.stopping import StopRequest

STEP, LIMIT_S = 2, 120
heard = False
note, write, savez = StopRequest._note, Writer.write, np.savez


def hear(self, number, frame):
    """The trainer's own answer to the signal; that it came is remembered."""
    global heard
    heard = True
    note(self, number, frame)


def write_and_ask(self, kind, step, values):
    """Writes the record; after that of the step somebody asks the training to stop."""
    write(self, kind, step, values)
    if (kind, step) != ("train", STEP):
        return
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        os.kill(os.getppid(), signal.SIGUSR1)
    else:
        os.kill(os.getpid(), signal.SIGTERM)
    deadline = time.monotonic() + LIMIT_S
    while not heard:
        assert time.monotonic() < deadline, "the signal did not come"
        time.sleep(0.01)


def save_half(file, **arrays):
    """Half of the file reaches the disk, then the process is gone."""
    whole = io.BytesIO()
    savez(whole, **arrays)
    file.write(whole.getvalue()[: whole.tell() // 2])
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)


how, sys.argv = sys.argv[1], sys.argv[2:]
if how == "stop":
    StopRequest._note, Writer.write = hear, write_and_ask
else:
    np.savez = save_half
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

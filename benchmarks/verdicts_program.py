"""A program without heartbeats that hangs, or looks so: `python verdicts_program.py CASE` as a rank with PyTorch."""

import contextlib
import ctypes
import os
import pathlib
import queue
import signal
import sys
import tempfile
import threading
import time

FAULT_STEP = 8
_LONG_S = 60.0  # of the healthy programs that look like a hang


def _stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _native() -> None:
    """Holds the interpreter's lock in a C function that does not return."""
    ctypes.PyDLL(None).sleep(100_000)


def _locked() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _barrier() -> None:
    import torch.distributed as dist

    dist.barrier()


def _swallowed() -> None:
    """An exception that is caught sends one rank past the collective, to the end."""
    with contextlib.suppress(RuntimeError):
        raise RuntimeError("a batch is damaged")
    _barrier()


# Case -> rank that is at fault, and what it does. The others continue with the next all-reduce.
HANGS = {
    "sleeping rank": (1, lambda: time.sleep(100_000)),
    "stopped rank": (2, _stopped),
    "native code": (1, _native),
    "endless loop": (1, lambda: [None for _ in iter(int, 1)]),
    "lock": (4, _locked),
    "dead data loader": (1, lambda: queue.Queue().get()),
    "swallowed exception": (3, _swallowed),
    "uneven last batch": (5, _barrier),
    "evaluation on rank 0": (0, _barrier),
}


def _computes_long() -> None:
    until = time.monotonic() + _LONG_S
    while time.monotonic() < until:
        sum(x * x for x in range(100_000))


def _reads_long() -> None:
    until = time.monotonic() + _LONG_S
    with tempfile.NamedTemporaryFile() as file:
        while time.monotonic() < until:
            file.seek(0)
            file.write(bytes(1 << 20))
            file.flush()
            pathlib.Path(file.name).read_bytes()
            time.sleep(0.2)


def _slow() -> None:
    until = time.monotonic() + _LONG_S
    while time.monotonic() < until:
        time.sleep(0.3)
        sum(range(1000))


HEALTHY = {
    "long evaluation": (0, _computes_long),
    "reading for long": (1, _reads_long),
    "slow rank": (2, _slow),
}


def main(case: str) -> None:
    """Steps, one of which is the fault's."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    faulty, fault = (HANGS | HEALTHY)[case]
    numbers = torch.ones(1000)
    for step in range(200 if case in HEALTHY else 1_000_000):
        if rank == 0 and step <= FAULT_STEP:
            print("step", step, flush=True)
        if step == FAULT_STEP and rank == faulty:
            fault()
        dist.all_reduce(numbers)
        numbers /= size
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1])

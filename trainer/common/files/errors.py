"""Errors that the user can act on. Each ends the program with one line on stderr and an exit code."""

import functools
import os
import sys
import threading
from collections.abc import Callable, Sequence

WRITER = "checkpoint"  # name of the thread that a process waits for before it exits
WRITER_S = 60.0  # at most: writes to a lost shared folder never return


class TrainerError(Exception):
    """Expected failure. Its text gives what happened, where, and what to do next. Never shown with a traceback."""

    exit_code = 1


class CommonError(TrainerError):
    """Error that every rank finds alike, so only rank 0 prints it."""


class ConfigError(CommonError):
    """Error for flags or data that cannot be used. Nothing has been changed."""

    exit_code = 2


def mpi_rank() -> int:
    """Return this process's rank from mpirun's or torchrun's variables, else 0. Works before a framework is loaded."""
    return next((int(os.environ[n]) for n in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK") if n in os.environ), 0)


def report(error: TrainerError) -> None:
    """Print the error as one line on stderr. Only rank 0 prints a CommonError."""
    rank = mpi_rank()
    if rank == 0:
        print(f"error: {error}", file=sys.stderr, flush=True)
    elif not isinstance(error, CommonError):
        print(f"error on rank {rank}: {error}", file=sys.stderr, flush=True)


def entry(body: Callable[[Sequence[str]], None]) -> Callable[..., int]:
    """Wrap a program's `main`: a `TrainerError` becomes one line and its exit code. Bugs keep their traceback.

    Among several ranks the process then exits at once, without shutting down Horovod. The other ranks are waiting in a
    reduction that this one will not join, and mpirun ends them when it sees the exit code.
    """

    @functools.wraps(body)
    def main(argv: Sequence[str] | None = None) -> int:
        try:
            body(sys.argv[1:] if argv is None else argv)
        except TrainerError as e:
            report(e)  # first: mpirun may end this process while it waits
            for thread in threading.enumerate():
                if thread.name == WRITER:
                    thread.join(WRITER_S)
            if "OMPI_COMM_WORLD_SIZE" in os.environ or "WORLD_SIZE" in os.environ:
                sys.stdout.flush()
                os._exit(e.exit_code)
            return e.exit_code
        return 0

    return main

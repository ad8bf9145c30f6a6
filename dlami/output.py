"""What happens when nobody takes what the command line says: a pipe that was closed, a disk that is full."""

import atexit
import os
import sys
from types import TracebackType

from cluster.commandline.command import flush_output, unwritten


def install() -> None:
    """From now on that is an exit code and at most a line, and no traceback."""
    sys.excepthook = _end
    atexit.register(_write_the_rest)


def _end(kind: type[BaseException], e: BaseException, trace: TracebackType | None) -> None:
    if isinstance(e, OSError):
        _leave(e)
    sys.__excepthook__(kind, e, trace)


def _write_the_rest() -> None:
    try:
        flush_output()
    except OSError as e:
        _leave(e)


def _leave(e: OSError) -> None:
    end = unwritten(e)
    if end is None:
        return
    if end.message:
        print(end.message, file=sys.stderr)
    os._exit(end.code)

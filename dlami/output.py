"""Output of the command line: control characters are filtered, and a closed pipe or full disk gives no traceback."""

import atexit
import io
import os
import sys
from types import TracebackType

from cluster.printable import Sentences
from dlami.tasks.command import flush_output, unwritten


def install() -> None:
    """Filter the text of stdout and stderr, and turn a closed pipe or a full disk into an exit code."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, Sentences(stream))
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

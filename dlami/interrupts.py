"""Handling of Ctrl-C before a task begins and after it has ended: a message and an exit code, as during a task."""

import os
import signal
import sys
from pathlib import Path
from types import FrameType

INTERRUPTED = 130
_COMMANDS = ("inv", "invoke", "dlami")


def install() -> None:
    """Make Ctrl-C exit at once until a task begins. Nothing has been changed by then, so nothing needs clean-up.

    Applies only inside the command itself, and not if its caller made it ignore Ctrl-C.
    """
    is_the_command = Path(sys.argv[0]).name in _COMMANDS
    if is_the_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)

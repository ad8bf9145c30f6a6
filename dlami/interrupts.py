"""Ctrl-C before a task begins, and after it has ended: a word and an exit code, as during one."""

import os
import signal
import sys
from pathlib import Path
from types import FrameType

INTERRUPTED = 130
_COMMANDS = ("inv", "invoke", "dlami")


def install() -> None:
    """Until a task takes over nothing has been changed, so there is nothing to clean up.

    Only in the command itself, and not where whoever started it had Ctrl-C ignored.
    """
    is_the_command = Path(sys.argv[0]).name in _COMMANDS
    if is_the_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)

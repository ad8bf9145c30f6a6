"""Standard streams that the caller of the command has closed (`2>&-`)."""

import os
import sys


def open_closed_streams() -> None:
    """Open closed standard streams on /dev/null.

    Otherwise the next opened file would get their number, and printing to None would fail.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:  # a lower number was free too
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            stream = open(number, mode, closefd=False)  # noqa: SIM115 - it stays open until the command ends
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

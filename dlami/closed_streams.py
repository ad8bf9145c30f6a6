"""Standard streams that whoever started the command has closed (`2>&-`)."""

import os
import sys


def open_closed_streams() -> None:
    """Open closed standard streams on /dev/null: else the next file gets their number, and a print to None fails."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:  # a lower one was free as well, and is this one's turn later or has been
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            stream = open(number, mode, closefd=False)  # noqa: SIM115 - it stays open until the command ends
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

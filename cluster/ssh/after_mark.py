"""Runs a command, and passes on what it prints once it has printed the mark: what a shell said before is dropped.

Between rsync and its ssh: rsync takes every byte that comes for its own protocol. Run as a script, with no imports
of ours: `python after_mark.py WORD…`, with the remote command begun by `PRINT_MARK`.
"""

import os
import subprocess
import sys
from typing import IO

_MARK = b"\x1edlami-here\n"
PRINT_MARK = r"printf '\036dlami-here\n'"
_CHUNK = 1 << 16


def main(words: list[str]) -> int:
    """The command's exit code."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, bufsize=0) as command:
        assert command.stdout
        rest = _past_mark(command.stdout)
        while rest:
            sys.stdout.buffer.write(rest)
            sys.stdout.buffer.flush()
            rest = os.read(command.stdout.fileno(), _CHUNK)
        return command.wait()


def _past_mark(output: IO[bytes]) -> bytes:
    """What comes after the mark, at least a byte of it; nothing if there is none."""
    seen = b""
    while more := os.read(output.fileno(), _CHUNK):
        seen += more
        _, mark, rest = seen.partition(_MARK)
        if mark and rest:
            return rest
        seen = seen[-2 * len(_MARK) :]
    return b""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Filter between rsync and its ssh: runs a command, and passes on its output after the mark.

Drops what a shell's start-up file prints before the mark. rsync takes every byte that arrives for its own protocol.

Run as a script, without imports of this project: `python rsync_filter.py WORD…`. The remote command begins with
`PRINT_MARK`.
"""

import os
import select
import subprocess
import sys
from typing import IO

_MARK = b"\x1edlami-here\n"
PRINT_MARK = r"printf '\036dlami-here\n'"
_CHUNK = 1 << 16


def main(words: list[str]) -> int:
    """Run the command, and copy its output after the mark to stdout. Return its exit code."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, bufsize=0) as command:
        assert command.stdout
        rest = _past_mark(command.stdout)
        while rest:
            _pass_on(rest)
            rest = os.read(command.stdout.fileno(), _CHUNK)
        return command.wait()


def _pass_on(data: bytes) -> None:
    """Write all of it to stdout, which rsync has set not to block."""
    stdout, rest = sys.stdout.fileno(), memoryview(data)
    while rest:
        try:
            rest = rest[os.write(stdout, rest) :]
        except BlockingIOError:
            select.select([], [stdout], [])


def _past_mark(output: IO[bytes]) -> bytes:
    """Return the first bytes after the mark, at least one. Return nothing if the output ends before."""
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

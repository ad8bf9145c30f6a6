"""Task names in output: `dlami TASK` instead of `inv TASK` if the installed command prints them."""

import re
import sys
from collections.abc import Iterable
from typing import TextIO

_INV = re.compile(r"\binv (?=([a-z][a-z0-9]*(?:[.-][a-z0-9]+)*))")


def name_dlami(tasks: Iterable[str]) -> None:
    """Make printed text name tasks as `dlami TASK`. Bytes of other programs are unchanged."""
    words = {name for task in tasks for name in (task, task.partition(".")[0])}
    for stream in (sys.stdout, sys.stderr):
        if stream:
            _name_in(stream, words)


def _name_in(stream: TextIO, words: set[str]) -> None:
    write = stream.write

    def written(text: str) -> int:
        write(_INV.sub(lambda found: "dlami " if found[1] in words else found[0], text))
        return len(text)

    stream.write = written  # type: ignore[method-assign]

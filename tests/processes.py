"""Programs that a test starts and that end with it, also where it fails."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def begun(words: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """A program with `subprocess.Popen`'s options, which is killed at the end: nobody waits for what never ends."""
    with subprocess.Popen(words, **options) as process:
        try:
            yield process
        finally:
            process.kill()

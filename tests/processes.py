"""Programs that a test starts and that end with it, also where it fails."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import wait_for

SHEBANG = f'#!/usr/bin/env -S "{sys.executable}"\n'
"""The first line of a program for this Python, whose path may have a blank, which a `#!` of its own cannot."""


@contextmanager
def begun(words: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """A program with `subprocess.Popen`'s options, which is killed at the end: nobody waits for what never ends."""
    with subprocess.Popen(words, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_it_is(program: str, pid: int) -> None:
    """Until a shell has become this by `exec`: in the middle of that a process has neither words nor variables."""

    def has_become() -> bool:
        of_process = Path(f"/proc/{pid}")
        words = (of_process / "cmdline").read_bytes().split(b"\0")
        return words[0] == program.encode() and bool((of_process / "environ").read_bytes())

    wait_for(has_become, 30, f"process {pid} is {program}")

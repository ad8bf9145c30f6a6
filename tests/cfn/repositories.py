"""Git, as an operator has it."""

import subprocess
from pathlib import Path

from tests.conftest import PATIENCE_S


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    ).stdout.strip()

"""The command line of an operator of a fake AWS."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import PATIENCE_S

ROOT = Path(__file__).parents[2]


def inv(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One task; without a terminal on its stdin."""
    code = "import sys; sys.argv[0] = 'inv'; from invoke.main import program; program.run()"
    return subprocess.run(
        [sys.executable, "-c", code, "--search-root", str(ROOT), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
        env=dict(os.environ),
        check=False,
    )

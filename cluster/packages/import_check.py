"""Check before any rank starts that a program can start: its command, its script and its modules exist."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.packages.command_parser import what_runs
from cluster.packages.interpreter import Interpreter

_CHECK_S = 60.0
_MOST_NAMES = 6
_IMPORTS = Path(__file__).parent / "onhost/imports.py"


def trouble(words: Sequence[str], folder: Path, interpreter: Interpreter | None, variables: Mapping[str, str]) -> str:
    """Return why these words cannot start in this folder of the master; "" if no reason is known.

    variables: further ones of the program's ranks.
    """
    if not folder.is_dir():
        return f"{folder} is not on the master: the program runs in that folder on every host"
    own = dict(interpreter.variables) if interpreter else {}
    # Without its own environment, the program gets the project's
    first = own.pop("PATH", str(Path(sys.executable).parent))
    path = os.pathsep.join([first, variables.get("PATH") or os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, **own, **variables, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    prefix = interpreter.prefix if interpreter else ()
    of = f" of {interpreter.wanted.option}" if interpreter else ", which is the project's own"
    if not prefix and not _command(words[0], folder, environment["PATH"]):
        return f"{words[0]}: there is no such command on the master, nor in the program's environment{of}"
    asked = what_runs(words)
    if not asked:
        return ""
    python, program = asked
    if not prefix and "script" in program and not (folder / program["script"]).exists():
        return (
            f"{program['script']}: there is no such file in the program's folder on the master, {folder}; what git "
            "does not track goes along with --include"
        )
    given = json.dumps({**program, "own": str(folder)})
    check = [*prefix, *python, "-c", _IMPORTS.read_text(), given]
    try:
        done = subprocess.run(
            check,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_CHECK_S,
            stdin=subprocess.DEVNULL,
        )
        missing = json.loads(done.stdout)["missing"]
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError, KeyError):
        return ""  # an inconclusive check: errors will show when the ranks start
    return sentence(missing, of)


def sentence(missing: Mapping[str, str], where: str) -> str:
    """Return the message on missing modules, given by name with the file that imports each."""
    if not missing:
        return ""
    at = [f"{name} ({path})" if path else name for name, path in sorted(missing.items())]
    at = [*at[:_MOST_NAMES], f"{len(at) - _MOST_NAMES} more"] if len(at) > _MOST_NAMES else at
    is_one = len(at) == 1
    return (
        f"the program imports {', '.join(at)}, which {'is' if is_one else 'are'} not in its environment{where}: "
        f"add {'it' if is_one else 'them'} to what --requirements names, or give the environment that has "
        f"{'it' if is_one else 'them'} with --venv or --conda"
    )


def _command(word: str, folder: Path, path: str) -> bool:
    """Return True if a shell would find the command in this folder with this PATH."""
    if os.sep in word:
        return os.access(folder / word, os.X_OK)
    return shutil.which(word, path=path) is not None

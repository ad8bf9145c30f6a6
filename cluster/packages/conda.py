"""Conda environment by name: its folder, and the variables that activating it would set."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cluster.errors import ConfigError
from cluster.ssh.limits import check_environment

_HOMES = tuple(
    f"{above}/{name}"
    for above in ("~", "/opt")
    for name in ("miniforge3", "mambaforge", "miniconda3", "anaconda3", "conda")
)
_ACTIVATE_S = 60.0
_THEN = "dlami: activated"
# Variables of the activating shell, or useless to a rank.
_NOT_OURS = ("_", "SHLVL", "PWD", "OLDPWD", "PS1", "CONDA_PROMPT_MODIFIER")


def conda_variables(name: str) -> dict[str, str]:
    """Return the variables that activating the environment changes on this machine; CONDA_PREFIX is its folder.

    Raises ConfigError if conda or the environment is missing.
    """
    conda = find_conda()
    if not conda:
        raise ConfigError(
            f"--conda {name}: there is no conda on the master (looked for on PATH, in the home folder and in /opt)"
        )
    said = shlex.join([conda, "shell.posix", "activate", name])
    script = f"said=$({said}) && env -0 && printf '{_THEN}\\0' && eval \"$said\" && exec env -0"
    try:
        done = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, timeout=_ACTIVATE_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--conda {name}: {conda} did not say how to activate it within {_ACTIVATE_S:g} s") from None
    if done.returncode:
        why = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise ConfigError(f"--conda {name}: {conda} on the master: {why[0] if why else f'exited {done.returncode}'}")
    before, _, after = done.stdout.partition(f"{_THEN}\0")
    changed = changes(_variables(before), _variables(after))
    if not Path(changed.get("CONDA_PREFIX", "")).is_absolute():
        raise ConfigError(f"--conda {name}: activating it sets no CONDA_PREFIX: is it a name of '{conda} env list'?")
    check_environment([f"{name}={value}" for name, value in changed.items()])  # ranks get them by a command line
    return changed


def _variables(listed: str) -> dict[str, str]:
    return dict(pair.partition("=")[::2] for pair in listed.split("\0") if "=" in pair)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return the new and changed variables, without the shell's own; of PATH only the new folders."""
    changed = {k: v for k, v in after.items() if before.get(k) != v and k.isidentifier() and k not in _NOT_OURS}
    if "PATH" in changed:
        known = before.get("PATH", "").split(os.pathsep)
        changed["PATH"] = os.pathsep.join(f for f in changed["PATH"].split(os.pathsep) if f not in known)
    return changed


def find_conda() -> str | None:
    """Return the path of conda. Its installers' folders are searched, too: not every session has them on PATH."""
    given = os.environ.get("CONDA_EXE", "")
    if given and os.access(given, os.X_OK):
        return given
    own = os.pathsep.join(f"{Path(home).expanduser()}/bin" for home in _HOMES)
    return shutil.which("conda") or shutil.which("conda", path=own)

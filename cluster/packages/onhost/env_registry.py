"""Registry of the environments on a host's own disk: which are complete, and the steps of copying one here.

Each folder has a record beside it, `ID.json`. An environment is complete only if its record says so. The record's
modification time is when the environment was last used here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from typing import Any

from cluster.ssh.onhost.frame import say

_START_S = 20.0  # for an interpreter to print its version on a busy host
_VERSION = "import sys; print(sys.version)"
IMAGE = "image.sif"  # the only file of a container's environment


def record_of(place: str, name: str) -> str:
    """Return the path of an environment's record."""
    return os.path.join(place, f"{name}.json")


def read_record(place: str, name: str) -> dict[str, Any]:
    """Return the record of an environment; {} without one."""
    try:
        with open(record_of(place, name)) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_record(place: str, name: str, record: dict[str, Any]) -> None:
    """Write the record atomically."""
    handle, temporary = tempfile.mkstemp(dir=place, prefix=f".{name}")
    with os.fdopen(handle, "w") as file:
        json.dump(record, file)
    os.replace(temporary, record_of(place, name))


def trouble(folder: str, python: str) -> str:
    """Return why an environment's folder cannot be used; "" if it can. python: the version that it was made with."""
    if os.path.exists(os.path.join(folder, IMAGE)):
        return ""
    interpreter = os.path.join(folder, "bin", "python")
    if not os.path.exists(interpreter):
        aims = os.path.realpath(interpreter)
        return f"{aims}, which it is made of, is not here" if os.path.lexists(interpreter) else f"{folder} is not here"
    try:
        words = [interpreter, "-I", "-S", "-c", _VERSION]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_START_S)
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"{interpreter} does not run: {getattr(e, 'strerror', None) or f'no word within {_START_S:g} s'}"
    said = done.stdout.strip()
    if done.returncode or (python and said != python):
        return f"its Python is {_short(said) or 'broken'}, and {_short(python)} on the master"
    return ""


def is_complete(place: str, name: str, build: str, python: str, changes: bool) -> dict[str, Any]:
    """Return under `there` whether this build of an environment is complete here.

    If it is not, and `changes` is set, prepare its folder and record for a copy.
    """
    folder, record = os.path.join(place, name), read_record(place, name)
    if record.get("build") == build and record.get("whole") and not trouble(folder, python):
        with contextlib.suppress(OSError):
            os.utime(record_of(place, name))
        return {"there": True}
    if changes:
        os.makedirs(place, mode=0o700, exist_ok=True)
        if record.get("build") != build:  # an interrupted copy of the same build is resumed
            clear(place, name)
        os.makedirs(folder, exist_ok=True)
        write_record(place, name, {"build": build, "whole": False})
    return {"there": False}


def declare(place: str, name: str, record: dict[str, Any]) -> dict[str, Any]:
    """Mark the copied environment as complete, unless its interpreter does not run here."""
    why = trouble(os.path.join(place, name), record.get("python", ""))
    if not why:
        write_record(place, name, dict(record, whole=True))
    return {"there": not why, "why": why}


def clear(place: str, name: str) -> None:
    """Remove an environment; its record goes first, so that a partial folder never counts as complete."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(record_of(place, name))
    shutil.rmtree(os.path.join(place, name), ignore_errors=True)


def listed(place: str) -> list[dict[str, Any]]:
    """Return every environment here, incomplete ones included."""
    found = []
    for entry in sorted(os.scandir(place), key=lambda e: e.name) if os.path.isdir(place) else ():
        if entry.is_dir(follow_symlinks=False):
            record = read_record(place, entry.name)
            record.pop("python", None)
            used = _time_of(record_of(place, entry.name)) or _time_of(entry.path)
            size = _size_of(entry.path)
            found.append(dict(record, id=entry.name, whole=bool(record.get("whole")), bytes=size, idle_s=_since(used)))
    return found


def main(verb: str, place: str, *rest: Any) -> None:
    """Run one verb and send the answer."""
    place = os.path.expanduser(place)
    if verb == "look":
        name, build, python, changes = rest
        say(is_complete(place, name, build, python, changes))
    elif verb == "declare":
        say(declare(place, *rest))
    elif verb == "list":
        say(listed(place))
    elif verb == "remove":
        for name in rest[0]:
            clear(place, name)
        say({"left": [name for name in rest[0] if os.path.lexists(os.path.join(place, name))]})
    elif verb == "folder":  # the operator's own environment: place is a venv or a conda environment
        say({"why": trouble(place, rest[0])})


def _size_of(folder: str) -> int:
    size = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(above, name)).st_blocks * 512
    return size


def _time_of(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _since(at: float) -> float:
    return round(max(0.0, time.time() - at), 1)


def _short(version: str) -> str:
    return version.split(" ")[0]

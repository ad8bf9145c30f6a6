"""Programs that run as another user, wherever this checkout, its interpreter and the temporary folder lie.

All three may lie below a home that is closed to others. A test whose subject is something else than file permissions runs
`words_as`, whose user may read everything. A test of file permissions runs a copy of the sources in an `open_folder`.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.inventory import ROOT

NOBODY = 65534
_READS_ALL = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


def words_as(user: int) -> list[str]:
    """Return the words before a command that make it run as this user, who may enter and read every folder."""
    words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *_READS_ALL]
    if subprocess.run([*words, "true"], capture_output=True, timeout=60).returncode:
        pytest.skip("this container's root may not enter closed folders: start it with CAP_DAC_READ_SEARCH")
    return words


@contextmanager
def home_of(user: int) -> Iterator[Path]:
    """Make a folder that is this user's own, and remove it afterwards."""
    with tempfile.TemporaryDirectory() as home:
        if os.geteuid() == 0:
            os.chown(home, user, user)
        yield Path(home)


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that every user may enter, read and write, and remove it afterwards."""
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")]
    place = next((p for p in places if p.is_dir() and os.access(p, os.W_OK) and is_open(p)), None)
    if place is None:
        pytest.skip("this machine has no temporary folder that other users may enter")
    with tempfile.TemporaryDirectory(prefix="dlami-open-", dir=place) as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def is_open(folder: Path) -> bool:
    """Return True if every user may pass to this folder."""
    return all(p.stat().st_mode & stat.S_IXOTH for p in (folder.resolve(), *folder.resolve().parents))


def copy_sources(to: Path) -> Path:
    """Copy the packages of the checkout there, readable to every user. Return the folder to start Python in."""
    for package in ("cluster", "dlami", "trainer"):
        shutil.copytree(ROOT / package, to / package, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (to / package, *(to / package).rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
    return to


def python_of_all(sources: Path, module: str) -> str:
    """Return a Python that every user may run and that imports this module of the copied sources, or skip the test."""
    for python in (sys.executable, "/usr/bin/python3"):
        if not Path(python).exists() or not is_open(Path(python).parent) or not is_open(Path(python).resolve().parent):
            continue
        tried = subprocess.run([python, "-B", "-c", f"import {module}"], cwd=sources, capture_output=True, timeout=300)
        if tried.returncode == 0:
            return python
    pytest.skip("no Python here that another user could run")

"""Project files in the layout of a checkout, even if only the package is installed."""

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cluster import scratch
from cluster.files import IS_CHECKOUT, shipped
from cluster.locate import ROOT

_PACKAGES = ("cfn", "cluster", "dlami", "eks", "lab", "trainer")
_SHIPPED = "shipped"  # the folder of `dlami` for files that are beside the packages in a checkout


@contextlib.contextmanager
def project_folder() -> Iterator[Path]:
    """Yield a folder with the project's files: the checkout, or a temporary one made of the installed package."""
    if IS_CHECKOUT:
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="project-", dir=scratch.folder()) as name:
        assemble(Path(name))
        yield Path(name)


def assemble(folder: Path) -> None:
    """Copy the installed package into a folder in a checkout's layout: packages, `scripts/`, `tasks.py`, lock file."""
    for package in _PACKAGES:
        left_out = shutil.ignore_patterns("__pycache__", "*.pyc", *([_SHIPPED] if package == "dlami" else []))
        shutil.copytree(ROOT / package, folder / package, ignore=left_out, dirs_exist_ok=True)
    compiled = shutil.ignore_patterns("__pycache__")
    shutil.copytree(shipped("tasks.py").parent, folder, ignore=compiled, dirs_exist_ok=True)
    for script in (folder / "scripts").glob("*.sh"):
        script.chmod(0o755)  # not every installer keeps that


def assemble_with_environment(folder: Path) -> None:
    """Assemble the project in a folder with this interpreter's environment as its `.venv`.

    This is for hosts that see this machine's files.
    """
    folder.mkdir()
    assemble(folder)
    if sys.prefix != sys.base_prefix:
        (folder / ".venv").symlink_to(sys.prefix)
        return
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").symlink_to(sys.executable)

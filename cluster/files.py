"""Atomic writes of files, and paths of files that are installed with the package."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

_TOP = Path(__file__).resolve().parent.parent
IS_CHECKOUT = (_TOP / "tasks.py").exists()
"""True in a checkout of the project, False in an installed package."""


def shipped(name: str) -> Path:
    """Return the path of a project file that is no module, such as `scripts/first-boot.sh`.

    It is in the checkout, or where the package installed it.
    """
    return _TOP / name if IS_CHECKOUT else _TOP / "dlami/shipped" / name


def write_atomically(path: Path, text: str, *, mode: int = 0o644, durable: bool = True) -> None:
    """Replace `path` with `text`, so that a reader sees the old file or the new one, never a part.

    durable: it is on disk when this returns; else a crash of the machine may lose it.
    """
    import tempfile  # imported here: every task imports this module, few write

    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    """Replace `path` with `value` as JSON."""
    write_atomically(path, json.dumps(value, indent=2) + "\n", mode=mode)

"""Files that are whole or not there: written beside their place, flushed to disk, renamed into it."""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace `path` with `text`, so that a reader sees the old file or the new one, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    """Replace `path` with `value` as JSON."""
    write_atomically(path, json.dumps(value, indent=2) + "\n", mode=mode)

"""Access to files that others made on a host: reads them, and replaces them atomically. Runs on every host."""

from __future__ import annotations

import os
import tempfile


def read(path: str) -> str:
    """Return a file's text with every byte preserved; "" if it is missing."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def write(path: str, text: str, mode: int = 0o600) -> bool:
    """Replace a file atomically and return True if it changed. Links are followed.

    An existing file keeps its mode; a new one gets `mode`.
    """
    path = os.path.realpath(path)
    if os.path.exists(path) and read(path) == text:
        return False
    if os.path.exists(path):
        mode = os.stat(path).st_mode & 0o777
    handle, new = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".dlami-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(new, mode)
        os.rename(new, path)
    except BaseException:
        os.unlink(new)
        raise
    return True

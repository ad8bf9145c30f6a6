"""Content of a snapshot: rows for JSON, and the digest that names it. Runs here and on every host."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

# Path, kind (one of those below), size in bytes, SHA-256 of its bytes; for a link its target instead.
Row = Sequence[Any]
FILE, PROGRAM, LINK = "f", "x", "l"
MODES = {FILE: 0o644, PROGRAM: 0o755}
TIME = 1_000_000_000  # mtime of every file of a copy, in seconds: a file with another one was changed there


def digest_of(rows: Sequence[Row]) -> str:
    """Return the digest of this content. It is the same for equal files with equal names and kinds."""
    digest = hashlib.sha256()
    for row in sorted(list(row) for row in rows):
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()[:40]


def link_digest(target: str) -> str:
    """Return the text that a link's row has instead of a digest."""
    return f"-> {target}"

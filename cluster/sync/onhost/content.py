"""What a snapshot consists of, as rows that JSON takes, and the digest that names it. Here and on every host."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

Row = Sequence[
    Any
]  # path, kind (one of those below), size in bytes, SHA-256 of its bytes; of a link its target instead
FILE, PROGRAM, LINK = "f", "x", "l"
MODES = {FILE: 0o644, PROGRAM: 0o755}
TIME = 1_000_000_000  # when every file of a copy was changed last, in seconds: one that is newer was changed there


def digest_of(rows: Sequence[Row]) -> str:
    """The name of this content: equal files of equal names and kinds have the same, whenever and wherever."""
    digest = hashlib.sha256()
    for row in sorted(list(row) for row in rows):
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()[:40]


def link_digest(target: str) -> str:
    """What stands in a link's row for its bytes."""
    return f"-> {target}"

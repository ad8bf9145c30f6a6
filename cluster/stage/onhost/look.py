"""Report of the data in a folder of this host."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

from cluster.ssh.onhost.frame import say
from cluster.stage.onhost.files import files_below, finished

_SAMPLED = 16
_BYTES = 64 << 10


def summarize(folder: str) -> dict[str, Any]:
    """Return counts, bytes, shards, and a checksum over names, sizes and samples of the contents.

    Raises OSError if a folder or its contents cannot be read.
    """
    there = files_below(folder) if os.path.isdir(folder) else {}
    files = list(finished(there).items())
    digest = hashlib.sha256(json.dumps(files).encode())
    for name, size in files[:: max(1, len(files) // _SAMPLED)]:
        with open(os.path.join(folder, name), "rb") as file:
            digest.update(file.read(_BYTES))
            file.seek(max(0, size - _BYTES))
            digest.update(file.read(_BYTES))
    shards = [re.search(r"-(\d+)-of-(\d+)", os.path.basename(n)) for n, _ in files]
    return {
        "there": os.path.isdir(folder),
        "files": len(files),
        "bytes": sum(s for _, s in files),
        "shards": sum(1 for s in shards if s),
        "sample": digest.hexdigest()[:12],
        "unfinished": len(there) - len(files),
    }


def main(folder: str) -> None:
    """Report the data in the folder."""
    say(summarize(folder))

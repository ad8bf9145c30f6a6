"""Record of the last fan-out of each cluster: the command and the failed hosts, for a later `@failed`."""

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cluster.files import write_json
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.user_folders import cache_folder

_OUTPUT_KEPT_S = 24 * 3600  # how long an output on disk is kept
_RECORD_KEPT_S = 90 * 24 * 3600


def output_folder() -> Path:
    """Return the folder for outputs that are too long for memory. Remove those older than a day."""
    folder = cache_folder() / "output"
    remove_older(folder, _OUTPUT_KEPT_S)
    return folder


def remember(cluster: Cluster, command: str, failed: Iterable[Host]) -> None:
    """Record the last command and the hosts where it failed, readable only by this user.

    If that cannot be written, print a warning: the results do not depend on it.
    """
    path = _file(cluster)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        remove_older(path.parent, _RECORD_KEPT_S)
        write_json(path, {"command": command, "failed": [h.address for h in failed]}, mode=0o600)
    except OSError as e:
        why = f"{e.strerror or e}: {path.parent}"
        print(f"'--failed' and '--hosts @failed' will not know of this run: {why}", file=sys.stderr)


def last_failed(cluster: Cluster) -> list[str] | None:
    """Return the addresses of the hosts that failed last time, None if there was no last time."""
    record = _record(cluster)
    return None if record is None else list(record["failed"])


def last_command(cluster: Cluster) -> str:
    """Return the last command, "" if there was none or it was a script."""
    return str((_record(cluster) or {}).get("command", ""))


def remove_older(folder: Path, age_s: float) -> None:
    """Remove the files of a folder that have not been written to for so long."""
    with contextlib.suppress(OSError):
        for path in [*folder.iterdir()] if folder.is_dir() else []:
            with contextlib.suppress(OSError):
                if path.is_file() and time.time() - path.stat().st_mtime > age_s:
                    path.unlink()


def _record(cluster: Cluster) -> dict[str, Any] | None:
    try:
        record = json.loads(_file(cluster).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("failed"), list):
        return None
    return record if all(isinstance(address, str) for address in record["failed"]) else None


def _file(cluster: Cluster) -> Path:
    return cache_folder() / "last" / f"{hashlib.sha256(str(cluster.folder).encode()).hexdigest()[:16]}.json"

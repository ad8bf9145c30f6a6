"""The last fan-out, per cluster: what was run and where it failed, so that `@failed` means something later."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cluster.files import write_json
from cluster.hosts import Host
from cluster.inventory import Cluster


def cache_folder() -> Path:
    """Where this user's tasks keep what the next one may want."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "dlami-cluster"


def remember(cluster: Cluster, command: str, failed: Iterable[Host]) -> None:
    """Keep the last command and the hosts where it failed."""
    path = _file(cluster)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"command": command, "failed": [h.address for h in failed]})


def last_failed(cluster: Cluster) -> list[str] | None:
    """Addresses of the hosts that failed last time, None if there was no last time."""
    record = _record(cluster)
    return None if record is None else list(record["failed"])


def last_command(cluster: Cluster) -> str:
    """The command of last time, "" if there was no last time or it was a script."""
    return str((_record(cluster) or {}).get("command", ""))


def _record(cluster: Cluster) -> dict[str, Any] | None:
    try:
        record = json.loads(_file(cluster).read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and "failed" in record else None


def _file(cluster: Cluster) -> Path:
    return cache_folder() / "last" / f"{hashlib.sha256(str(cluster.folder).encode()).hexdigest()[:16]}.json"

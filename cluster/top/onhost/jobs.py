"""Reader of the active jobs on the shared folder, with the last metrics of each; runs on the master, in a thread."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from cluster.ssh.onhost.job_record import OVER, flat
from cluster.ssh.onhost.trusted_files import open_file, read_file

_EVERY_S = 1.0
_TAIL = 32 << 10  # bytes at the end of the metrics that are read
_FROM_ROW = (
    "step", "time", "images_per_s", "rank_images_per_s", "rank_input_s", "rank_compute_s", "rank_reduce_s",
)  # fmt: skip
_FROM_JOB = ("id", "np", "steps")
_FROM_STATE = ("state", "attempt", "started", "cause")


class ActiveJobs:
    """Cache of the active jobs, read by a thread after the first query, so that a hung file server delays no answer."""

    def __init__(self, shared: str) -> None:
        self._shared = shared
        self._over: dict[str, float] = {}  # folder of an ended job -> time of its state file
        self._found: list[dict[str, Any]] = []
        self._at: float | None = None
        self._thread: threading.Thread | None = None

    def newest(self) -> dict[str, Any]:
        """Return the active jobs, and their age in seconds; None before the folder has answered."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._read_again_and_again, daemon=True)
            self._thread.start()
            self._thread.join(0.2)
        return {"found": self._found, "age_s": None if self._at is None else time.monotonic() - self._at}

    def _read_again_and_again(self) -> None:
        while True:
            self._found = self._read_all()
            self._at = time.monotonic()
            time.sleep(_EVERY_S)

    def _read_all(self) -> list[dict[str, Any]]:
        found = []
        try:
            entries = list(os.scandir(f"{self._shared}/jobs"))
        except OSError:
            return []
        for folder in sorted(entry.path for entry in entries if not entry.name.startswith(".")):
            try:
                if one := self._read(folder):
                    found.append(one)
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                continue  # just removed, or damaged: `inv jobs.list` names damaged ones
        return found

    def _read(self, folder: str) -> dict[str, Any] | None:
        path = f"{folder}/state.json"
        written = os.lstat(path).st_mtime
        if self._over.get(folder) == written:
            return None
        state = _json(path)
        if state["state"] in OVER:
            self._over[folder] = written
            return None
        job = flat(_json(f"{folder}/public.json"))
        hosts = [host["address"] for host in job["hosts"]]
        chosen = {**{name: job.get(name) for name in _FROM_JOB}, **{name: state.get(name) for name in _FROM_STATE}}
        return {
            **chosen,
            "name": job.get("spec", job).get("name"),
            "hosts": hosts,
            "slots": job.get("claimed", {}),
            "metrics": _last_row(f"{folder}/metrics.jsonl"),
        }


def _json(path: str) -> Any:
    return json.loads(read_file(path))


def _last_row(path: str) -> dict[str, Any] | None:
    """Return the newest training record; truncated lines are skipped."""
    try:
        with os.fdopen(open_file(path), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            row = json.loads(line)
            if row["kind"] == "train":
                return {name: row[name] for name in _FROM_ROW if name in row}
        except (ValueError, KeyError, TypeError):
            continue
    return None

"""The jobs of a cluster, looked up in the folder that holds them; one whose record is damaged hides no other."""

import contextlib
import datetime
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ConfigError
from cluster.jobs.record import DamagedRecord, Job, JobPaths, JobView, Progress, Status, owner_id, read_job, user_name
from cluster.jobs.status import read_status

_METRICS_TAIL = 64 << 10


@dataclass(frozen=True, kw_only=True)
class Records:
    """Every job on record, oldest first, and those whose record cannot be read."""

    jobs: tuple[tuple[Job, Status], ...]
    damaged: tuple[DamagedRecord, ...]


def read_all(folder: Path) -> Records:
    """All jobs that are kept here."""
    jobs, damaged = [], []
    for paths in _folders(folder):
        try:
            jobs.append((read_job(paths), read_status(paths)))
        except DamagedRecord as e:
            if paths.folder.exists():  # not one that was removed this moment
                damaged.append(e)
    return Records(jobs=tuple(sorted(jobs, key=_by_sequence)), damaged=tuple(damaged))


def find(folder: Path, which: str) -> JobPaths:
    """The job with this id or an unambiguous part of it; `last` is this user's that was submitted last.

    Raises ConfigError.
    """
    if which == "last":
        mine = [job for job, _ in read_all(folder).jobs if owner_id(JobPaths(folder / job.id)) == os.getuid()]
        found = [job.id for job in mine[-1:]]
    else:
        ids = [p.folder.name for p in _folders(folder)]
        found = [i for i in ids if i == which] or [i for i in ids if which in i]
    if len(found) != 1:
        lost = "" if folder.exists() else ", which is not there: is the shared folder mounted on the master?"
        raise ConfigError(
            f"no job {which!r} in {folder}{lost}"
            if not found
            else f"{which!r} could be any of {', '.join(found)}: give more of it"
        )
    return JobPaths(folder / found[0])


def view(paths: JobPaths) -> JobView:
    """Everything that is known of a job. Raises DamagedRecord."""
    job, status = read_job(paths), read_status(paths)
    return _view(paths, job, status, read_progress(paths, job))


def view_all(folder: Path, records: Records) -> tuple[JobView, ...]:
    """The same of every job on record; how far it is, of those that have not ended."""
    views = []
    for job, status in records.jobs:
        paths = JobPaths(folder / job.id)
        with contextlib.suppress(FileNotFoundError):  # removed this moment
            views.append(_view(paths, job, status, None if status.state.is_over else read_progress(paths, job)))
    return tuple(views)


def next_sequence(folder: Path) -> int:
    """The number of the next job of this cluster. The caller holds the folder's lock."""
    return 1 + max((job.sequence for job, _ in read_all(folder).jobs), default=0)


def read_progress(paths: JobPaths, job: Job) -> Progress | None:
    """How far its training is, from the last lines of its metrics; None where there are none."""
    rows = [r for r in _metrics(paths) if r.get("kind") == "train"]
    try:
        first, last = rows[0], rows[-1]
        step, at = int(last["step"]), float(last["time"])
        steps, seconds = step - int(first["step"]), at - float(first["time"])
        if not math.isfinite(at + seconds):
            return None
        left = (job.steps - 1 - step) * seconds / steps if job.steps and steps > 0 and seconds >= 0 else None
        speed = last.get("images_per_s")
        return Progress(
            step=step,
            time=at,
            images_per_s=float(speed) if speed is not None else None,
            left_s=max(0.0, left) if left is not None and math.isfinite(left) else None,
        )
    except (IndexError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _view(paths: JobPaths, job: Job, status: Status, progress: Progress | None) -> JobView:
    return JobView(
        job=job,
        status=status,
        folder=str(paths.folder),
        owner=user_name(owner_id(paths)),
        age_s=_age_s(status),
        progress=progress,
    )


def _metrics(paths: JobPaths) -> list[dict[str, Any]]:
    """The last ten records or so; a line that is cut off or damaged is passed over."""
    try:
        with paths.metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _METRICS_TAIL))
            lines = file.read().splitlines()[-10:]
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _folders(folder: Path) -> list[JobPaths]:
    try:
        names = [p for p in sorted(folder.iterdir()) if not p.name.startswith(".")]
        return [paths for p in names if _is_job(paths := JobPaths(p))]
    except FileNotFoundError:
        return []
    except OSError as e:
        raise ConfigError(f"{folder} cannot be read: {e.strerror}") from e


def _is_job(paths: JobPaths) -> bool:
    try:
        return paths.job.exists() or paths.status.exists()
    except OSError:
        return True  # there is something, and reading it will say what is wrong


def _by_sequence(one: tuple[Job, Status]) -> tuple[int, str]:
    return one[0].sequence, one[0].id


def _age_s(status: Status) -> float:
    try:
        began = datetime.datetime.fromisoformat(status.started)
        ended = datetime.datetime.fromisoformat(status.ended).timestamp() if status.ended else time.time()
        return max(0.0, ended - began.timestamp())
    except (ValueError, OverflowError):
        return 0.0

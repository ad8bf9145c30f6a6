"""Lookup of a cluster's jobs in their folder. A job whose record is damaged does not hide the others."""

import contextlib
import dataclasses
import datetime
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.code.job_code import read_code
from cluster.errors import ConfigError
from cluster.files import write_atomically
from cluster.jobs.ended_jobs import EndedJobs
from cluster.jobs.occupancy import places_of
from cluster.jobs.process import boot_id
from cluster.jobs.record import (
    DamagedRecord,
    Job,
    JobPaths,
    JobRecords,
    JobStatus,
    JobView,
    TrainingProgress,
    is_id,
    load,
    owner_id,
    read_job,
    user_name,
)
from cluster.jobs.results import read_results
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status, supervisor_trouble
from cluster.recovery.goodput import account
from cluster.recovery.history import AttemptRecord, History
from cluster.ssh.onhost import trusted_files

_METRICS_TAIL = 64 << 10
_LAST_STARTED = ".last-"  # file beside the jobs with the id of a user's last one; the user's number follows
MOST_OF_ANOTHER = 1000  # jobs of each other user that are read, the last by name: he cannot make reading take long
_SHOWN = 10  # ids listed in the error for an ambiguous id
_LAST = 10  # lines from which speed and time left are computed
_SCORES = ("top1", "box_ap")  # names of a score in an evaluation's record


def read_all(folder: Path) -> JobRecords:
    """Return the records of all jobs in this folder."""
    return _read(folder, None)


def read_going(folder: Path) -> JobRecords:
    """Return the records of the jobs that have not ended. Those that are known to have ended are not read again."""
    ended = EndedJobs(folder)
    found = _read(folder, ended)
    ended.save()
    return dataclasses.replace(found, over=ended.sequences)


def _read(folder: Path, ended: EndedJobs | None) -> JobRecords:
    jobs, damaged, others = [], [], set()
    read, unread = _not_too_many(_folders(folder))
    for paths in read:
        name = paths.folder.name
        try:
            before = paths.folder.lstat()
            if before.st_uid != os.getuid():
                others.add(name)
            if ended and ended.knows(name, before):
                continue
            if not _is_job(paths):
                continue
            owner_id(paths)
            job, status = read_job(paths), read_status(paths)
            if ended and status.state.is_over:
                ended.add(name, before, job.sequence)
            else:
                jobs.append((job, status))
        except DamagedRecord as e:
            if os.path.lexists(paths.folder):  # unless it was removed just now
                damaged.append(e)
        except FileNotFoundError:
            continue
    return JobRecords(
        jobs=tuple(sorted(jobs, key=_by_sequence)), damaged=tuple(damaged), others=frozenset(others), unread=unread
    )


def _not_too_many(found: Sequence[JobPaths]) -> tuple[list[JobPaths], dict[str, int]]:
    """Return this user's jobs and the last MOST_OF_ANOTHER of each other user, and how many of each are left out."""
    kept: list[JobPaths] = []
    counts: dict[int, int] = {}
    for paths in reversed(found):
        try:
            owner = paths.folder.lstat().st_uid
        except FileNotFoundError:
            continue
        counts[owner] = counts.get(owner, 0) + 1
        if owner == os.getuid() or counts[owner] <= MOST_OF_ANOTHER:
            kept.append(paths)
    more = {user_name(o): n - MOST_OF_ANOTHER for o, n in counts.items() if o != os.getuid() and n > MOST_OF_ANOTHER}
    return kept[::-1], more


def find(folder: Path, which: str) -> JobPaths:
    """Return the job with this id or an unambiguous part of it. `last` is the one that this user started last.

    This user's own jobs come first, so another user's job of a similar name is not taken for one of them. Raises
    ConfigError if no job or several jobs match.
    """
    if which == "last":
        found = _last(folder)
    else:
        alike = [p.folder.name for p in _folders(folder) if which in p.folder.name and _is_job(p)]
        own = [i for i in alike if _is_own(folder / i)]
        found = [i for i in own if i == which] or own or [i for i in alike if i == which] or alike
    if len(found) != 1:
        lost = "" if folder.exists() else ", which is not there: is the shared folder mounted on the master?"
        raise ConfigError(
            f"no job {which!r} in {folder}{lost}"
            if not found
            else f"{which!r} could be any of {_some(found)}: give more of it"
        )
    return JobPaths(folder / found[0])


def remember_last(folder: Path, job_id: str) -> None:
    """Record that this user has submitted or resumed this job last. It is no error if that cannot be written."""
    with contextlib.suppress(OSError):
        write_atomically(folder / f"{_LAST_STARTED}{os.getuid()}", f"{job_id}\n")


def _last(folder: Path) -> list[str]:
    """Return the id of this user's job that was submitted or resumed last, or [].

    Jobs of an older version are not recorded so: without a record, the newest submission counts.
    """
    with contextlib.suppress(OSError, UnicodeError):
        with os.fdopen(trusted_files.open_file(folder / f"{_LAST_STARTED}{os.getuid()}", owner=os.getuid())) as file:
            name = file.read(200).strip()
        if is_id(name) and _is_job(JobPaths(folder / name)) and _is_own(folder / name):
            return [name]
    records = read_going(folder)
    known = {**records.over, **{job.id: job.sequence for job, _ in records.jobs}}
    return sorted(known.keys() - records.others, key=lambda job: (known[job], job))[-1:]


def _some(ids: Sequence[str]) -> str:
    """Return the first ten of these ids, and how many more there are."""
    more = len(ids) - _SHOWN
    return ", ".join(ids[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def view(paths: JobPaths) -> JobView:
    """Return all data of a job. Raises DamagedRecord."""
    job, status = read_job(paths), read_status(paths)
    history = read_history(paths)
    progress = _with_silence(read_progress(paths, job), history)
    history = dataclasses.replace(history, attempts=_with_progress(history.attempts, status, progress))
    attempts = history.attempts
    reports_steps = job.spec.program.is_built_in or any(a.first_step_at is not None for a in attempts)
    now = _last_sight(status, history) if attempts else 0.0
    told = account(attempts, now, reports_steps=reports_steps) if attempts else None
    is_queued = status.state is JobState.QUEUED
    place = places_of(read_going(paths.folder.parent), of=job.id).get(job.id) if is_queued else None
    found = _view(paths, job, status, progress, history)
    own_code = read_code(paths.folder)
    return dataclasses.replace(found, attempts=attempts, account=told, queue=place, own_code=own_code)


def read_attempts(paths: JobPaths) -> tuple[AttemptRecord, ...]:
    """Return the records of the job's attempts; () if the file is missing or damaged."""
    return read_history(paths).attempts


def read_history(paths: JobPaths) -> History:
    """Return the attempts with the clock that dates the last one, or an empty history if they cannot be read."""
    try:
        return load(paths.attempts, History)
    except DamagedRecord:
        return History()


def view_all(folder: Path, records: JobRecords) -> tuple[tuple[JobView, ...], tuple[DamagedRecord, ...]]:
    """Return the views of all jobs on record, without their attempts, and every damaged record.

    A record with absurd values is listed as damaged, so it cannot prevent the others' views.
    """
    views, damaged, places = [], list(records.damaged), places_of(records)
    for job, status in records.jobs:
        paths = JobPaths(folder / job.id)
        try:
            history = read_history(paths)
            one = _view(paths, job, status, _with_silence(read_progress(paths, job), history), history)
            views.append(dataclasses.replace(one, queue=places.get(job.id)))
        except DamagedRecord as e:
            damaged.append(e)
        except FileNotFoundError:  # removed just now
            continue
        except (ArithmeticError, ValueError, TypeError, OSError) as e:
            damaged.append(DamagedRecord(paths.status, f"{type(e).__name__}: {e}"[:120]))
    return tuple(views), tuple(damaged)


def next_sequence(records: JobRecords) -> int:
    """Return the number for the cluster's next job. The caller must hold the folder's lock."""
    return 1 + max((*records.over.values(), *(job.sequence for job, _ in records.jobs)), default=0)


def next_ticket(records: JobRecords) -> int:
    """Return the number for the next job in the queue. The caller must hold the folder's lock."""
    return 1 + max((job.ticket for job, _ in records.jobs), default=0)


def read_progress(paths: JobPaths, job: Job) -> TrainingProgress | None:
    """Return the training's progress by the last lines of its metrics, or None if there are none.

    For a program without metrics, returns the step that its ranks' heartbeats report.
    """
    lines = _metrics_lines(paths)
    rows = [r for r in _records(lines[-_LAST:]) if r.get("kind") == "train"]
    if not rows:
        return _progress_of_beats(read_attempts(paths))
    try:
        first, last = rows[0], rows[-1]
        step, at = int(last["step"]) + 1, float(last["time"])  # a record's step is the number of steps before it
        steps, seconds = step - 1 - int(first["step"]), at - float(first["time"])
        if not math.isfinite(at + seconds):
            return None
        whole = job.plan.steps
        left = (whole - step) * seconds / steps if whole and steps > 0 and seconds >= 0 else None
        speed, epoch = last.get("images_per_s"), last.get("epoch")
        score_name, score = _last_score(lines)
        return TrainingProgress(
            step=step,
            time=at,
            images_per_s=float(speed) if speed is not None else None,
            left_s=max(0.0, left) if left is not None and math.isfinite(left) else None,
            epoch=float(epoch) if epoch is not None else None,
            score=score,
            score_name=score_name,
        )
    except (IndexError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _progress_of_beats(attempts: Sequence[AttemptRecord]) -> TrainingProgress | None:
    """Return the progress of a program that reports it by heartbeats only."""
    known = [a for a in attempts if a.step is not None and a.step_at is not None]
    return TrainingProgress(step=known[-1].step or 0, time=known[-1].step_at or 0.0) if known else None


def _with_progress(
    attempts: tuple[AttemptRecord, ...], status: JobStatus, progress: TrainingProgress | None
) -> tuple[AttemptRecord, ...]:
    """Return the attempts, with the current progress in the running one. Its supervisor records that only at times."""
    if not (attempts and progress and status.state.is_going) or attempts[-1].is_over:
        return attempts
    last = attempts[-1]
    if last.first_step is None or progress.step < last.first_step:
        return attempts
    return (*attempts[:-1], dataclasses.replace(last, step=progress.step, step_at=progress.time))


def _with_silence(progress: TrainingProgress | None, history: History) -> TrainingProgress | None:
    """Return the progress with the time since the last step.

    That step has two dates: the supervisor's, by its steady clock, and the rank's own. The newer one counts.
    """
    if progress is None:
        return None
    last = history.attempts[-1] if history.attempts else None
    seen = [time.time() - progress.time, *([_now(history) - last.step_at] if last and last.step_at else [])]
    return dataclasses.replace(progress, quiet_s=round(max(0.0, min(seen)), 1))


def _now(history: History) -> float:
    """Return the current time on the clock that dates the job's last attempt. Call it on the job's master."""
    return history.now(boot_id(), time.monotonic(), time.time())


def _last_sight(status: JobStatus, history: History) -> float:
    """Return the time until which the job is accounted for: now, or the last known time of a job that has ended."""
    last = history.attempts[-1]
    if status.state.is_going:
        return _now(history)
    return max(t or 0.0 for t in (last.began, last.started, last.first_step_at, last.step_at, last.ended, last.cleared))


def _view(paths: JobPaths, job: Job, status: JobStatus, progress: TrainingProgress | None, history: History) -> JobView:
    began = history.attempts[0].began if history.attempts else None
    trouble = supervisor_trouble(paths, status, time.time())
    return JobView(
        job=job,
        status=dataclasses.replace(status, warnings=(*status.warnings, *filter(None, [trouble]))),
        folder=str(paths.folder),
        owner=user_name(owner_id(paths)),
        is_own=owner_id(paths) == os.getuid(),
        age_s=_age_s(status, history),
        began=began,
        results=read_results(paths.folder),
        progress=progress,
    )


def last_metrics(paths: JobPaths) -> list[dict[str, Any]]:
    """Return up to ten of the last metrics records. Truncated or damaged lines are skipped."""
    return _records(_metrics_lines(paths)[-_LAST:])


def _metrics_lines(paths: JobPaths) -> list[bytes]:
    """Return the last lines of the job's metrics. The first of them may be truncated."""
    try:
        with os.fdopen(trusted_files.open_file(paths.metrics), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _METRICS_TAIL))
            return file.read().splitlines()
    except OSError:
        return []


def _last_score(lines: Sequence[bytes]) -> tuple[str, float | None]:
    """Return the name and value of the last evaluation's score among these lines; ("", None) without one."""
    for line in reversed(lines):
        for record in _records([line]) if b'"eval"' in line else ():
            for name in _SCORES if record.get("kind") == "eval" else ():
                if isinstance(value := record.get(name), int | float) and math.isfinite(value):
                    return name, float(value)
    return "", None


def _records(lines: Sequence[bytes]) -> list[dict[str, Any]]:
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
    """Return the folders whose names can be jobs' ids, links included."""
    try:
        return [JobPaths(folder / name) for name in sorted(p.name for p in folder.iterdir() if is_id(p.name))]
    except FileNotFoundError:
        return []
    except OSError as e:
        raise ConfigError(f"{folder} cannot be read: {e.strerror}") from e


def _is_job(paths: JobPaths) -> bool:
    try:
        os.lstat(paths.job)
    except NotADirectoryError:
        return False
    except FileNotFoundError:
        return os.path.lexists(paths.status)
    except OSError:
        return True  # something is there, and reading it reports what is wrong
    return True


def _is_own(folder: Path) -> bool:
    with contextlib.suppress(DamagedRecord, OSError):
        return owner_id(JobPaths(folder)) == os.getuid()
    return False


def _by_sequence(one: tuple[Job, JobStatus]) -> tuple[int, str]:
    return one[0].sequence, one[0].id


def _age_s(status: JobStatus, history: History) -> float:
    """Return the seconds from the first attempt to now, to its end, or for a lost job to the last time known."""
    try:
        began = history.attempts[0].began if history.attempts else _seconds(status.started)
        if status.state.is_going:
            return max(0.0, _now(history) - began)
        known = _last_sight(status, history) if history.attempts else time.time()
        ended = _seconds(status.ended) if status.ended else known
        return max(0.0, ended - began)
    except (ValueError, OverflowError):
        return 0.0


def _seconds(written: str) -> float:
    """Parse a record's time into seconds since 1970. Raises ValueError."""
    return datetime.datetime.fromisoformat(written).timestamp()

"""Content of a job's page, read from its folder on the master, in serializable form and without secrets."""

import base64
import contextlib
import dataclasses
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.jobs.cost import with_cost_anew
from cluster.jobs.curves.metrics import Measured, read_metrics
from cluster.jobs.master.host_facts import JobHost, hosts_seen
from cluster.jobs.record import Job, JobPaths, JobView, as_written, open_log
from cluster.jobs.records import view
from cluster.ssh.onhost import trusted_files
from cluster.typed import from_json

MOST_CHECKPOINTS = 12
MOST_PICTURES = 8
_DIFFERENCE_BYTES = 40_000
_TAIL_LINES, _TAIL_BYTES, _LONGEST_LINE = 20, 64 << 10, 400
_PICTURE_BYTES, _PICTURES_BYTES = 60_000, 110_000
_FACTS_BYTES = 1 << 20  # most bytes of a checkpoint's facts file
_KINDS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}  # no SVG: it can contain scripts


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Checkpoint that the trainers wrote."""

    step: int
    time: str  # UTC
    bytes: int
    attempt: int
    is_best: bool = False


@dataclass(frozen=True, kw_only=True)
class JobPicture:
    """Picture from the job's folder `pictures/`."""

    name: str
    media: str  # its MIME type
    content: str  # base64


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """Content of a job's page."""

    view: JobView
    made: str  # time of reading, UTC
    measured: Measured
    hosts: tuple[JobHost, ...]
    checkpoints: tuple[Checkpoint, ...] = ()
    difference: str = ""  # diff of its code from the last commit, or the beginning of it
    difference_left: int = 0  # bytes of the diff that are left out
    tail: tuple[str, ...] = ()  # last lines of the log of its current or last attempt
    pictures: tuple[JobPicture, ...] = ()
    pictures_left: int = 0  # number of pictures left out, as too large or too many

    def to_json(self) -> dict[str, Any]:
        """Return the content as a JSON object, for `--json`."""
        return {**dataclasses.asdict(dataclasses.replace(self, view=None)), "view": self.view.to_json()}  # type: ignore[arg-type]


def read_facts(paths: JobPaths) -> JobFacts:
    """Read the content of a job's page, on the master. Raises DamagedRecord."""
    found = view(paths)
    found = with_cost_anew(dataclasses.replace(found, job=without_secrets(found.job)))
    pictures, left = _pictures(paths.folder / "pictures")
    difference, difference_left = _difference(paths.folder / "code.diff")
    return JobFacts(
        view=found,
        made=as_written(time.time()),
        measured=read_metrics(paths.metrics),
        hosts=hosts_seen(paths, found),
        checkpoints=_checkpoints(paths.checkpoints),
        difference=difference,
        difference_left=difference_left,
        tail=_tail(paths, Path(found.status.log or paths.console(found.status.attempt))),
        pictures=pictures,
        pictures_left=left,
    )


def with_cost(found: JobFacts) -> JobFacts:
    """Return the content with its cost, if the master could not compute it and this machine can."""
    return dataclasses.replace(found, view=with_cost_anew(found.view))


def without_secrets(job: Job) -> Job:
    """Return the job without the values of its operator's variables, which may be passwords, and without `notify`."""
    hidden = {f"{name}={value}": f"{name}=…" for name, value in job.spec.environment.items()}
    shown = job.planned(mpirun=tuple(hidden.get(word, word) for word in job.plan.mpirun), notify="")
    spec = dataclasses.replace(job.spec, environment=dict.fromkeys(job.spec.environment, "…"))
    return dataclasses.replace(shown, spec=spec)


def _checkpoints(folder: Path) -> tuple[Checkpoint, ...]:
    """Return the newest checkpoints and the best one, the newest first."""
    best = _read_json(folder / "best.json").get("step")
    names = sorted((p for p in _files(folder) if p.name.startswith("step-") and p.suffix == ".json"), reverse=True)
    found: list[Checkpoint] = []
    for path in names:
        facts = _read_json(path)
        with contextlib.suppress(ValueError):
            one = from_json(Checkpoint, {"attempt": 0, **{k: v for k, v in facts.items() if k != "is_best"}})
            is_best = one.step == best
            if is_best or len(found) < MOST_CHECKPOINTS:
                found.append(dataclasses.replace(one, is_best=is_best))
    return tuple(found)


def _difference(file: Path) -> tuple[str, int]:
    """Return the first bytes of the diff from the last commit, and how many bytes follow; "" and 0 if unreadable."""
    try:
        with os.fdopen(trusted_files.open_file(file), "rb") as opened:
            shown = opened.read(_DIFFERENCE_BYTES)
            left = max(0, os.fstat(opened.fileno()).st_size - len(shown))
    except OSError:
        return "", 0
    return shown.decode(errors="replace"), left


def _tail(paths: JobPaths, log: Path) -> tuple[str, ...]:
    """Return the last lines of the log, long ones shortened.

    log: as the record names it, so it must be a file of the job's owner.
    """
    try:
        with os.fdopen(open_log(paths, log), "rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = opened.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ()
    lines = text.splitlines()[-_TAIL_LINES:]
    return tuple(one if len(one) <= _LONGEST_LINE else f"{one[:_LONGEST_LINE]}…" for one in lines)


def _pictures(folder: Path) -> tuple[tuple[JobPicture, ...], int]:
    """Return the small pictures of a folder, by name, and how many files are left out."""
    found: list[JobPicture] = []
    files, total = _files(folder), 0
    for path in files:
        try:
            if path.is_symlink() or path.stat().st_size > _PICTURE_BYTES or len(found) == MOST_PICTURES:
                continue
            data = trusted_files.read_file(path)
        except OSError:
            continue
        media = next((kind for begin, kind in _KINDS.items() if data.startswith(begin)), None)
        if media and total + len(data) <= _PICTURES_BYTES:
            total += len(data)
            found.append(JobPicture(name=path.name, media=media, content=base64.b64encode(data).decode()))
    return tuple(found), len(files) - len(found)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    except OSError:
        return []


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a small file; {} without one."""
    try:
        with os.fdopen(trusted_files.open_file(path), "rb") as opened:
            found = json.loads(opened.read(_FACTS_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

"""Event files for TensorBoard: links to each job's own, or files converted from its metrics if it writes none."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.jobs.curves.metrics import record_of, whole_lines
from cluster.jobs.record import JobPaths, jobs_folder
from cluster.jobs.records import find
from cluster.ssh.onhost import trusted_files
from cluster.tunnels.service import ServiceRequest

ALL = "all"
_EVENTS = "*tfevents*"


def require_job(wanted: ServiceRequest) -> None:
    """Raise ConfigError if the job does not exist."""
    if wanted.job != ALL:
        find(jobs_folder(wanted.shared), wanted.job)


class Runs:
    """Folder with one entry per job, kept up to date while TensorBoard reads it."""

    def __init__(self, wanted: ServiceRequest, folder: Path) -> None:
        self._jobs, self._folder = jobs_folder(wanted.shared), folder
        self._only = None if wanted.job == ALL else find(self._jobs, wanted.job)
        self._made: dict[str, MadeEvents] = {}
        folder.mkdir(mode=0o700)

    def refresh(self) -> None:
        """Add new jobs, and new metrics of jobs that write no events."""
        for paths in [self._only] if self._only else self._all():
            with contextlib.suppress(OSError):
                self._take_in(paths)

    def _all(self) -> list[JobPaths]:
        folders = sorted(self._jobs.iterdir()) if self._jobs.is_dir() else []  # no job has been started yet
        return [JobPaths(p) for p in folders if not p.name.startswith(".") and not p.is_symlink() and p.is_dir()]

    def _take_in(self, paths: JobPaths) -> None:
        name, own = paths.folder.name, paths.folder / "tensorboard"
        entry = self._folder / name
        if entry.is_symlink():
            if not _are_plain(own, paths):
                entry.unlink()
            return
        if name not in self._made and any(own.glob(_EVENTS)) and _are_plain(own, paths):
            entry.symlink_to(own)
        elif paths.metrics.exists():
            self._made.setdefault(name, MadeEvents(paths.metrics, entry)).follow()


def _are_plain(own: Path, paths: JobPaths) -> bool:
    """Return True if all of a job's event files are plain files of its owner.

    A link could show another user's numbers, and a named pipe would block the page.
    """
    owner = trusted_files.folder_owner(paths.folder)
    if trusted_files.folder_owner(own) != owner:
        return False
    for folder, below, files in os.walk(own):
        for name in (*below, *files):
            found = Path(folder, name).lstat()
            is_plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
            if not is_plain or found.st_uid != owner:
                return False
    return True


class MadeEvents:
    """Converter of a job's metrics to event files."""

    def __init__(self, metrics: Path, folder: Path) -> None:
        self._metrics, self._folder = metrics, folder
        self._inode, self._position = 0, 0
        self._writer: Any = None

    def follow(self) -> None:
        """Convert the metrics that were added since.

        A file that was replaced, as by a resume, is read from its beginning.
        """
        with os.fdopen(trusted_files.open_file(self._metrics), "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode:
                self._begin()
                self._inode, self._position = inode, 0
            file.seek(self._position)
            for line in whole_lines(file):
                self._position = file.tell()
                if record := record_of(line):
                    with contextlib.suppress(ValueError, TypeError, OverflowError):
                        self._add(record)
        self._writer.flush()

    def _begin(self) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer:
            self._writer.close()
        self._writer = EventFileWriter(str(self._folder))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._writer.add_event(event_pb2.Event(step=0, session_log=start))  # readers drop earlier events

    def _add(self, record: dict[str, Any]) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2

        kind, step, at = str(record["kind"]), int(record["step"]), float(record["time"])
        tags = [
            summary_pb2.Summary.Value(tag=f"{kind}/{name}", simple_value=value)
            for name, value in _scalars(record)
            if name not in ("kind", "step", "time")
        ]
        self._writer.add_event(event_pb2.Event(wall_time=at, step=step, summary=summary_pb2.Summary(value=tags)))


def _scalars(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the record's numbers by name.

    Of a value per rank these are the least and the largest, as in the trainers' events.
    """
    for name, value in record.items():
        if isinstance(value, list) and value:
            yield from ((f"{name}/least", min(value)), (f"{name}/largest", max(value)))
        elif isinstance(value, int | float):
            yield name, value

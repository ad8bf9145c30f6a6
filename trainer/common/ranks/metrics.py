"""Metrics of a job over its steps: `metrics.jsonl`, one record per line, and the same as TensorBoard event files."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trainer.common.checkpoints.checkpoint import write_atomically
from trainer.common.checkpoints.write_lease import check_lease
from trainer.common.files.errors import TrainerError

FILE = "metrics.jsonl"


def read(job_dir: Path) -> list[dict[str, Any]]:
    """Read the records of a job, in the order they were written. Warns on stderr about damaged lines and skips them.

    A crash may have cut off the last line, which causes no warning.

    Raises:
        TrainerError: there is no such file.
    """
    path = job_dir / FILE
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as e:
        raise TrainerError(f"{path} cannot be read ({e.strerror}); is {job_dir} a job folder?") from e
    records = []
    for number, line in enumerate(lines, start=1):
        record = _record(line)
        if record is not None:
            records.append(record)
        elif number < len(lines):
            print(f"warning: {path}:{number} is no record of a step; passed over", file=sys.stderr, flush=True)
    return records


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_one = isinstance(record, dict) and type(record.get("step")) is int and isinstance(record.get("kind"), str)
    return record if is_one else None


def _scalars(values: Mapping[str, float | list[float]]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, list):
            yield f"{name}/least", min(value)
            yield f"{name}/largest", max(value)
        else:
            yield name, float(value)


class MetricsWriter:
    """Writer that appends records to a job's metrics, on rank 0 only.

    It first drops records at or after `resume_step`. Those were written after the checkpoint that this attempt resumes
    from, so the file reads like that of an uninterrupted run.

    Raises:
        Replaced: a newer attempt of the job has begun.
        TrainerError: the folder cannot be written.
    """

    def __init__(self, job_dir: Path, resume_step: int = 0) -> None:
        check_lease()
        try:
            self._open(job_dir, resume_step)
        except OSError as e:
            raise _cannot_write(job_dir, e) from e

    def _open(self, job_dir: Path, resume_step: int) -> None:
        job_dir.mkdir(parents=True, exist_ok=True)
        path = job_dir / FILE
        if path.exists():
            kept = [
                r
                for r in read(job_dir)
                if r["step"] < resume_step or (r["kind"] == "eval" and r["step"] == resume_step)
            ]
            write_atomically(path, "".join(json.dumps(r) + "\n" for r in kept))
        self._lines = path.open("a", buffering=1)
        self._events = _Events.begun(job_dir / "tensorboard", resume_step)

    def write(self, kind: str, step: int, values: Mapping[str, float | list[float]]) -> None:
        """Write one record: its kind (`train`, `eval`), its step, and its values under plain names.

        A list holds one value per rank. TensorBoard gets its minimum and its maximum.
        """
        check_lease()
        now = time.time()
        try:
            self._lines.write(json.dumps({"kind": kind, "step": step, "time": round(now, 3), **values}) + "\n")
        except OSError as e:
            raise _cannot_write(Path(self._lines.name).parent, e) from e
        if self._events:
            self._events.write(step, now, {f"{kind}/{name}": value for name, value in _scalars(values)})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # `write` has already raised for these lines
            self._lines.close()
        if self._events:
            self._events.close()


class _Events:
    """TensorBoard event files of a job."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._session, self._summary = event_pb2.Event, event_pb2.SessionLog, summary_pb2.Summary
        self._file = EventFileWriter(str(folder))

    @classmethod
    def begun(cls, folder: Path, resume_step: int) -> "_Events | None":
        """Open the TensorBoard events from this step on.

        Returns None where TensorBoard is not installed, as beside PyTorch.
        """
        try:
            events = cls(folder)
        except ImportError:
            print("note: no tensorboard package here, so the numbers are in metrics.jsonl alone", file=sys.stderr)
            return None
        # Makes TensorBoard drop what an earlier attempt wrote at later steps.
        log = events._session(status=events._session.START)
        events._file.add_event(events._event(wall_time=time.time(), step=resume_step, session_log=log))
        return events

    def write(self, step: int, now: float, scalars: Mapping[str, float]) -> None:
        """Write the values of a step."""
        tags = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._file.add_event(self._event(wall_time=now, step=step, summary=self._summary(value=tags)))

    def close(self) -> None:
        """Write the buffered events and close the file. Ignores a failure."""
        with contextlib.suppress(OSError):
            self._file.close()


def _cannot_write(job_dir: Path, error: OSError) -> TrainerError:
    return TrainerError(
        f"{job_dir}: the metrics cannot be written ({error.strerror}): make room, then start again to resume"
    )

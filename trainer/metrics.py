"""A job's numbers over its steps: `metrics.jsonl`, one record per line, and the same as TensorBoard event files."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trainer.checkpoint import write_atomically
from trainer.errors import TrainerError

FILE = "metrics.jsonl"


def read(job_dir: Path) -> list[dict[str, Any]]:
    """The records of a job, in the order they were written; a last line that a crash cut off is left out.

    Raises:
        TrainerError: there is no such file, or a line in the middle is not JSON.
    """
    path = job_dir / FILE
    try:
        lines = path.read_text().splitlines()
    except OSError as e:
        raise TrainerError(f"{path} cannot be read ({e.strerror}); is {job_dir} a job folder?") from e
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError as e:
            if number < len(lines):
                raise TrainerError(f"{path}:{number}: not a JSON record") from e
    return records


def _scalars(values: Mapping[str, float | list[float]]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, list):
            yield f"{name}/least", min(value)
            yield f"{name}/largest", max(value)
        else:
            yield name, float(value)


class Writer:
    """Appends records to a job's metrics; used by rank 0 only.

    Records at or after `resume_step` are dropped first, those an attempt wrote after the checkpoint that this one
    resumes from: the file reads like that of an uninterrupted run.
    """

    def __init__(self, job_dir: Path, resume_step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

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
        self._events = EventFileWriter(str(job_dir / "tensorboard"))
        # Makes TensorBoard drop what an earlier attempt wrote at later steps.
        self._events.add_event(
            Event(wall_time=time.time(), step=resume_step, session_log=SessionLog(status=SessionLog.START))
        )

    def write(self, kind: str, step: int, values: Mapping[str, float | list[float]]) -> None:
        """One record: what it is (`train`, `eval`), its step, its values under plain names.

        A list holds a value per rank; TensorBoard gets its least and its largest.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        now = time.time()
        self._lines.write(json.dumps({"kind": kind, "step": step, "time": round(now, 3), **values}) + "\n")
        tags = [Summary.Value(tag=f"{kind}/{name}", simple_value=value) for name, value in _scalars(values)]
        self._events.add_event(Event(wall_time=now, step=step, summary=Summary(value=tags)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        self._events.close()
